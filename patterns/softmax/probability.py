"""After the softmax: factors on the probabilities, and masks that are multiplied in and divided out again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.axes import OPEN_END
from onnx_fa.graph.ops import attr_int, op_of
from onnx_fa.graph.view import FLOATS, GraphView
from onnx_fa.match import After, Anchor, Call, NoMatch, Select, positive_or, reciprocal_of
from onnx_fa.patterns.softmax import rows


def cut_sink(view: GraphView, anchor: Anchor, value: ir.Value, users: Sequence[ir.Node]) -> After | None:
    """Slice or Split that leaves out the sink's column, and only that. Raises NoMatch where it leaves out another one."""
    if len(users) != 1 or not anchor.column:
        return None
    node = view.producer(users[0].outputs[0], "Slice", "Split")
    shape = view.shape(value)
    if node is None or shape is None:
        return None
    if op_of(node) == "Split":
        return _split_off(view, anchor, node, len(shape))
    if view.opset < 10:
        return None
    start, end = (view.const(i) for i in node.inputs[1:3])
    listed = view.const(node.inputs[3]) if len(node.inputs) > 3 else None
    axes = None if listed is None else [int(a) for a in listed.reshape(-1)]
    step = view.scalar(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] is not None else 1.0
    if start is None or end is None or start.size != 1 or end.size != 1 or step != 1.0:
        return None
    if axes is None or len(axes) != 1 or axes[0] not in (-1, len(shape) - 1):
        return None
    first, last, width = int(start.reshape(-1)[0]), int(end.reshape(-1)[0]), shape[-1]
    if anchor.column == "last":
        exact = first == 0 and (last == -1 or (isinstance(width, int) and last == width - 1))
    else:
        exact = first == 1 and (last >= OPEN_END or (isinstance(width, int) and last >= width))
    if not exact:
        raise NoMatch(f"a slice [{first}:{last}] of the probabilities does not cut off just the sink's column", node)
    return After(node.outputs[0], cut=True)


def _split_off(view: GraphView, anchor: Anchor, node: ir.Node, rank: int) -> After | None:
    sizes = view.const(node.inputs[1]) if len(node.inputs) > 1 else None
    if len(node.outputs) != 2 or attr_int(node, "axis", 0) not in (-1, rank - 1) or sizes is None or sizes.size != 2:
        return None
    keep, drop = (0, 1) if anchor.column == "last" else (1, 0)
    if node.outputs[drop].uses() or node.outputs[drop].is_graph_output():
        raise NoMatch("the probability of the sink is used", node)
    if int(sizes.reshape(-1)[drop]) != 1:
        raise NoMatch("a split of the probabilities does not cut off just the sink's column", node)
    return After(node.outputs[keep], cut=True)


def move_factor(view: GraphView, anchor: Anchor, value: ir.Value, users: Sequence[ir.Node]) -> After | None:
    """p * f and p / f where f has one value per row (moved to the output), per key (moved to V) or per both (kept)."""
    if len(users) != 1 or _divided_anew(view, anchor, users[0].outputs[0]) is not None:
        return None
    node = view.producer(users[0].outputs[0], "Mul", "Div")
    if node is None or node.inputs[0] is node.inputs[1]:
        return None
    other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
    if other is None or (op_of(node) == "Div" and node.inputs[0] is not value):
        return None
    shape, score = view.shape(other), view.shape(value)
    if shape is None or score is None or len(shape) > len(score):
        return None
    made = anchor.score.producer()
    if made is not None and view.depends(other, made):
        raise NoMatch("a factor on the probabilities is computed from the scores", node)
    number = view.const(other)
    if anchor.weight is not None and op_of(node) == "Mul" and not rows.one_per_row(shape, anchor.axes):
        _check_unsummed(view, node.outputs[0])
    if number is not None and not (np.isfinite(number).all() and (op_of(node) == "Mul" or number.all())):
        raise NoMatch("the probabilities times infinity or NaN are no factor times what V makes of them", node)
    if rows.one_per_row(shape, anchor.axes):
        op = op_of(node)
        return After(node.outputs[0], rows=lambda row: Call(op, (row, other)))
    if rows.one_per_key(shape, anchor.axes) and op_of(node) == "Mul":
        return After(node.outputs[0], keys=other)
    if op_of(node) == "Mul":
        return After(node.outputs[0], weights=other)
    raise NoMatch("the probabilities are divided by a tensor with values per query and key", node)


def _check_unsummed(view: GraphView, weights: ir.Value) -> None:
    """Raises NoMatch where weights are divided by their sum behind a factor of theirs."""
    total = next((u for u in view.users(weights) if op_of(u) in rows.SUMS), None)
    if total is not None:
        raise NoMatch("weights are multiplied by values that are not provably 0 or 1, and divided by their sum", total)


def divide_anew(view: GraphView, anchor: Anchor, value: ir.Value, users: Sequence[ir.Node]) -> After | None:
    """p * m / sum(p * m), or the same with Where(m, p, 0): the softmax over the keys that m keeps."""
    if len(users) != 1 or anchor.weight is not None:
        return None
    node = view.producer(users[0].outputs[0], "Mul", "Where")
    if node is None:
        return None
    divided = _divided_anew(view, anchor, node.outputs[0])
    keep = None if divided is None else _kept(view, node, value)
    if divided is None or keep is None:
        return None
    guarded = _guarded_quotient(view, divided)
    if guarded is None:
        return After(divided, step=Select(*keep, float("-inf")))
    made = anchor.score.producer()
    if made is not None and view.depends(keep[0], made):
        raise NoMatch("probabilities are masked by a condition on the scores, and divided anew", node)
    return After(guarded, drop=Select(*keep, 0.0), guard="guarded", renormalised=True)


def _kept(view: GraphView, node: ir.Node, value: ir.Value) -> tuple[ir.Value, bool] | None:
    """(condition, inverted) on which a Mul or Where keeps `value`; elsewhere it makes zero. Raises NoMatch for other factors."""
    if op_of(node) == "Mul":
        other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
        keep = zero_or_one(view, other) if other is not None else None
        if keep is None:
            raise NoMatch("probabilities are multiplied by values that are not provably 0 or 1, and divided anew", node)
        return keep
    cond, yes, no = node.inputs
    if cond is None or cond is value:
        return None
    for p, zero, inverted in ((yes, no, False), (no, yes, True)):
        if p is value and view.scalar(zero) == 0.0:
            return cond, inverted
    return None


def _guarded_quotient(view: GraphView, quotient: ir.Value) -> ir.Value | None:
    """The result of Where(sum > 0, x / Where(sum > 0, sum, 1), 0), given the quotient, which nothing else reads.

    It is not a mask on the scores: the maximum, of which all probabilities are exponentials, is that of all keys. Where a key that
    is not kept has a score so large that those of the kept keys are zero beside it, the row is zero, and not their softmax.
    """
    node = view.producer(quotient, "Div")
    where = view.producer(node.inputs[1], "Where") if node is not None else None
    total = None if where is None else where.inputs[1]
    if total is None or quotient.is_graph_output() or len(view.users(quotient)) != 1:
        return None
    return positive_or(view, quotient, total, 0.0)


def _divided_anew(view: GraphView, anchor: Anchor, masked: ir.Value) -> ir.Value | None:
    """masked / sum(masked), if that is computed and nothing else is made of `masked`: the quotient. The sum may be one where it is
    not positive, if the quotient becomes zero there. Raises NoMatch if the sum is changed in any other way."""
    users = view.users(masked)
    sums = [u for u in users if op_of(u) == "ReduceSum"]
    rest = [u for u in users if u not in sums]
    if len(sums) != 1 or len(rest) != 1 or masked.is_graph_output():
        return None
    node = rest[0]
    by: ir.Value | None = None
    if view.producer(node.outputs[0], "Div") is not None and node.inputs[0] is masked:
        by = node.inputs[1]
    elif view.producer(node.outputs[0], "Mul") is not None:
        by = reciprocal_of(view, node.inputs[1] if node.inputs[0] is masked else node.inputs[0])
    if by is None:
        return None
    if rows.row_sum(view, by, anchor.axes) is masked:
        return node.outputs[0]
    where = view.producer(by, "Where")
    if where is not None and rows.row_sum(view, where.inputs[1], anchor.axes) is masked:
        total = where.inputs[1]
        if total is not None and positive_or(view, total, total, 1.0) is by:
            if _guarded_quotient(view, node.outputs[0]) is not None:
                return node.outputs[0]
            why = (
                "masked probabilities are divided by their sum, or by one where that is zero, and rows of NaN stay NaN"
            )
            raise NoMatch(why, node)
    raise NoMatch("masked probabilities are divided by something else than their sum over the keys", node)


def zero_or_one(view: GraphView, value: ir.Value) -> tuple[ir.Value, bool] | None:
    """(condition, inverted) where `value` is 1 for true (false, if inverted) and 0 otherwise."""
    inverted = False
    while (node := view.producer(value, "Cast", "Sub", "Where")) is not None:
        source = node.inputs[0]
        if op_of(node) == "Where" and source is not None:
            pair = (view.scalar(node.inputs[1]), view.scalar(node.inputs[2]))
            return (source, inverted != (pair == (0.0, 1.0))) if pair in ((1.0, 0.0), (0.0, 1.0)) else None
        if op_of(node) == "Sub":
            if view.scalar(source) != 1.0:
                return None
            source, inverted = node.inputs[1], not inverted
        elif source is not None and source.dtype == ir.DataType.BOOL:
            return source, inverted
        elif value.dtype not in FLOATS:
            return None
        if source is None:
            return None
        value = source
    return None
