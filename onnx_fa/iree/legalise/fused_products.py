"""Products of onnxruntime's own domain with what they have swallowed, in smaller operators (ContribOperators.md of onnxruntime)."""

from __future__ import annotations

import onnx

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.windows import trim_rows
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_PARAMETERS = {"LeakyRelu": ("alpha",), "Elu": ("alpha",), "HardSigmoid": ("alpha", "beta")}
"""Attributes of activations, in the order in which a fused node gives them."""
_ACTIVATIONS = ("Relu", "Tanh", "Sigmoid", "LeakyRelu", "Elu", "HardSigmoid", "Softplus", "Softsign")


def fused_matmul(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """FusedMatMul: alpha * A' B', with the last two axes of either turned (transA, transB), or those of its batch moved behind the
    first of these (transBatchA, transBatchB)."""
    hint, kind = node.name or node.op_type, g.kind(node.input[0])
    sides = []
    for value, letter in zip(node.input, "AB", strict=True):
        shape = g.shape(value)
        turned, moved = attr_of(node, f"trans{letter}", 0), attr_of(node, f"transBatch{letter}", 0)
        if not (turned or moved):
            sides.append(value)
            continue
        if shape is None:
            return False
        order = list(range(len(shape)))
        if moved:  # (D1, ..., Dn, M, K) lies there as (M, D1, ..., Dn, K)
            order = [*order[1:-1], order[0], order[-1]]
        if turned and len(order) > 1:
            order[-2:] = order[:-3:-1]
        sides.append(g.add("Transpose", [value], hint, perm=order))
    alpha = attr_of(node, "alpha", 1.0)
    if alpha == 1.0:
        g.add("MatMul", sides, hint, out=node.output[0])
    elif not kind:
        return False
    else:
        g.add("Mul", [g.add("MatMul", sides, hint), g.scalar(alpha, kind, hint)], hint, out=node.output[0])
    return True


def fused_gemm(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """FusedGemm: a Gemm, and an activation of its result. Raises ModelError for an activation that has no name in ONNX."""
    hint = node.name or node.op_type
    names = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
    product = g.add("Gemm", [i for i in node.input if i], hint, **{n: attr_of(node, n, d) for n, d in names.items()})
    kind = attr_of(node, "activation", b"").decode()
    if kind not in _ACTIVATIONS:
        raise ModelError(f"node {node.name!r}: FusedGemm with the activation {kind!r} is not supported")
    attrs = {n: v for n in ("alpha", "beta", "gamma") if (v := attr_of(node, f"activation_{n}", None)) is not None}
    wanted = _PARAMETERS.get(kind, ())
    g.add(kind, [product], hint, out=node.output[0], **{n: v for n, v in attrs.items() if n in wanted})
    return True


def fused_conv(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """FusedConv: a Conv, a tensor added to its result (Z), and an activation. Raises ModelError for an activation that has no name
    in ONNX."""
    hint = node.name or node.op_type
    kind, z = attr_of(node, "activation", b"").decode(), node.input[3] if len(node.input) > 3 else ""
    numbers = [float(n) for n in attr_of(node, "activation_params", [])]
    attrs = {n: v for n in _CONV if (v := attr_of(node, n, None)) is not None}
    inputs = [x for x in node.input[:3] if x]
    made = g.add("Conv", inputs, hint, **attrs)
    conv = g.nodes.pop()
    g.nodes.append(trim_rows(g, conv) or conv)
    if z:
        made = g.add("Add", [made, z], hint)
    if kind == "Clip" and len(numbers) == 2 and (dtype := g.kind(node.input[0])):
        g.add("Clip", [made, *(g.scalar(n, dtype, hint) for n in numbers)], hint, out=node.output[0])
        return True
    if kind not in ("", *_ACTIVATIONS):
        raise ModelError(f"node {node.name!r}: FusedConv with the activation {kind!r} is not supported")
    named = dict(zip(_PARAMETERS.get(kind, ()), numbers, strict=False))
    g.add(kind or "Identity", [made], hint, out=node.output[0], **named)
    return True
