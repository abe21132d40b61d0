"""Who makes the kernel of a linear site: Triton for CUDA, the vector kernel for CPUs on which it is faster than the compiler."""

from __future__ import annotations

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels import triton
from onnx_fa.kernels.cpu import linear as cpu
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.target import Target


def kept_why(spec: LinearSpec, target: Target) -> str:
    """Why the compiler keeps a site, in a few words; "" where a kernel of ours is to stand for it. The site may not be in the
    layout of the target yet."""
    if not target.is_gpu:
        return cpu.kept_why(spec, target)
    if target.kernels == "iree":
        return "--kernels iree"
    if missing := triton.missing(target):
        return missing
    try:
        emit_linear(spec, target)
    except UnsupportedError as e:
        return str(e)
    return ""


def panel_of(spec: LinearSpec, target: Target) -> int:
    """The columns of a panel in which the weight is to lie, 0 where it stays as it is."""
    return 0 if target.is_gpu else cpu.panel_of(spec, target)


def emit_linear(spec: LinearSpec, target: Target) -> dict[str, str]:
    """The executables and the function of the site's name, which takes its operands and returns y, by their symbols. Raises
    UnsupportedError where there is no kernel."""
    if not target.is_gpu:
        return cpu.emit_linear(spec, target)
    if target.kernels == "iree" or triton.missing(target):
        raise UnsupportedError("a linear site without Triton")
    from onnx_fa.kernels.triton.linear import emit_linear as emit  # it imports Triton, which CPUs do without

    return emit(spec)
