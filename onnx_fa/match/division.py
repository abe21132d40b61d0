"""Some models divide by the row sum only behind the product with V: this finds that division, in each spelling of it."""

from __future__ import annotations

import onnx_ir as ir

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match.exprs import Expr
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import Anchor, Behind, Guard, Patterns, Weighting
from onnx_fa.match.walk_down import keeps_rows


def walk_tail(
    view: GraphView, anchor: Anchor, behind: Behind, patterns: Patterns
) -> tuple[ir.Value, Guard, Expr | None]:
    """Walks on behind the matmul with V: over the deferred division and its guard for empty rows, and a gate that is a sink."""
    pv = behind.weighting.product.node
    output, guard = _divide_by_sum(view, anchor, behind.weighting, behind.guard)
    if anchor.floored and anchor.row_sum is None:
        if behind.steps:
            raise NoMatch("probabilities whose row maximum is kept finite are masked and divided anew", pv)
        guard = guard or "zero"
    for layer in patterns.tail:
        tail = layer(view, anchor, output)
        if tail is not None:
            if anchor.sink is not None:
                raise NoMatch("a softmax with a sink is gated by another one", pv)
            if behind.rounding is not None:
                raise NoMatch("the probabilities are rounded without the share of a sink, which a gate stands for", pv)
            if behind.wrap or behind.steps or not keeps_rows(behind.weighting):
                raise NoMatch("the probabilities are changed or moved before a gate that stands for a sink", pv)
            return tail.value, guard, tail.sink
    return output, guard, anchor.sink


def _divide_by_sum(view: GraphView, anchor: Anchor, weighting: Weighting, guard: Guard) -> tuple[ir.Value, Guard]:
    pv = weighting.product.node
    acc, total = weighting.product.output, anchor.row_sum
    if total is None:
        return acc, guard
    if not keeps_rows(weighting):
        raise NoMatch("the axes move between the row sum and the division by it", pv)
    guarded = positive_or(view, acc, total, 0.0)
    if guarded is not None:
        safe = positive_or(view, total, total, 1.0)
        if safe is None:
            raise NoMatch("only one side of the division by the row sum is guarded", pv)
        acc, total, guard = guarded, safe, "guarded"
    elif anchor.floored:
        safe = one_if_zero(view, total)
        if safe is None:
            raise NoMatch("a row sum of zero is not guarded, though the row maximum is kept finite", pv)
        total, guard = safe, "zero"
    while len(view.users(acc)) == 1 and op_of(view.users(acc)[0]) == "Identity" and not acc.is_graph_output():
        acc = view.users(acc)[0].outputs[0]
    users = view.users(acc)
    if acc.is_graph_output() or len(users) != 1:
        raise NoMatch("the product with V is not divided by the row sum", pv)
    node = users[0]
    if view.producer(node.outputs[0], "Div") is not None and node.inputs[0] is acc:
        if node.inputs[1] is not total:
            raise NoMatch("the product with V is divided by something else than the row sum", node)
        return node.outputs[0], guard
    if view.producer(node.outputs[0], "Mul") is not None:
        other = node.inputs[1] if node.inputs[0] is acc else node.inputs[0]
        if other is not None and reciprocal_of(view, other) is total:
            return node.outputs[0], guard
    raise NoMatch("the product with V is not divided by the row sum", pv)


def reciprocal_of(view: GraphView, value: ir.Value | None) -> ir.Value | None:
    """x, where `value` is Reciprocal(x), 1 / x or x to the power of -1."""
    node = view.producer(value, "Reciprocal", "Div", "Pow")
    if node is None:
        return None
    if op_of(node) == "Reciprocal":
        return node.inputs[0]
    if op_of(node) == "Div":
        return node.inputs[1] if view.scalar(node.inputs[0]) == 1.0 else None
    return node.inputs[0] if view.scalar(node.inputs[1]) == -1.0 else None


def positive_or(view: GraphView, value: ir.Value, total: ir.Value, other: float) -> ir.Value | None:
    """The result of Where(total > 0, value, other), if some node reads `value` like that."""
    for where in view.users(value):
        test = view.producer(where.inputs[0], "Greater") if op_of(where) == "Where" else None
        if test is None or test.inputs[0] is not total or view.scalar(test.inputs[1]) != 0.0:
            continue
        if where.inputs[1] is value and view.scalar(where.inputs[2]) == other:
            return where.outputs[0]
    return None


def one_if_zero(view: GraphView, total: ir.Value) -> ir.Value | None:
    """The result of Where(total == 0, 1, total), if some node reads the sum like that."""
    for where in view.users(total):
        test = view.producer(where.inputs[0], "Equal") if op_of(where) == "Where" else None
        if test is None or test.inputs[0] is not total or view.scalar(test.inputs[1]) != 0.0:
            continue
        if where.inputs[2] is total and view.scalar(where.inputs[1]) == 1.0:
            return where.outputs[0]
    return None
