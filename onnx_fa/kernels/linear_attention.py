"""Who makes the function of a linear attention: on CPUs a kernel that keeps states in the first cache, on CUDA Triton, which keeps
them in registers; else it is a loop over tokens."""

from __future__ import annotations

from functools import cache

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels import triton
from onnx_fa.kernels.cpu import linear_attention as cpu
from onnx_fa.kernels.mlir.linear_attention import emit_loop
from onnx_fa.spec.linear_attention import LinearAttentionSpec
from onnx_fa.spec.target import Target


def kept_why(spec: LinearAttentionSpec, target: Target | None) -> str:
    """Why a site is a loop over tokens, each of which is dispatches of the compiler's, in a few words; "" where it is a kernel."""
    try:
        _emit_tokens(spec, target)
    except UnsupportedError as e:
        return f"a loop over tokens ({e})"
    return ""


def emit_linear_attention(spec: LinearAttentionSpec, target: Target | None) -> dict[str, str]:
    """The executables and the function of the site's name, which takes its operands and returns its results, by their symbols."""
    try:
        return _emit_tokens(spec, target)
    except UnsupportedError:
        return emit_loop(spec)


@cache
def _emit_tokens(spec: LinearAttentionSpec, target: Target | None) -> dict[str, str]:
    """Raises UnsupportedError where there is no kernel."""
    if target is None:
        raise UnsupportedError("for no target")
    if not target.is_gpu:
        return cpu.emit_tokens(spec, target)
    if target.kernels == "iree":
        raise UnsupportedError("--kernels iree")
    if missing := triton.missing(target):
        raise UnsupportedError(missing)
    from onnx_fa.kernels.triton.linear_attention import emit_tokens  # Triton, which CPUs do without

    return emit_tokens(spec)
