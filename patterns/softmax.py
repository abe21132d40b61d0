"""Anchors: the spellings of a softmax over the last axis."""

from __future__ import annotations

import onnx_ir as ir

from onnx_fa.graph_view import GraphView, attr_int, axes_of
from onnx_fa.match import Anchor, NoMatch

_FLOOR = -1.7e38
"""A bound on the row maximum that no row with a key reaches."""


def anchor(view: GraphView, node: ir.Node) -> Anchor | None:
    """The softmax that `node` completes or, for the spelled-out form, the Exp in its middle; None for any other node.

    Raises NoMatch for a softmax whose axis is not the last.
    """
    if node.domain not in ("", "ai.onnx"):
        return None
    if node.op_type == "Softmax":
        return _softmax(view, node)
    return _spelled_out(view, node) if node.op_type == "Exp" else None


def _softmax(view: GraphView, node: ir.Node) -> Anchor:
    score = node.inputs[0]
    assert score is not None
    # Before opset 13 the default axis is 1 and everything from it on is flattened: the same only when it is the last.
    axis = attr_int(node, "axis", -1 if view.opset >= 13 else 1)
    if not view.last_axis(node, score, axis):
        raise NoMatch(f"the softmax is over axis {axis}, not over the last one")
    return Anchor(node, "Softmax", score, node.outputs[0])


def _spelled_out(view: GraphView, exp: ir.Node) -> Anchor | None:
    """Exp(x - max(x)), divided by its sum at once, or only after the matmul with V (deferred)."""
    sub = view.producer(exp.inputs[0], "Sub")
    if sub is None:
        return None
    maximum, floor = sub.inputs[1], view.producer(sub.inputs[1], "Max")
    if floor is not None and len(floor.inputs) == 2 and (view.scalar(floor.inputs[1]) or 0.0) <= _FLOOR:
        maximum = floor.inputs[0]
    else:
        floor = None
    top = view.producer(maximum, "ReduceMax")
    score = sub.inputs[0]
    if top is None or top.inputs[0] is not score or score is None or not _keeps_last_axis(view, top):
        return None
    e = exp.outputs[0]
    sums = [u for u in view.users(e) if u.op_type == "ReduceSum" and u.inputs[0] is e]
    if len(sums) != 1 or not _keeps_last_axis(view, sums[0]):
        return None
    total = sums[0].outputs[0]
    for user in view.users(e):
        if user.op_type == "Div" and user.inputs[0] is e and user.inputs[1] is total and floor is None:
            return Anchor(user, "ReduceMax/Sub/Exp/ReduceSum/Div", score, user.outputs[0])
    return Anchor(exp, "ReduceMax/Sub/Exp/ReduceSum/MatMul/Div", score, e, row_sum=total, floored=floor is not None)


def _keeps_last_axis(view: GraphView, node: ir.Node) -> bool:
    axes = axes_of(view, node)
    value = node.inputs[0]
    assert value is not None
    return (
        attr_int(node, "keepdims", 1) == 1
        and axes is not None
        and len(axes) == 1
        and view.last_axis(node, value, axes[0])
    )
