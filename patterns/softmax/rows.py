"""Statistics of score rows (maximum, sum, log-sum-exp) in the spellings that exporters and people use.

A row lies along the last axis of the scores, or along others: where they stand transposed, or where the keys are several dims,
as the rows and columns of an image are. `axes` are those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from onnx_fa.graph.axes import LAST_AXIS, Axes, placed_axes
from onnx_fa.graph.ops import attr_int, op_of
from onnx_fa.graph.view import FLOATS, GraphView, axes_of
from onnx_fa.patterns.score.passthrough import is_zero
from onnx_fa.spec.terms import Dim

_AROUND_REDUCTIONS = frozenset("Log Add Sub Mul Neg Max Where Identity Cast Expand Unsqueeze Reshape".split())
"""What stands between a reduction of the scores and the statistic of a row that is made of it."""
SUMS = ("ReduceSum", "ReduceL1")
"""Reductions that weights are divided by; the second is of their sizes."""
_MAX_VALUES_FOLLOWED = 32
"""The search for that reduction stops after this many values."""


def plain(view: GraphView, value: ir.Value | None) -> ir.Value | None:
    """The value behind Identity and casts to a type that holds at least as much."""
    while (node := view.producer(value, "Identity", "Cast")) is not None:
        source = node.inputs[0]
        if op_of(node) == "Cast" and not (source is not None and value is not None and _widens(source, value)):
            break
        value = source
    return value


def _widens(source: ir.Value, target: ir.Value) -> bool:
    if source.dtype not in FLOATS or target.dtype not in FLOATS:
        return False
    return source.dtype == target.dtype or (
        target.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE) and source.dtype != ir.DataType.DOUBLE
    )


def possible_axes(view: GraphView, scores: ir.Value, statistic: ir.Value) -> list[Axes]:
    """What the rows may lie along of which `statistic` is one, the likeliest first: every axis of the scores by itself, and those
    that the nearest reduction is over. Of scores of an unknown rank the last axis alone."""
    rank = max(len(view.shape(scores) or ()), 1)
    together = _reduced_together(view, statistic, rank)
    return [*((-1 - i,) for i in range(rank)), *([together] if len(together) > 1 else [])]


def _reduced_together(view: GraphView, value: ir.Value, rank: int) -> Axes:
    """The axes of a tensor of this rank that the nearest reduction above `value` is over; () where it is not found or not over
    such a tensor."""
    stack = [value]
    for _ in range(_MAX_VALUES_FOLLOWED):
        node = view.producer(stack.pop(0)) if stack else None
        if node is None:
            continue
        if op_of(node).startswith("Reduce"):
            placed = placed_axes(axes_of(view, node), rank)
            return tuple(sorted(i - rank for i in placed)) if placed and _rank(view, node.inputs[0]) == rank else ()
        if op_of(node) in _AROUND_REDUCTIONS:
            stack += [i for i in node.inputs if i is not None]
    return ()


def _rank(view: GraphView, value: ir.Value | None) -> int | None:
    shape = view.shape(value)
    return None if shape is None else len(shape)


def one_per_row(shape: Sequence[Dim | None], axes: Axes = LAST_AXIS) -> bool:
    """Whether a tensor of this shape has one value per row of the scores that it broadcasts to."""
    return all(len(shape) < -axis or shape[axis] == 1 for axis in axes)


def one_per_key(shape: Sequence[Dim | None], axes: Axes = LAST_AXIS) -> bool:
    """Whether a tensor of this shape has the same values for every query."""
    others = [d for i, d in enumerate(shape) if i - len(shape) not in axes]
    return others[-1:] in ([], [1]) if axes in ((-1,), (-2,)) else all(d == 1 for d in others)


def is_column(view: GraphView, value: ir.Value, of: ir.Value, axes: Axes = LAST_AXIS) -> bool:
    """Whether `value` is provably of the shape of `of` with dims of 1 at `axes`."""
    have, want = view.shape(value), view.shape(of)
    if have is None or want is None or None in have or len(want) < max(-axis for axis in axes):
        return False
    return have == tuple(1 if i - len(want) in axes else d for i, d in enumerate(want))


def reduction(view: GraphView, value: ir.Value | None, *kinds: str, axes: Axes = LAST_AXIS) -> ir.Value | None:
    """What is reduced by one of `kinds` along `axes` to give `value`, with these axes kept as ones of size 1: by keepdims, by
    Unsqueeze, by a Reshape, or spread over the row again by Expand."""
    outer = value
    unit = False
    reshaped = False
    while (node := view.producer(value)) is not None and node.inputs and node.inputs[0] is not None:
        if op_of(node) in ("Identity", "Cast"):
            inner = plain(view, value)
            if inner is value:
                return None
            value = inner
        elif op_of(node) == "Expand":
            a, b = view.shape(node.inputs[0]), view.shape(node.outputs[0])
            if a is None or b is None or len(a) != len(b):
                return None
            outer = value = node.inputs[0]
        elif op_of(node) == "Unsqueeze":
            if unit or not view.are_axes(node.outputs[0], axes_of(view, node), axes):
                return None
            unit, value = True, node.inputs[0]
        elif op_of(node) == "Reshape":
            reshaped, value = True, node.inputs[0]
        elif (kept := _above_minus_infinity(view, node)) is not None:
            value = kept
        else:
            break
    if node is None or op_of(node) not in kinds or node.inputs[0] is None or outer is None:
        return None
    source = node.inputs[0]
    if not view.are_axes(source, axes_of(view, node), axes):
        return None
    keeps = attr_int(node, "keepdims", 1) == 1
    if reshaped:
        return source if is_column(view, outer, source, axes) else None
    return source if keeps != unit else None


def _above_minus_infinity(view: GraphView, node: ir.Node) -> ir.Value | None:
    """x of Max(x, -inf), which is x: how JAX gives a maximum of nothing a value."""
    if op_of(node) != "Max" or len(node.inputs) != 2:
        return None
    first, second = node.inputs
    for kept, other in ((first, second), (second, first)):
        if kept is not None and view.scalar(other) == float("-inf"):
            return kept
    return None


def row_max(view: GraphView, value: ir.Value | None, axes: Axes = LAST_AXIS) -> ir.Value | None:
    """x where `value` is max(x) over `axes`, as a column."""
    source = reduction(view, value, "ReduceMax", axes=axes) or _of_more_axes(view, value, axes)
    if source is not None:
        return source
    kept = _beside_nan(view, value, axes)
    if kept is not None:
        return kept
    node = view.producer(value, "Neg")  # -min(-x)
    low = reduction(view, node.inputs[0], "ReduceMin", axes=axes) if node is not None else None
    negated = view.producer(low, "Neg")
    if negated is not None:
        return negated.inputs[0]
    top = view.producer(value, "TopK")
    if top is not None and value is top.outputs[0] and view.scalar(top.inputs[1]) == 1.0:
        over, x = attr_int(top, "axis", -1), top.inputs[0]
        if attr_int(top, "largest", 1) == 1 and x is not None and view.are_axes(x, [over], axes):
            return x
    return None


def _of_more_axes(view: GraphView, value: ir.Value | None, axes: Axes) -> ir.Value | None:
    """x of Squeeze(ReduceMax(Unsqueeze(x))), where an axis is put behind the others and taken away again."""
    dropped = view.producer(plain(view, value), "Squeeze")
    top = view.producer(dropped.inputs[0], "ReduceMax") if dropped is not None else None
    put = view.producer(top.inputs[0], "Unsqueeze") if top is not None else None
    if dropped is None or top is None or put is None or attr_int(top, "keepdims", 1) != 1:
        return None
    shape = view.shape(put.outputs[0])
    placed = [
        None if (named := axes_of(view, n)) is None or shape is None else placed_axes(named, len(shape))
        for n in (dropped, top, put)
    ]
    if shape is None or placed[0] != {len(shape) - 1} or placed[2] != placed[0]:
        return None
    if placed[1] != {len(shape) - 1 + axis for axis in axes}:
        return None
    return put.inputs[0]


def _beside_nan(view: GraphView, value: ir.Value | None, axes: Axes) -> ir.Value | None:
    """x of Where(any(isnan(x)), nan, max(x)): a maximum that is sure to be NaN for a row with one. The row's softmax is NaN
    throughout without that too, since the sum of its exponentials is."""
    node = view.producer(plain(view, value), "Where")
    if node is None or not math.isnan(view.scalar(node.inputs[1]) or 0.0):
        return None
    some = _as_bool(view, reduction(view, _as_bool(view, node.inputs[0]), "ReduceMax", axes=axes))
    cells = view.producer(some, "IsNaN")
    top = node.inputs[2]
    source = reduction(view, top, "ReduceMax", axes=axes) or _of_more_axes(view, top, axes)
    return source if cells is not None and source is not None and _same_score(view, cells.inputs[0], source) else None


def overall_max(view: GraphView, value: ir.Value | None, axes: Axes = LAST_AXIS) -> ir.Value | None:
    """x where `value` is max(x) over `axes` and others, kept as unit axes or all gone."""
    node = view.producer(value, "ReduceMax")
    if node is None or node.inputs[0] is None or attr_int(node, "noop_with_empty_axes", 0):
        return None
    named, shape = axes_of(view, node), view.shape(node.inputs[0])
    if named is None and ("axes" in node.attributes or (len(node.inputs) > 1 and node.inputs[1] is not None)):
        return None
    if shape is None:
        return None
    reduced = placed_axes(named, len(shape)) if named else set(range(len(shape)))
    if reduced is None:
        return None
    kept = attr_int(node, "keepdims", 1) == 1 or len(reduced) == len(shape)
    return node.inputs[0] if kept and {len(shape) + axis for axis in axes} <= reduced else None


def row_sum(view: GraphView, value: ir.Value | None, axes: Axes = LAST_AXIS) -> ir.Value | None:
    """x where `value` is the sum of x over `axes`, as a column."""
    return reduction(view, value, "ReduceSum", axes=axes)


def log_sum_exp(view: GraphView, value: ir.Value | None, axes: Axes = LAST_AXIS, depth: int = 2) -> ir.Value | None:
    """x where `value` is log(sum(exp(x))) over `axes`, as a column, with or without the maximum taken out first: up to `depth`
    times."""
    source = reduction(view, value, "ReduceLogSumExp", axes=axes)
    if source is not None:
        return source
    e = reduction(view, value, "ReduceLogSum", axes=axes)
    if e is None:
        value = plain(view, value)
        log = view.producer(value, "Log")
        e = row_sum(view, log.inputs[0], axes) if log is not None else None
    exp = view.producer(plain(view, e), "Exp") if e is not None else None
    if exp is not None:
        return exp.inputs[0]
    node = view.producer(value, "Add")
    for top, rest in (tuple(node.inputs), tuple(reversed(node.inputs))) if node is not None and depth else ():
        shifted = log_sum_exp(view, rest, axes, depth - 1)
        x = row_max(view, _before_zero(view, top), axes)
        minus = difference(view, shifted)
        if x is None or minus is None or minus[0] is not x:
            continue
        if minus[1] is top or row_max(view, minus[1], axes) is x:
            return x
    return None


def _before_zero(view: GraphView, value: ir.Value | None) -> ir.Value | None:
    """The maximum, where `value` is that, but zero (or NaN) where it is infinite or NaN: so TensorFlow and JAX take it out of a
    log-sum-exp. A row of such a maximum is NaN either way. Other values are given back."""
    where = view.producer(value, "Where")
    if where is not None:
        condition, yes, no = where.inputs
        for top, other, kept in ((yes, no, True), (no, yes, False)):
            if view.scalar(other) == 0.0 and _drops_no_number(view, condition, top, kept):
                return top
    # As tf2onnx writes the choice: m * condition + 0 * !condition
    added = view.producer(value, "Add")
    for chosen, nothing in (added.inputs, added.inputs[::-1]) if added is not None else ():
        times = view.producer(chosen, "Mul")
        if times is None or nothing is None or not is_zero(view, nothing):
            continue
        for top, number in (times.inputs, times.inputs[::-1]):
            cast = view.producer(number, "Cast")
            if cast is not None and _drops_no_number(view, cast.inputs[0], top, True):
                return top
    return value


def _drops_no_number(view: GraphView, condition: ir.Value | None, of: ir.Value | None, kept: bool) -> bool:
    """Whether a condition, on which values are `kept` or else dropped, drops none that is a finite number."""
    while (negated := view.producer(condition, "Not")) is not None:
        condition, kept = negated.inputs[0], not kept
    either = view.producer(condition, "Or")
    tests = [condition] if either is None else either.inputs
    return not kept and all(_is_no_number(view, view.producer(test, "IsInf", "IsNaN", "Equal"), of) for test in tests)


def _is_no_number(view: GraphView, test: ir.Node | None, of: ir.Value | None) -> bool:
    """Whether a test is true only where `of` is infinite or NaN."""
    if test is None or op_of(test) != "Equal":
        return test is not None and test.inputs[0] is of
    for x, bound in (test.inputs, test.inputs[::-1]):
        size = view.producer(x, "Abs")
        if math.isinf(view.scalar(bound) or 0.0) and (x is of or (size is not None and size.inputs[0] is of)):
            return True
    return False


def difference(view: GraphView, value: ir.Value | None) -> tuple[ir.Value, ir.Value] | None:
    """(a, b) where `value` is a - b or a + (-b)."""
    node = view.producer(plain(view, value), "Sub", "Add")
    if node is None or node.inputs[0] is None or node.inputs[1] is None:
        return None
    if op_of(node) == "Sub":
        return node.inputs[0], node.inputs[1]
    for a, b in (tuple(node.inputs), tuple(reversed(node.inputs))):
        negated = view.producer(b, "Neg")
        if negated is not None and negated.inputs[0] is not None and a is not None:
            return a, negated.inputs[0]
    return None


def _keeps_zero(cast: ir.Node) -> bool:
    """Whether 0, and nothing else that is counted, becomes 0 or false."""
    source, target = cast.inputs[0], cast.outputs[0].dtype
    if source is None or source.dtype is None or target is None:
        return False
    if ir.DataType.BOOL in (source.dtype, target) or source.dtype == target:
        return True
    if target in FLOATS:
        return source.dtype not in FLOATS
    return target == ir.DataType.INT64 and source.dtype not in FLOATS


def is_minus_infinity(view: GraphView, value: ir.Value | None, of: ir.Value, axes: Axes = LAST_AXIS) -> bool:
    """Whether `value` says, as a column, which rows of the scores `of` are -inf throughout."""
    node = view.producer(value)
    if node is None:
        return False
    if op_of(node) in ("IsInf", "Equal"):
        return any(_same_score(view, row_max(view, top, axes), of) for top in _compared_to_minus_infinity(view, node))
    if op_of(node) == "Not":
        # not any(score != -inf), as PyTorch's safe softmax has it
        some = _as_bool(view, node.inputs[0])
        different = reduction(view, some, "ReduceMax", "ReduceSum", axes=axes) if some is not None else None
        cells = _as_bool(view, different)
        negated = view.producer(cells, "Not")
        return negated is not None and _cells_minus_infinity(view, negated.inputs[0], of)
    all_of = _as_bool(view, value)
    some = reduction(view, all_of, "ReduceMin", "ReduceProd", axes=axes) if all_of is not None else None
    cells = _as_bool(view, some)
    return cells is not None and _cells_minus_infinity(view, cells, of)


def _as_bool(view: GraphView, value: ir.Value | None) -> ir.Value | None:
    """The value behind casts between bool and numbers, and comparisons of a count with 0."""
    while (node := view.producer(value, "Cast", "Identity", "Greater")) is not None:
        if op_of(node) == "Greater" and view.scalar(node.inputs[1]) != 0.0:
            break
        if op_of(node) == "Cast" and not _keeps_zero(node):
            break
        value = node.inputs[0]
    return value


def _cells_minus_infinity(view: GraphView, value: ir.Value | None, of: ir.Value) -> bool:
    node = view.producer(value, "Equal", "IsInf")
    return node is not None and any(_same_score(view, x, of) for x in _compared_to_minus_infinity(view, node))


def _compared_to_minus_infinity(view: GraphView, node: ir.Node) -> list[ir.Value | None]:
    """What an IsInf or Equal compares with -inf and with nothing else."""
    if op_of(node) == "IsInf":
        negative_only = attr_int(node, "detect_positive", 1) == 0 and attr_int(node, "detect_negative", 1) == 1
        return [node.inputs[0]] if negative_only else []
    a, b = node.inputs
    return [x for x, bound in ((a, b), (b, a)) if view.scalar(bound) == float("-inf")]


def _same_score(view: GraphView, value: ir.Value | None, of: ir.Value) -> bool:
    return value is not None and plain(view, value) is plain(view, of)
