"""What stands around linear attention in models of Qwen, LFM and Mamba: a short causal convolution that keeps the last rows of its
input, the gates of the state, and a norm of each head with a gate (ContribOperators.md of onnxruntime, Operators.md of ONNX)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.norms import normal_of
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

F32 = TensorProto.FLOAT
_END = 2**62


def causal_conv(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """CausalConvWithState along one axis: the sum over its taps of shifted rows, of the input behind the state. In f32.

    Raises ModelError for several axes, for states of several rows, and where its sizes are unknown."""
    hint, kind = node.name or "CausalConvWithState", g.kind(node.input[0])
    x, weight, bias, past = [*node.input, "", ""][:4]
    shape, taps = g.shape(x), g.shape(weight)
    if attr_of(node, "ndim", 1) != 1 or attr_of(node, "state_window", 0):
        raise ModelError(
            f"node {hint!r}: CausalConvWithState with an ndim of more than 1, or with a state_window, is not supported"
        )
    last = attr_of(node, "channels_last", 0)
    axis = 1 if last else 2
    inner = [*(shape or [None])[2:]] if last else [*(taps or [None])[:1], 1]
    count = taps[-1] if taps else None
    if not kind or shape is None or not isinstance(count, int) or not all(isinstance(d, int) for d in inner):
        raise ModelError(
            f"node {hint!r}: CausalConvWithState of unknown sizes; give the model the shapes of its inputs"
        )
    each = [d for d in inner if isinstance(d, int)]
    dilation = attr_of(node, "dilation", 1)
    kept = (count - 1) * dilation
    whole = _behind(g, x, past, kept, axis, shape, hint)
    total = g.reshape(g.cast(bias, kind, F32, hint), each, hint) if bias else ""
    for tap in range(count):
        rows = _slice(g, whole, tap * dilation, tap * dilation - kept or _END, axis, hint)
        factor = g.reshape(_slice(g, weight, tap, tap + 1, 2, hint), each, hint)
        part = g.add("Mul", [g.cast(rows, kind, F32, hint), g.cast(factor, kind, F32, hint)], hint)
        total = g.add("Add", [total, part], hint) if total else part
    made = _activated(g, total, attr_of(node, "activation", b"none"), hint)
    g.cast(made, F32, kind, hint, out=node.output[0])
    if len(node.output) > 1 and node.output[1]:
        _slice(g, whole, -kept if kept else _END, _END, axis, hint, out=node.output[1])
    return True


def gates(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """LinearAttentionGate: decay = decay_scale * softplus(a + dt_bias), and beta = sigmoid(b), both by way of f32."""
    hint, kind = node.name or "LinearAttentionGate", g.kind(node.input[0])
    a, dt_bias, decay_scale, b = [*node.input, ""][:4]
    if not kind:
        return False
    steps = g.add("Add", [g.cast(a, kind, F32, hint), dt_bias], hint)
    decay = g.add("Mul", [g.add("Softplus", [steps], hint), decay_scale], hint)
    g.cast(decay, F32, kind, hint, out=node.output[0])
    if len(node.output) > 1 and node.output[1]:
        beta = g.add("Sigmoid", [g.cast(b, kind, F32, hint)], hint)
        g.cast(beta, F32, kind, hint, out=node.output[1])
    return True


def gated_norm(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """GatedRMSNorm: the RMS norm of each C columns, C the length of the scale, times the scale and the activated gate; in f32."""
    x, scale, gate = node.input
    hint, kind = node.name or "GatedRMSNorm", g.kind(x)
    columns, shape = g.shape(scale), g.shape(x)
    if not kind or shape is None or columns is None or not isinstance(columns[0], int):
        return False
    heads = [*[0] * (len(shape) - 1), -1, columns[0]]
    rows, gated = (g.cast(g.reshape(v, heads, hint), kind, F32, hint) for v in (x, gate))
    normal = normal_of(g, rows, F32, [-1], attr_of(node, "epsilon", 1e-5), hint)
    scaled = g.add("Mul", [normal, g.cast(scale, kind, F32, hint)], hint)
    made = g.add("Mul", [scaled, _activated(g, gated, attr_of(node, "activation", b"silu"), hint)], hint)
    whole = g.reshape(made, [*[0] * (len(shape) - 1), -1], hint)
    g.cast(whole, F32, kind, hint, out=node.output[0])
    return True


def _activated(g: GraphWriter, x: str, activation: bytes, hint: str) -> str:
    """Of x, f32. Raises ModelError for an activation that the operators here do not have."""
    name = activation.decode()
    if name in ("none", ""):
        return x
    if name not in ("silu", "swish", "sigmoid"):
        raise ModelError(f"node {hint!r}: the activation {name!r}, which there is not")
    made = g.add("Sigmoid", [x], hint)
    return made if name == "sigmoid" else g.add("Mul", [x, made], hint)


def _behind(
    g: GraphWriter, x: str, past: str, kept: int, axis: int, shape: Sequence[int | str | None], hint: str
) -> str:
    """The input behind as many rows as a tap reaches back: the state's, or zeros."""
    if not kept:
        return x
    if not past:
        sizes = g.sizes(x, [*shape[:axis], kept, *shape[axis + 1 :]], hint)
        zero = numpy_helper.from_array(np.zeros(1, helper.tensor_dtype_to_np_dtype(g.kind(x))))
        past = g.add("ConstantOfShape", [sizes], hint, value=zero)
    return g.add("Concat", [past, x], hint, axis=axis)


def _slice(g: GraphWriter, x: str, start: int, end: int, axis: int, hint: str, *, out: str | None = None) -> str:
    return g.add("Slice", [x, *(g.ints([n], hint) for n in (start, end, axis))], hint, out=out)
