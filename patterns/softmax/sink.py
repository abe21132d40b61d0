"""Behind the matmul with V: out * sigmoid(log-sum-exp of the scores - sink), which is the softmax with one more logit."""

from __future__ import annotations

import onnx_ir as ir

from onnx_fa.graph.view import GraphView
from onnx_fa.match import Anchor, NoMatch, Tail
from onnx_fa.patterns.softmax import rows


def read_gate(view: GraphView, anchor: Anchor, output: ir.Value) -> Tail | None:
    """exp(lse) / (exp(lse) + exp(sink)) = sigmoid(lse - sink)."""
    users = view.users(output)
    if len(users) != 1 or output.is_graph_output():
        return None
    node = view.producer(users[0].outputs[0], "Mul")
    if node is None or node.inputs[0] is node.inputs[1]:
        return None
    other = node.inputs[1] if node.inputs[0] is output else node.inputs[0]
    sigmoid = view.producer(rows.plain(view, other), "Sigmoid")
    minus = rows.difference(view, sigmoid.inputs[0]) if sigmoid is not None else None
    if minus is None or rows.log_sum_exp(view, minus[0], anchor.axes) is not anchor.score:
        return None
    sink, column = minus[1], view.shape(minus[0])
    shape = view.shape(sink)
    if shape is None or column is None or not rows.one_per_row(shape, anchor.axes) or len(shape) > len(column):
        raise NoMatch("a gate of log-sum-exp and a sink does not have one value per row", node)
    return Tail(node.outputs[0], sink)
