"""Who makes the function of a linear attention: on CPUs a kernel that keeps states in the first cache, else a loop over tokens."""

from __future__ import annotations

from onnx_fa.kernels.cpu import linear_attention as cpu
from onnx_fa.kernels.mlir.linear_attention import emit_loop
from onnx_fa.spec.linear_attention import LinearAttentionSpec
from onnx_fa.spec.target import Target


def kept_why(spec: LinearAttentionSpec, target: Target | None) -> str:
    """Why a site is a loop over tokens, each of which is dispatches of the compiler's, in a few words; "" where it is a kernel."""
    if target is None or target.is_gpu:
        return "a loop over tokens (no kernel for GPUs)"
    why = cpu.kept_why(spec, target)
    return f"a loop over tokens ({why})" if why else ""


def emit_linear_attention(spec: LinearAttentionSpec, target: Target | None) -> dict[str, str]:
    """The executables and the function of the site's name, which takes its operands and returns its results, by their symbols."""
    if target is None or kept_why(spec, target):
        return emit_loop(spec)
    return cpu.emit_kernel(spec, target)
