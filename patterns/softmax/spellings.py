"""Anchors: the spellings of a softmax.

Without the maximum taken out, exp(x) / sum(exp(x)) overflows for scores above 88 and vanishes below -104, and then yields NaN.
The rewritten site does not: a NaN that only the spelling made becomes the number that it stands for. Everywhere else the two
are equal. So it is with a sink next to a row of -inf throughout, whose maximum is not kept above the sink: such a row is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.axes import LAST_AXIS, Axes, placed_axis
from onnx_fa.graph.ops import attr_int, op_of
from onnx_fa.graph.view import DTYPES, GraphView
from onnx_fa.match import Anchor, Const, Expr, NoMatch, one_if_zero, reciprocal_of
from onnx_fa.patterns.softmax import rows
from onnx_fa.spec.dtypes import NUMPY

_MAX_FLOOR = -1.7e38
"""Where a model keeps the row maximum above a number, the number may be this at most: the maximum of a row with keys is larger."""

_MAX_LOST_BESIDE_ONE = 2.0**-25
"""Added to a float32 number of at least 1, this changes nothing."""


def find_softmax(view: GraphView, node: ir.Node) -> Anchor | None:
    """The softmax that `node` completes or, for the spelled-out forms, the Exp in its middle; None for any other node.

    Raises NoMatch for a softmax over an axis that cannot be told.
    """
    found = None
    if op_of(node) == "Softmax":
        found = _softmax(view, node)
    elif op_of(node) == "Exp":
        found = _of_log(view, node) or _spelled_out(view, node)
    if found is None:
        return None
    _same_shape(view, found)
    score = found.score
    # The softmax of x - max(x) is that of x: taking the maximum out a second time changes nothing. It does where the sum has one
    # more logit, which stays as it is; a sink that is a column of x is moved with the others.
    while found.sink is None and (minus := rows.difference(view, score)) is not None:
        if rows.row_max(view, minus[1], found.axes) is not minus[0]:
            break
        score = minus[0]
    return _without_column(view, replace(found, score=score))


def _softmax(view: GraphView, node: ir.Node) -> Anchor:
    score = node.inputs[0]
    assert score is not None
    return _over_axis(view, node, score, node.outputs[0], "Softmax")


def _over_axis(view: GraphView, node: ir.Node, score: ir.Value, prob: ir.Value, op: str) -> Anchor:
    # Before opset 13 the default axis is 1 and everything from it on is flattened: the same only if the rest is of size one.
    axis = attr_int(node, "axis", -1 if view.opset >= 13 else 1)
    shape = view.shape(score)
    placed = None if shape is None else placed_axis(axis, len(shape))
    if view.last_axis(node, score, axis):
        return Anchor(node, op, score, prob)
    if view.opset < 13 and shape is not None and placed is not None and all(d == 1 for d in shape[placed:-1]):
        return Anchor(node, op, score, prob)
    turned = _turned(view, node, axis)
    if turned is not None:
        return Anchor(node, op, *turned)
    if shape is None or placed is None:
        raise NoMatch(f"the softmax is over axis {axis}, not over the last one")
    axes = (placed - len(shape),) if view.opset >= 13 else tuple(range(placed - len(shape), 0))
    return Anchor(node, op, score, prob, axes=axes)


def _turned(view: GraphView, node: ir.Node, axis: int) -> tuple[ir.Value, ir.Value] | None:
    """(x, the result) where x is transposed, so that its last axis is `axis`, and the result is transposed back."""
    before, users = view.producer(node.inputs[0], "Transpose"), view.users(node.outputs[0])
    if before is None or len(users) != 1 or node.outputs[0].is_graph_output():
        return None
    after = view.producer(users[0].outputs[0], "Transpose")
    if after is None or "perm" not in before.attributes or "perm" not in after.attributes:
        return None
    perm, back = list(before.attributes["perm"].as_ints()), list(after.attributes["perm"].as_ints())
    if view.opset < 13 or [perm[b] for b in back] != list(range(len(perm))) or perm[axis] != len(perm) - 1:
        return None
    source = before.inputs[0]
    return None if source is None else (source, after.outputs[0])


def _of_log(view: GraphView, exp: ir.Node) -> Anchor | None:
    """Exp(LogSoftmax(x)), or Exp(x - log(sum(exp(x))))."""
    inner = rows.plain(view, exp.inputs[0])
    log = view.producer(inner, "LogSoftmax")
    if log is not None and log.inputs[0] is not None:
        return _over_axis(view, log, log.inputs[0], exp.outputs[0], "LogSoftmax/Exp")
    minus = rows.difference(view, inner)
    if minus is None:
        return None
    for axes in rows.possible_axes(view, *minus):
        if rows.log_sum_exp(view, minus[1], axes) is minus[0]:
            return Anchor(exp, "LogSumExp/Sub/Exp", minus[0], exp.outputs[0], axes=axes, by_log=True)
    return None


@dataclass(frozen=True)
class _Shift:
    """What is subtracted from the score before Exp: its row maximum (`top`), kept above `others`."""

    top: ir.Value | None
    others: tuple[ir.Value, ...] = ()
    of_row: bool = True

    @property
    def at_least_one(self) -> bool:
        """Whether the sum of the exponentials certainly holds exp(0); with a maximum over several rows it may be tiny."""
        return self.top is not None and self.of_row and not self.others


def _spelled_out(view: GraphView, exp: ir.Node) -> Anchor | None:
    """Exp(x - max(x)), divided by its sum at once, or only after the matmul with V (deferred)."""
    inner = exp.inputs[0]
    if inner is None:
        return None
    e = exp.outputs[0]
    inside: list[ir.Node] = []
    axes, total = _sum_of(view, e, inside)
    score, shift = _shifted(view, inner, axes)
    if total is None:
        if any(_is_masked_and_divided(view, u, e) for u in view.users(e)):
            return Anchor(exp, "Exp/Mul/ReduceSum/Div", score, e, unscaled=True)
        if _looks_divided(view, e):
            raise NoMatch("exponentials before a matmul are divided by something else than their sum over one axis")
        return None
    floored = any((view.scalar(x) or 0.0) <= _MAX_FLOOR for x in shift.others)
    mass = total
    sinks: list[Expr] = []
    logits: list[ir.Value] = []
    names = "/".join([*(["ReduceMax", "Sub"] if shift.top is not None else []), "Exp", "ReduceSum"])
    while True:
        safe = one_if_zero(view, total) if floored else total
        prob = None if safe is None else _quotient(view, e, safe)
        if prob is not None or _divides(view, total):
            break
        step = _more_sum(view, total, e, shift)
        if step is None:
            break
        total, logit = step
        if logit is not None:
            sinks.append(logit)
            logits += [logit] if isinstance(logit, ir.Value) else []
    if len(sinks) > 1:
        raise NoMatch("the sum of exponentials has more than one further term")
    for other in shift.others:
        number = view.scalar(other)
        if number is not None and (number <= _MAX_FLOOR or (sinks and _number(view, sinks[0]) == number)):
            continue
        if other in logits:
            continue
        raise NoMatch("the row maximum is kept above a value that is no sink")
    sink = sinks[0] if sinks else None
    # Kept above a floor the maximum is another one only in rows without keys, whose sum is 0 then, as the spec's statistic.
    own = mass if shift.top is not None and shift.of_row and sink is None and (floored or not shift.others) else None
    if prob is not None:
        producer = prob.producer()
        assert producer is not None
        return Anchor(producer, f"{names}/Div", score, prob, floored=floored, sink=sink, axes=axes, mass=own)
    readers = [u for u in view.users(e) if u not in inside]
    if not readers and not e.is_graph_output():
        return None  # part of a log-sum-exp
    names = f"{names}/MatMul/Div"
    return Anchor(
        exp, names, score, e, row_sum=total, floored=floored, sink=sink, inside=tuple(inside), axes=axes, mass=own
    )


def _shifted(view: GraphView, inner: ir.Value, axes: Axes) -> tuple[ir.Value, _Shift]:
    minus = rows.difference(view, inner)
    if minus is None:
        return inner, _Shift(None)
    score, shift = minus
    parts = _maxima(view, shift)
    for part in parts:
        of_row = rows.row_max(view, part, axes)
        source = of_row or rows.overall_max(view, part, axes)
        if source is not None and rows.plain(view, source) is rows.plain(view, score):
            return score, _Shift(shift, tuple(p for p in parts if p is not part), of_row is not None)
    return inner, _Shift(None)


def _maxima(view: GraphView, value: ir.Value) -> list[ir.Value]:
    """The arguments of nested Max nodes and Clip nodes without an upper bound."""
    found: list[ir.Value] = []
    stack, seen = [value], {value}
    while stack:
        top = stack.pop()
        node = view.producer(top, "Max", "Identity", "Clip")
        bounded = node is not None and (len(node.inputs) < 2 or any(i is not None for i in node.inputs[2:]))
        if node is None or (op_of(node) == "Clip" and (view.opset < 11 or bounded)):
            found.append(top)
            continue
        above = [i for i in dict.fromkeys(node.inputs) if i is not None and i not in seen]
        seen.update(above)
        stack += reversed(above)
    return found


def _sum_of(view: GraphView, e: ir.Value, inside: list[ir.Node]) -> tuple[Axes, ir.Value | None]:
    """Axes, and the sum of `e` over them, as a column. Nodes that read `e` for it are added to `inside`."""
    for user in view.users(e):
        if op_of(user) not in ("ReduceSum", "Cast"):
            continue
        value = user.outputs[0]
        while True:  # forward through what keeps the sum
            for axes in rows.possible_axes(view, e, value):
                summed = rows.row_sum(view, value, axes)
                if summed is not None and rows.plain(view, summed) is e:
                    inside.append(user)
                    return axes, value
            readers = view.users(value)
            if len(readers) != 1 or op_of(readers[0]) not in ("Unsqueeze", "Reshape", "ReduceSum", "Identity"):
                break
            value = readers[0].outputs[0]
    return LAST_AXIS, None


def _more_sum(view: GraphView, total: ir.Value, e: ir.Value, shift: _Shift) -> tuple[ir.Value, Expr | None] | None:
    """One step on from the row sum: (the sum with a term added, the logit that the term stands for), or (a node that leaves the sum
    as it is, None)."""
    for user in view.users(total):
        node = view.producer(user.outputs[0], "Add", "Sum", "Max", "Clip", "Identity", "Cast", "Expand")
        if node is None or len(node.inputs) > 2:
            continue
        out = node.outputs[0]
        if op_of(node) in ("Identity", "Cast", "Expand"):
            if node.inputs[0] is total and _keeps_sum(view, node):
                return out, None
            continue
        if len(node.inputs) != 2:
            continue
        other = node.inputs[1] if node.inputs[0] is total else node.inputs[0]
        if other is None or other is total:
            continue
        number = view.scalar(other)
        if op_of(node) in ("Max", "Clip"):
            # A sum of exponentials that holds exp(0) is at least 1.
            if number is not None and number <= 1.0 and shift.at_least_one:
                return out, None
            continue
        if number is not None and shift.at_least_one and 0 <= number <= _MAX_LOST_BESIDE_ONE:
            if out.dtype != ir.DataType.DOUBLE:
                return out, None
            continue
        logit = _logit(view, other, number, shift)
        if logit is not None:
            return out, logit
    return None


def _keeps_sum(view: GraphView, node: ir.Node) -> bool:
    """Whether Identity, Cast or Expand leaves a row sum as it is."""
    source, out = node.inputs[0], node.outputs[0]
    if op_of(node) == "Expand":
        a, b = view.shape(source), view.shape(out)
        return a is not None and b is not None and len(a) == len(b)
    return rows.plain(view, out) is not out


def _logit(view: GraphView, term: ir.Value, number: float | None, shift: _Shift) -> Expr | None:
    """The x whose exponential, shifted as the scores are, is added to the sum."""
    dtype = NUMPY[DTYPES[term.dtype]] if term.dtype in DTYPES and term.dtype is not None else np.float32
    if shift.top is None and number is not None:
        return Const(np.asarray(math.log(number), dtype)) if number > 0 else None
    exp = view.producer(term, "Exp")
    if exp is None:
        return None
    if shift.top is None:
        return exp.inputs[0]
    negated = view.producer(exp.inputs[0], "Neg")
    if negated is not None and negated.inputs[0] is shift.top:
        return Const(np.asarray(0, dtype))
    minus = rows.difference(view, exp.inputs[0])
    if minus is not None and minus[1] is shift.top:
        return minus[0]
    return None


def _number(view: GraphView, logit: Expr) -> float | None:
    if isinstance(logit, Const):
        return float(logit.array) if logit.array.size == 1 else None
    return view.scalar(logit) if isinstance(logit, ir.Value) else None


def _quotient(view: GraphView, e: ir.Value, total: ir.Value) -> ir.Value | None:
    """e / total, if that is computed."""
    for user in view.users(e):
        if view.producer(user.outputs[0], "Div") is not None and user.inputs[0] is e and user.inputs[1] is total:
            return user.outputs[0]
        if view.producer(user.outputs[0], "Mul") is not None:
            other = user.inputs[1] if user.inputs[0] is e else user.inputs[0]
            if other is not None and reciprocal_of(view, other) is total:
                return user.outputs[0]
    return None


def _is_masked_and_divided(view: GraphView, node: ir.Node, e: ir.Value) -> bool:
    """Whether exponentials are masked before they are summed and divided by the sum."""
    masked = node.outputs[0]
    if view.producer(masked, "Mul", "Where") is None or len(view.users(e)) != 1:
        return False
    users = [op_of(u) for u in view.users(masked)]
    return sorted(users) in (["Div", "ReduceSum"], ["Mul", "ReduceSum"])


def _looks_divided(view: GraphView, e: ir.Value) -> bool:
    """Whether e, divided by something, is the left operand of a matmul."""
    quotients = [u.outputs[0] for u in view.users(e) if op_of(u) == "Div" and u.inputs[0] is e]
    return any(op_of(m) == "MatMul" and m.inputs[0] is p for p in quotients for m in view.users(p))


def _divides(view: GraphView, total: ir.Value) -> bool:
    """Whether something is divided by the sum as it is."""
    return any(
        (op_of(u) == "Div" and u.inputs[1] is total) or reciprocal_of(view, u.outputs[0]) is total
        for u in view.users(total)
    )


def _same_shape(view: GraphView, found: Anchor) -> None:
    have, want = view.shape(found.prob), view.shape(found.score)
    if have is not None and want is not None and len(have) != len(want):
        raise NoMatch("the softmax broadcasts its result to more dims than the score has")


def _without_column(view: GraphView, found: Anchor) -> Anchor:
    """Takes a sink that is one more column of the score off it."""
    node = view.producer(rows.plain(view, found.score), "Concat")
    if node is None or len(node.inputs) != 2 or node.inputs[0] is None or node.inputs[1] is None:
        return found
    if found.axes != LAST_AXIS or not view.last_axis(node, node.outputs[0], attr_int(node, "axis", 0)):
        return found
    first, last = (view.shape(i) for i in node.inputs)
    if last is not None and last[-1:] == (1,) and not _has_matmul(view, node.inputs[1]):
        score, sink, column = node.inputs[0], node.inputs[1], "last"
    elif first is not None and first[-1:] == (1,) and not _has_matmul(view, node.inputs[0]):
        score, sink, column = node.inputs[1], node.inputs[0], "first"
    else:
        return found
    if found.sink is not None:
        raise NoMatch("two sinks")
    spread = view.producer(sink, "Expand")
    if spread is not None and spread.inputs[0] is not None:
        sink = _narrow(view, spread.inputs[0], sink)
    return replace(found, score=score, sink=sink, column=column)  # type: ignore[arg-type]


def _narrow(view: GraphView, small: ir.Value, spread: ir.Value) -> ir.Value:
    """The value before Expand, if the score's own broadcast does what Expand does."""
    a, b = view.shape(small), view.shape(spread)
    if a is None or b is None or len(a) > len(b):
        return spread
    fits = all(x in (1, y) and x is not None for x, y in zip(reversed(a), reversed(b), strict=False))
    return small if fits else spread


def _has_matmul(view: GraphView, value: ir.Value) -> bool:
    """Whether a column of width one is itself a product of Q and one key, and not a sink."""
    node = view.producer(value)
    for _ in range(4):
        if node is None:
            return False
        if op_of(node) == "MatMul":
            return True
        if op_of(node) not in ("Mul", "Div", "Add", "Identity", "Cast"):
            return False
        node = view.producer(node.inputs[0])
    return False
