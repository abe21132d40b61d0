"""After the softmax: what is done about rows without keys, whose probabilities are NaN.

`Where(IsNaN(p), 0, p)` in its spellings is a guard; so is `Where(row is -inf throughout, 0, p)`. Any other condition with one value
per row may as well choose between zero and the row of the output. A condition per key must be the score's own mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.ops import DEQUANTIZE, op_of
from onnx_fa.graph.view import DTYPES, GraphView
from onnx_fa.match import After, Anchor, Call, Const, Expr, NoMatch, Select
from onnx_fa.patterns.quant.rounding import read_rounding
from onnx_fa.patterns.score.passthrough import is_filled_with_zero
from onnx_fa.patterns.softmax import rows
from onnx_fa.spec.dtypes import NUMPY

Test = Literal["nan", "number", "never"]
"""What is asked of a probability, which is a number from 0 to 1 or NaN."""


def read_guard(view: GraphView, anchor: Anchor, value: ir.Value, users: Sequence[ir.Node]) -> After | None:
    """Where(test, 0, p) or Where(test, p, 0), when nothing but tests reads the probabilities besides."""
    wheres = [u for u in users if view.producer(u.outputs[0], "Where") is not None and value in u.inputs[1:]]
    if len(wheres) != 1 or not all(u is wheres[0] or _is_test(view, u, value) for u in users):
        return None
    cond, yes, no = wheres[0].inputs
    if cond is None or yes is None or no is None or yes is no:
        return None
    out, other, keeps = wheres[0].outputs[0], no if yes is value else yes, yes is value
    levels = [(cond, keeps)]  # the condition and what it negates, and whether probabilities are kept where it is true
    while (negated := view.producer(levels[-1][0], "Not")) is not None and negated.inputs[0] is not None:
        levels.append((negated.inputs[0], not levels[-1][1]))
    test, keeps = levels[-1]
    kind = _test(view, test, (value, anchor.prob)) if _is_probability(view, anchor, value) else None
    if _is_rounded(view, value) and (asked := _test(view, test, (value,))) in ("nan", "number"):
        # What was an integer is a number, whatever it was before.
        kind, keeps = ("never", keeps) if asked == "nan" else ("never", not keeps)
    if not _broadcasts(view, other, value):
        return None
    if kind == "never" and not keeps:
        return After(out)
    if not is_filled_with_zero(view, other):
        return None
    if kind is not None:
        return After(out, guard="guarded") if keeps == (kind == "number") else None
    if len(users) != 1:
        return None
    if any(not k and rows.is_minus_infinity(view, c, anchor.score, anchor.axes) for c, k in levels):
        return After(out, guard="zero")
    return _by_mask(view, anchor, value, test, keeps, out)


def _by_mask(
    view: GraphView, anchor: Anchor, value: ir.Value, test: ir.Value, keeps: bool, out: ir.Value
) -> After | None:
    shape, score = view.shape(test), view.shape(value)
    made = anchor.score.producer()
    if shape is None or score is None or not _no_wider(view, test, value):
        return None
    if made is not None and view.depends(test, made):
        raise NoMatch("probabilities are set to zero by a condition on the scores", test.producer())
    if rows.one_per_row(shape, anchor.axes):
        if anchor.row_sum is not None and not anchor.floored:
            raise NoMatch(
                "rows of exponentials are set to zero, and the sum that divides the product with V is not",
                test.producer(),
            )
        return After(out, rows=_choose(test, keeps, value))
    return After(out, drop=Select(test, not keeps, 0.0))


def _choose(test: ir.Value, keeps: bool, value: ir.Value) -> Callable[[Expr], Expr]:
    zero = Const(np.asarray(0, NUMPY[DTYPES[value.dtype or ir.DataType.FLOAT]]))
    return lambda row: Call("Where", (test, row, zero) if keeps else (test, zero, row))


def _no_wider(view: GraphView, value: ir.Value, than: ir.Value) -> bool:
    a, b = view.shape(value), view.shape(than)
    return a is not None and b is not None and len(a) <= len(b)


def _broadcasts(view: GraphView, value: ir.Value, to: ir.Value) -> bool:
    a, b = view.shape(value), view.shape(to)
    if a is None or b is None or len(a) > len(b):
        return False
    return all(x == 1 or (x is not None and x == y) for x, y in zip(reversed(a), reversed(b), strict=False))


def _is_probability(view: GraphView, anchor: Anchor, value: ir.Value) -> bool:
    """Whether nothing but casts, guards and the like lies between the softmax and `value`: it is from 0 to 1, or NaN."""
    for _ in range(8):
        if value is anchor.prob:
            return anchor.row_sum is None and not anchor.unscaled and anchor.weight is None
        # Of the ops that move elements, those that models have there: any other ends the search.
        node = view.producer(value, "Cast", "Identity", "Dropout", "Where", "Reshape", "Transpose", "Slice")
        inner = None if node is None else node.inputs[0]
        if node is not None and op_of(node) == "Where":
            inner = next((i for i in node.inputs[1:] if i is not None and view.const(i) is None), None)
        if inner is None:
            return False
        value = inner
    return False


def _is_rounded(view: GraphView, value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and op_of(node) in DEQUANTIZE and read_rounding(view, node) is not None


def _is_test(view: GraphView, node: ir.Node, value: ir.Value) -> bool:
    """Whether a reader of the probabilities only asks for NaN or infinity, and only Where (or Not) reads the answer."""
    answer = node.outputs[0]
    if _test(view, answer, (value,)) is None or answer.is_graph_output():
        return False
    readers = view.users(answer)
    readers += [r for n in readers if op_of(n) == "Not" for r in view.users(n.outputs[0])]
    return all(op_of(r) in ("Where", "Not") for r in readers)


def _test(view: GraphView, value: ir.Value, of: Sequence[ir.Value]) -> Test | None:
    node = view.producer(value, "IsNaN", "IsInf", "Equal")
    if node is None or not any(i is x for i in node.inputs for x in of):
        return None
    if op_of(node) != "Equal":
        return "nan" if op_of(node) == "IsNaN" else "never"
    if node.inputs[0] is node.inputs[1]:
        return "number"
    numbers = [n for i in node.inputs if (n := view.scalar(i)) is not None]
    return "never" if any(math.isinf(n) for n in numbers) else None
