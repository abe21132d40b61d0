"""Whether this machine has the device of a target."""

from __future__ import annotations

from onnx_fa.errors import MissingDependencyError, TargetError
from onnx_fa.iree.drivers import require_device
from onnx_fa.spec.target import foreign_cpu, parse_target


def why_not_here(target: str) -> str:
    """Why this machine cannot run what is compiled for the target; empty where it can."""
    parsed = parse_target(target)
    if not parsed.is_gpu:
        return foreign_cpu(parsed)
    try:
        require_device(parsed.device)
    except (MissingDependencyError, TargetError) as e:
        return str(e)
    return ""
