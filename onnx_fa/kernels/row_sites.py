"""Who makes the kernel of a product with a weight or of a norm of rows: Triton for CUDA, on CPUs the vector kernels, if they are
faster than the compiler. Other targets leave both to the compiler."""

from __future__ import annotations

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels import triton
from onnx_fa.kernels.cpu import linear as cpu
from onnx_fa.kernels.cpu import norm as cpu_norm
from onnx_fa.kernels.tiles.origin import UNKNOWN, Origin
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.norm import NormSpec
from onnx_fa.spec.target import Target


def kept_why(spec: LinearSpec | NormSpec, target: Target) -> str:
    """Why the compiler keeps a site, in a few words; "" where a kernel of ours is to stand for it. A product may not be in the
    layout of the target yet."""
    if not target.is_gpu:
        return cpu.kept_why(spec, target) if isinstance(spec, LinearSpec) else cpu_norm.kept_why(spec, target)
    if target.kernels == "iree":
        return "--kernels iree"
    if missing := triton.missing(target):
        return missing
    try:
        emit_site(spec, target)
    except UnsupportedError as e:
        return str(e)
    return ""


def origin_of(spec: LinearSpec | NormSpec, target: Target, kept: str = "") -> Origin:
    """The tiles of a site's kernel and where they are from. Where the compiler keeps the site (`kept` says why) since it was
    measured to be faster, where that is from."""
    if isinstance(spec, LinearSpec) and not target.is_gpu:
        return cpu.origin_of(spec, target, kept)
    if kept:
        return UNKNOWN
    if not target.is_gpu and isinstance(spec, NormSpec):
        return cpu_norm.origin_of(spec, target)
    if isinstance(spec, LinearSpec):
        from onnx_fa.kernels.triton import linear

        return linear.origin_of(spec)
    from onnx_fa.kernels.triton import norm

    return norm.origin_of(spec)


def panel_of(spec: LinearSpec, target: Target) -> int:
    """The columns of a panel in which the weight is to lie, 0 where it stays as it is."""
    return 0 if target.is_gpu else cpu.panel_of(spec, target)


def emit_site(spec: LinearSpec | NormSpec, target: Target) -> dict[str, str]:
    """The executables and the function of the site's name, which takes its operands and returns its results, by their symbols.
    Raises UnsupportedError where there is no kernel."""
    if not target.is_gpu:
        return cpu.emit_linear(spec, target) if isinstance(spec, LinearSpec) else cpu_norm.emit_norm(spec, target)
    if target.kernels == "iree" or triton.missing(target):
        raise UnsupportedError(f"a {'linear' if isinstance(spec, LinearSpec) else 'norm'} site without Triton")
    # Both import Triton, which CPUs do without.
    if isinstance(spec, LinearSpec):
        from onnx_fa.kernels.triton.linear import emit_linear

        return emit_linear(spec)
    from onnx_fa.kernels.triton.norm import emit_norm

    return emit_norm(spec)
