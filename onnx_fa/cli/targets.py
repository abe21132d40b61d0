"""The target that a command was given, with what is to be said about it."""

from __future__ import annotations

import argparse

from onnx_fa.cli.printing import note
from onnx_fa.spec.target import Target, parse_target


def read_target(args: argparse.Namespace, *, runs: bool = False) -> Target:
    """The target named, with what is to be said about it; `runs`: raises TargetError where this machine has no such device."""
    asked = {option: getattr(args, option, False) for option in ("tf32", "bf16_dot")}
    target = parse_target(args.target, args.kernels, **asked)
    if runs and target.is_gpu:
        require_device(target.device)
    if target.note:
        note(args, target.note)
    return target


def require_device(name: str) -> None:
    from onnx_fa.iree.drivers import require_device

    require_device(name)
