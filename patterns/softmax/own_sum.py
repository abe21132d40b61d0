"""Behind weights that no softmax makes: a division by their own sum over the keys, and masks of 0 and 1 that are multiplied in."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.axes import Axes
from onnx_fa.graph.ops import attr_float, op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match import After, Anchor, Call, NoMatch, OwnSum, Select, reciprocal_of
from onnx_fa.patterns.score.elementwise import read_function
from onnx_fa.patterns.softmax import rows
from onnx_fa.patterns.softmax.probability import zero_or_one
from onnx_fa.spec.expr import SCORE, Apply
from onnx_fa.spec.terms import Dim


def is_share(view: GraphView, node: ir.Node, value: ir.Value, axes: Axes) -> bool:
    """Whether a node divides `value` by a sum of its own over the axes."""
    total = _divisor(view, node, value)
    return total is not None and _own_sum(view, axes, value, total) is not None


def divide_by_own_sum(view: GraphView, anchor: Anchor, value: ir.Value, users: Sequence[ir.Node]) -> After | None:
    """p / max(sum(f(p)) + plus, least), where f is a function of the weight alone, such as its size."""
    if anchor.weight is None:
        return None
    for node in users:
        total = _divisor(view, node, value)
        found = None if total is None else _own_sum(view, anchor.axes, value, total)
        if total is None or found is None:
            continue
        path = _between(view, value, total)
        if path is None or any(u is not node and u not in path for u in users):
            raise NoMatch("weights are divided by their sum, and read by something else too", node)
        return After(node.outputs[0], total=found)
    return None


def _divisor(view: GraphView, node: ir.Node, value: ir.Value) -> ir.Value | None:
    """x, where a node makes value / x."""
    if view.producer(node.outputs[0], "Div") is node:
        return node.inputs[1] if node.inputs[0] is value and node.inputs[1] is not value else None
    if view.producer(node.outputs[0], "Mul") is node and node.inputs[0] is not node.inputs[1]:
        return reciprocal_of(view, node.inputs[1] if node.inputs[0] is value else node.inputs[0])
    return None


def _own_sum(view: GraphView, axes: Axes, value: ir.Value, total: ir.Value) -> OwnSum | None:
    """What a divisor means as a sum of the weights `value`; None where it is none."""
    least, plus = -math.inf, 0.0
    inner = _thin(view, total)
    bounded = _bounded_below(view, inner)
    if bounded is not None:
        inner, least = _thin(view, bounded[0]), bounded[1]
    added = view.producer(inner, "Add")
    if added is not None:
        for x, other in (added.inputs, added.inputs[::-1]):
            number = view.scalar(other)
            if number is not None and x is not None:
                inner, plus = _thin(view, x), number
                break
    for kind in rows.SUMS:
        source = rows.reduction(view, inner, kind, axes=axes)
        of = None if source is None else SCORE if source is value else read_function(view, source, value)
        if of is not None and math.isfinite(plus) and not math.isnan(least):
            return OwnSum(Apply("Abs", of) if kind == "ReduceL1" else of, plus, least)
    return None


def _thin(view: GraphView, value: ir.Value) -> ir.Value:
    """The column behind Identity and what spreads it over the row again."""
    while (node := view.producer(value, "Identity", "Expand")) is not None and node.inputs[0] is not None:
        a, b = view.shape(node.inputs[0]), view.shape(node.outputs[0])
        if a is None or b is None or len(a) != len(b):
            break
        value = node.inputs[0]
    return value


def _bounded_below(view: GraphView, value: ir.Value) -> tuple[ir.Value, float] | None:
    """(x, least), where a value is max(x, least)."""
    node = view.producer(value, "Max", "Clip")
    if node is None or node.inputs[0] is None:
        return None
    if op_of(node) == "Clip":
        if "max" in node.attributes or any(i is not None for i in node.inputs[2:]):
            return None
        least = view.scalar(node.inputs[1]) if len(node.inputs) > 1 else attr_float(node, "min", -math.inf)
        return None if least is None else (node.inputs[0], least)
    if len(node.inputs) != 2:
        return None
    for x, other in (node.inputs, node.inputs[::-1]):
        number = view.scalar(other)
        if number is not None and x is not None:
            return x, number
    return None


def _between(view: GraphView, value: ir.Value, total: ir.Value) -> set[ir.Node] | None:
    """The nodes from weights to a sum of theirs; None where something else reads what they make."""
    made = value.producer()
    found: set[ir.Node] = set()
    stack = [total]
    while stack:
        node = stack.pop().producer()
        if node is None or node is made or node in found:
            continue
        found.add(node)
        stack += [i for i in node.inputs if i is not None and made is not None and view.depends(i, made)]
    return found


def _as_condition(number: ir.Value, shape: tuple[Dim | None, ...]) -> Call:
    return Call("Cast", (number,), (("to", int(ir.DataType.BOOL)),), shape)


def drop_by_product(view: GraphView, anchor: Anchor, value: ir.Value, users: Sequence[ir.Node]) -> After | None:
    """p * m, where m is 0 or 1, per key or per query and key."""
    if anchor.weight is None or len(users) != 1:
        return None
    node = view.producer(users[0].outputs[0], "Mul")
    if node is None or node.inputs[0] is node.inputs[1]:
        return None
    other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
    have, want = (None if x is None else view.shape(x) for x in (other, value))
    if other is None or have is None or want is None or len(have) > len(want) or rows.one_per_row(have, anchor.axes):
        return None
    array = view.const(other)
    if array is not None:
        return (
            After(node.outputs[0], drop=Select(_as_condition(other, have), False, 0.0))
            if np.isin(array, (0, 1)).all()
            else None
        )
    keep = zero_or_one(view, other)
    if keep is None:
        return None
    made = anchor.score.producer()
    if made is not None and view.depends(keep[0], made):
        raise NoMatch("weights are masked by a condition on the scores", node)
    return After(node.outputs[0], drop=Select(*keep, 0.0))
