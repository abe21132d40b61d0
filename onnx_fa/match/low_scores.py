"""Finds out how low masks can push the scores of a row. That matters where the model reads the row's maximum or log-sum-exp, or
makes its probabilities from the log-sum-exp.

A kernel works in units of log2 and so tells no finite statistic below LOWEST_STAT from the lowest f32 (`AttentionSpec.stats`). The
two agree where what masks make of a score is either a number above that or the lowest f32 itself; anything between is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.moves import MOVES
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import Array, GraphView
from onnx_fa.match.exprs import Call, Const, Expr
from onnx_fa.match.misses import NoMatch
from onnx_fa.spec.attention import LOWEST_STAT, AttentionSpec
from onnx_fa.spec.dtypes import F16_MAX, F32_MAX
from onnx_fa.spec.expr import SCORE, Apply, Bool, Float, Int, Length, Position, Score, ScoreExpr, Tensor, leaves
from onnx_fa.spec.terms import Causal, Elementwise, IndexMask, MaskTerm, TensorArg, term_expression, term_tensors

LOWEST = -F32_MAX
_MAX_VANISHING = 1e30
"""The lowest f32 stays the same when a number up to this is added: half of its last digit is more."""
_MAX_INTEGER = 2.0**63
_KEEPS_NUMBERS = MOVES | {"Cast"}
"""Ops whose result holds numbers of their first operand, converted at the most."""


@dataclass(frozen=True)
class Values:
    """The finite numbers that something can be: from `low` to `high`, and with `lowest` also the lowest f32."""

    low: float
    high: float
    lowest: bool = False

    def __or__(self, other: Values) -> Values:
        return Values(min(self.low, other.low), max(self.high, other.high), self.lowest or other.lowest)


SCORES = Values(-1e12, 1e12)
"""What a product of Q and K can be. A model does not compute with scores beyond that."""
ANYTHING = Values(-math.inf, math.inf)
_MIN_MASKING_NUMBER: dict[ir.DataType | None, float] = {ir.DataType.FLOAT16: 2.0**9, ir.DataType.BFLOAT16: 2.0**6}
"""A number of this size or above masks scores when it is added or subtracted: log(2) is lost beside it in f16 and bf16."""
_MIN_MASKING_NUMBER_F32 = 1e4
"""The same for every other type."""


def check_low_scores(view: GraphView, spec: AttentionSpec, operands: Sequence[Expr], node: ir.Node | None) -> None:
    """Raises NoMatch, at `node`, where masks may make a row's largest score finite, below LOWEST_STAT, and not the lowest f32."""
    if spec.dtype == "f64":
        return  # no kernel computes it
    scores, rest = SCORES, iter(operands[3:])
    for term in spec.masks:
        tensors = [_of_tensor(view, next(rest), t) for t in term_tensors(term)]
        scores = _evaluate(_expression(term), scores, tensors)
        if scores.low == -math.inf:
            raise NoMatch("a row statistic of scores to which a mask adds numbers that are not known", node)
        if scores.low < LOWEST_STAT:
            raise NoMatch(f"a row statistic of scores that a mask can make as low as {scores.low:g}", node)


def check_whole_rows(view: GraphView, spec: AttentionSpec, operands: Sequence[Expr], node: ir.Node) -> None:
    """Raises NoMatch, at `node`, where a finite number may mask every key of a row, for a model whose probabilities are
    exp(score - log-sum-exp): the log-sum-exp of such a row has lost log(Skv), so that each of its probabilities is 1."""
    if all(_keeps_first_key(m) for m in spec.masks):
        return
    kind = node.inputs[0].dtype if node.inputs[0] is not None else None
    large = _MIN_MASKING_NUMBER.get(kind, _MIN_MASKING_NUMBER_F32)
    rest = iter(operands[3:])
    for term in spec.masks:
        tensors = [(t, next(rest)) for t in term_tensors(term)]
        numbers = [_of_operand(view, operand) for t, operand in tensors if t.kind == "float"]
        if any(x.lowest or x.low <= -large or x.high >= large for x in numbers):
            raise NoMatch("probabilities by a log-sum-exp of scores to which a mask may add very low numbers", node)
        fills = [leaf.value for leaf in leaves(_expression(term)) if isinstance(leaf, Float)]
        if any(math.isfinite(fill) and abs(fill) >= large for fill in fills):
            raise NoMatch(
                f"probabilities by a log-sum-exp are 1 each in a row that {min(fills):g} masks throughout", node
            )


def _keeps_first_key(term: MaskTerm) -> bool:
    """Whether a mask is causal, so that every query sees key 0."""
    if isinstance(term, Causal):
        return isinstance(term.offset, int) and term.offset >= 0
    match term:
        case Elementwise(Apply("Where", (Apply("LessOrEqual", (Position("k"), Position("q"))), Score(), Float()))):
            return True
    return False


def _expression(term: MaskTerm) -> ScoreExpr:
    return Apply("Where", Bool(True), SCORE, Float(term.fill)) if isinstance(term, IndexMask) else term_expression(term)


def _of_numbers(numbers: Array) -> Values:
    finite = numbers[np.isfinite(numbers)].astype(np.float64) if numbers.dtype.kind != "b" else numbers.astype(float)
    ordinary = finite[finite > LOWEST]
    low, high = (float(ordinary.min()), float(ordinary.max())) if ordinary.size else (0.0, 0.0)
    return Values(low, high, ordinary.size < finite.size)


def _of_tensor(view: GraphView, operand: Expr, tensor: TensorArg) -> Values:
    if tensor.kind == "float":
        return _of_operand(view, operand)
    return Values(0, 1) if tensor.kind == "bool" else Values(-_MAX_INTEGER, _MAX_INTEGER)


def _of_operand(view: GraphView, e: Expr | None, depth: int = 8) -> Values:
    """What a tensor can hold: from constants, types, and the ops on them."""
    if isinstance(e, Const):
        return _of_numbers(e.array)
    if isinstance(e, Call):
        op, args = e.op, e.args
    else:
        known = view.const(e)
        if known is not None:
            return _of_numbers(known)
        node = view.producer(e)
        found = _of_type(e.dtype if e is not None else None)
        if found is not None or node is None or e is None or depth == 0:
            return found or ANYTHING
        op, args = op_of(node), tuple(i for i in node.inputs if i is not None)
    if op == "Concat":
        parts = [_of_operand(view, a, depth - 1) for a in args]
        return _union(parts)
    if op in _KEEPS_NUMBERS:
        return _of_operand(view, args[0], depth - 1)
    if op == "Where":
        return _of_operand(view, args[1], depth - 1) | _of_operand(view, args[2], depth - 1)
    if len(args) > 2:
        return ANYTHING
    return _apply(op, [_of_operand(view, a, depth - 1) for a in args])


def _union(parts: Sequence[Values]) -> Values:
    result = parts[0]
    for part in parts[1:]:
        result = result | part
    return result


def _of_type(dtype: ir.DataType | None) -> Values | None:
    if dtype == ir.DataType.BOOL:
        return Values(0, 1)
    if dtype == ir.DataType.FLOAT16:
        return Values(-F16_MAX, F16_MAX)
    return Values(-_MAX_INTEGER, _MAX_INTEGER) if dtype is not None and dtype.is_integer() else None


def _evaluate(expr: ScoreExpr, score: Values, tensors: Sequence[Values]) -> Values:
    match expr:
        case Score():
            return score
        case Tensor(n):
            return tensors[n]
        case Float(value) | Int(value):
            return _of_numbers(np.asarray([value]))
        case Apply("Where", (_, a, b)):
            return _evaluate(a, score, tensors) | _evaluate(b, score, tensors)
        case Apply("ToFloat", (a,)):
            return _evaluate(a, score, tensors)
        case Position() | Length():
            return Values(0, 2.0**31)
        case Apply("And" | "Or" | "Xor" | "Not" | "IsNaN" | "Equal" | "Less" | "LessOrEqual"):
            return Values(0, 1)
        case Bool() | Apply("Greater" | "GreaterOrEqual" | "ToBool"):
            return Values(0, 1)
        case Apply(op, args):
            return _apply(op, [_evaluate(a, score, tensors) for a in args])
    raise AssertionError(expr)


def _add(a: Values, b: Values) -> Values:
    for x, other in ((a, b), (b, a)):
        if x.lowest and (other.lowest or max(-other.low, other.high) > _MAX_VANISHING):
            return Values(2 * LOWEST + min(other.low, 0.0), math.inf)
    return Values(a.low + b.low, a.high + b.high, a.lowest or b.lowest)


def _multiply(a: Values, b: Values) -> Values:
    products = [0.0 if 0 in (x, y) else x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return Values(min(products), max(products))


_ARITHMETIC: Mapping[str, Callable[..., Values]] = {
    "Add": _add,
    "Sub": lambda a, b: _add(a, Values(-b.high, -b.low)),
    "Mul": _multiply,
    "Neg": lambda a: Values(-a.high, -a.low),
    "Abs": lambda a: Values(0.0, max(-a.low, a.high)),
    "Relu": lambda a: Values(max(a.low, 0.0), max(a.high, 0.0)),
    "Min": lambda a, b: Values(min(a.low, b.low), min(a.high, b.high)),
    "Max": lambda a, b: Values(max(a.low, b.low), max(a.high, b.high)),
    "Softplus": lambda a: Values(0.0, max(a.high, 0.0) + 1.0),
    "Exp": lambda a: Values(0.0, math.exp(a.high) if a.high < 700 else math.inf),
    "Sqrt": lambda a: Values(0.0, max(a.high, 1.0)),
    "Floor": lambda a: Values(a.low - 1, a.high),
    "Ceil": lambda a: Values(a.low, a.high + 1),
    "Round": lambda a: Values(a.low - 1, a.high + 1),
}
_WITHIN_ONE = ("Tanh", "Erf", "Sin", "Cos", "Sign", "Sigmoid")


def _apply(op: str, args: Sequence[Values]) -> Values:
    """What an op makes of its operands; anything, where that is not known or the lowest f32 takes part in more than a sum."""
    if op in _WITHIN_ONE:
        return Values(-1.0, 1.0)
    if op == "Mod" and args[1].low > 0:
        return Values(0.0, args[1].high)
    if op == "Div" and args[1].low > 0:
        return _multiply(args[0], Values(1 / args[1].high, 1 / args[1].low)) if not args[0].lowest else ANYTHING
    if op not in _ARITHMETIC or (op != "Add" and any(a.lowest for a in args[op == "Sub" :])):
        return ANYTHING
    return _ARITHMETIC[op](*args)
