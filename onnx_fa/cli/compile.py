"""`onnx-fa compile`: a model as an IREE module."""

from __future__ import annotations

import argparse
from pathlib import Path

from onnx_fa.cli.printing import note, print_lossy, write_json
from onnx_fa.cli.targets import read_target
from onnx_fa.files import check_writable


def run_compile(args: argparse.Namespace) -> None:
    from onnx_fa.iree.compile import compile_model

    target = read_target(args)
    for path in filter(None, (args.output, args.report)):
        check_writable(path)
    keep = Path(args.keep_intermediates) if args.keep_intermediates else None
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
    done = compile_model(
        args.model,
        Path(args.output),
        target,
        keep_intermediates=keep,
        flags=tuple(args.iree_flag),
        timeout_s=args.timeout,
    )
    if args.report:
        write_json(args.report, done.to_dict())
    fused = sum(s.fused is True for s in done.sites)
    note(
        args,
        f"{args.output}: {len(done.sites)} sites, {fused} of them one fused dispatch, {len(done.misses)} left alone",
    )
    print_lossy(args, target, done.sites)
