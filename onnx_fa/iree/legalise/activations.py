"""Activations that IREE does not know, in smaller operators (ContribOperators.md of onnxruntime, Operators.md of ONNX)."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of


def gelu(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Gelu and BiasGelu: y / 2 * (1 + erf(y / sqrt 2)), of y = x + bias."""

    def erf(y: str, kind: int, hint: str) -> str:
        return g.add("Erf", [g.add("Mul", [y, g.scalar(math.sqrt(0.5), kind, hint)], hint)], hint)

    return _write_gelu(g, node, erf)


def fast_gelu(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """FastGelu: y / 2 * (1 + tanh(sqrt(2 / pi) * (y + 0.044715 y^3))), of y = x + bias."""

    def tanh(y: str, kind: int, hint: str) -> str:
        outer = math.sqrt(2 / math.pi)
        square = g.add("Mul", [g.add("Mul", [y, y], hint), g.scalar(0.044715 * outer, kind, hint)], hint)
        slope = g.add("Add", [square, g.scalar(outer, kind, hint)], hint)
        return g.add("Tanh", [g.add("Mul", [y, slope], hint)], hint)

    return _write_gelu(g, node, tanh)


def tanh_gelu(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """ONNX's Gelu with approximate="tanh", as FastGelu is: IREE's own differs by 1e-3 of small results."""
    return attr_of(node, "approximate", b"none") == b"tanh" and fast_gelu(g, node)


def _write_gelu(g: GraphWriter, node: onnx.NodeProto, inner: Callable[[str, int, str], str]) -> bool:
    """y / 2 * (1 + inner), of y = x + bias. `inner` writes it for y, by its element type and a hint for names."""
    hint, kind = node.name or node.op_type, g.kind(node.input[0])
    if not kind:
        return False
    inputs = [i for i in node.input if i]
    y = inputs[0] if len(inputs) == 1 else g.add("Add", inputs, hint)
    made = inner(y, kind, hint)
    half = g.add("Mul", [y, g.scalar(0.5, kind, hint)], hint)
    g.add("Mul", [half, g.add("Add", [made, g.scalar(1.0, kind, hint)], hint)], hint, out=node.output[0])
    return True


def softsign(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Softsign: x / (1 + |x|), which IREE refuses."""
    hint, kind = node.name or node.op_type, g.kind(node.input[0])
    if not kind:
        return False
    below = g.add("Add", [g.scalar(1.0, kind, hint), g.add("Abs", [node.input[0]], hint)], hint)
    g.add("Div", [node.input[0], below], hint, out=node.output[0])
    return True


def swish(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """QuickGelu and Swish: x * sigmoid(alpha x); SwiGLU: that times its second input."""
    hint, kind = node.name or node.op_type, g.kind(node.input[0])
    if not kind:
        return False
    x, *factors = node.input
    alpha, slope = attr_of(node, "alpha", 1.702 if op_of(node).endswith("QuickGelu") else 1.0), x
    if alpha != 1.0:
        slope = g.add("Mul", [x, g.scalar(alpha, kind, hint)], hint)
    gated = [x, g.add("Sigmoid", [slope], hint)]
    for factor in factors:
        gated = [g.add("Mul", gated, hint), factor]
    g.add("Mul", gated, hint, out=node.output[0])
    return True


def bias_add(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """BiasAdd: x + bias + skip."""
    x, bias, skip = node.input
    hint = node.name or node.op_type
    g.add("Add", [g.add("Add", [x, bias], hint), skip], hint, out=node.output[0])
    return True
