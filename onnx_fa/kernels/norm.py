"""Who makes the kernel of a norm site: Triton for CUDA. CPUs leave norms to the compiler."""

from __future__ import annotations

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels import triton
from onnx_fa.spec.norm import NormSpec
from onnx_fa.spec.target import Target


def kept_why(spec: NormSpec, target: Target) -> str:
    """Why the compiler keeps a site, in a few words; "" where a kernel of ours is to stand for it."""
    if target.kernels == "iree":
        return "--kernels iree"
    if missing := triton.missing(target):
        return missing
    try:
        emit_norm(spec, target)
    except UnsupportedError as e:
        return str(e)
    return ""


def emit_norm(spec: NormSpec, target: Target) -> dict[str, str]:
    """The executable and the function of the site's name, which takes its operands and returns its results, by their symbols.
    Raises UnsupportedError where there is no kernel."""
    if target.kernels == "iree" or triton.missing(target):
        raise UnsupportedError("a norm site without Triton")
    from onnx_fa.kernels.triton.norm import emit_norm as emit  # it imports Triton, which CPUs do without

    return emit(spec)
