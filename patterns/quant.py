"""Quantised attention. Rounded Q, K, V and scores need no rule: DequantizeLinear makes an operand like any other op, and its pair
around a score is a score function. What is here says why rounded probabilities are left alone."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnx_fa.graph_view import GraphView
from onnx_fa.match import After, Anchor, Match, NoMatch

_ROUNDING = frozenset(["QuantizeLinear", "DynamicQuantizeLinear"])


def rounded_probabilities(view: GraphView, anchor: Anchor, value: ir.Value, users: Sequence[ir.Node]) -> After | None:
    """Never a layer. Raises NoMatch for probabilities that are rounded before the product with V."""
    for user in users:
        if user.op_type in _ROUNDING:
            raise NoMatch(
                f"{user.op_type} rounds the probabilities, which are known only after all keys: a fused kernel has no such pass",
                user,
            )
    return None


def integer_softmax(view: GraphView, node: ir.Node, label: str) -> Match | None:
    """None for all nodes but onnxruntime's QLinearSoftmax. Raises NoMatch for that."""
    if node.domain == "com.microsoft" and node.op_type == "QLinearSoftmax":
        raise NoMatch("QLinearSoftmax rounds its result, which a fused kernel never has as a whole")
    return None
