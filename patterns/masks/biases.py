"""What is added to the score: choices between 0 and a fill are conditions, tensors AddMask, the rest Elementwise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from onnx_fa.match import NoMatch, Term
from onnx_fa.patterns.masks.apply import apply_op
from onnx_fa.patterns.masks.conditions import keep_where_true
from onnx_fa.patterns.masks.elementwise import make_elementwise, name_function
from onnx_fa.patterns.masks.expressions import FALSE, TRUE, is_choice, number, outcomes
from onnx_fa.patterns.masks.reader import Reader, producer_of
from onnx_fa.patterns.masks.swallowing import may_swallow
from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.expr import SCORE, Apply, Float, ScoreExpr, Tensor
from onnx_fa.spec.terms import AddMask


def add_bias_terms(reader: Reader, bias: ScoreExpr, factor: float, before: Sequence[Term]) -> list[Term]:
    """The score plus factor * bias."""
    result: list[Term] = []
    for piece, by in _split_sum(reader, bias, factor):
        result += _add_summand(reader, piece, by, [*before, *result])
    return result


def _split_sum(reader: Reader, e: ScoreExpr, factor: float) -> Iterator[tuple[ScoreExpr, float]]:
    """A sum in its parts, where the sum is larger than each."""
    match e:
        case Apply("Add" | "Sub" as op, (a, b)) if reader.spread(e) and not reader.algebra.is_whole(e):
            yield from _split_sum(reader, a, factor)
            yield from _split_sum(reader, b, factor if op == "Add" else -factor)
        case Apply("Neg", (a,)):
            yield from _split_sum(reader, a, -factor)
        case _:
            yield e, factor


def _add_summand(reader: Reader, e: ScoreExpr, factor: float, before: Sequence[Term]) -> list[Term]:
    algebra, dtype = reader.algebra, np.dtype(NUMPY["f64" if reader.dtype == "f64" else "f32"])
    if is_choice(e):
        whole = apply_op(algebra, "Mul", (e, number(factor)), "float", dtype) if factor != 1.0 else e
        assert whole is not None
        if whole == Float(0.0):
            return []
        selected = _select_by_choice(reader, whole, before)
        if selected is not None:
            return selected
        own = reader.as_tensor(e)
        if own is not None and (reader.wide(e) or not reader.spread(e)):
            return [_add_tensor(reader, own, factor)]
        return [make_elementwise(reader, Apply("Add", SCORE, whole), name_function(e))]
    match e:
        case Tensor():
            return [_add_tensor(reader, e, factor)]
        case Apply("Where", (condition, yes, no)) if not algebra.is_whole(e):
            for keep, rest, low in ((condition, yes, no), (algebra.negate(condition), no, yes)):
                if isinstance(low, Float) and factor > 0 and may_swallow(reader, low.value * factor, before):
                    inner = add_bias_terms(reader, rest, factor, before)
                    return [*inner, *keep_where_true(reader, keep, max(low.value * factor, -math.inf))]
    if reader.wide(e):
        own = reader.as_tensor(e)
        if own is not None:
            return [_add_tensor(reader, own, factor)]
    whole = e if factor == 1.0 else Apply("Mul", e, number(factor))
    return [make_elementwise(reader, Apply("Add", SCORE, whole), name_function(e))]


def _add_tensor(reader: Reader, tensor: Tensor, factor: float) -> Term:
    operand, arg = reader.tensor(tensor)
    if arg.dtype not in ("f32", "f16", "bf16"):
        raise NoMatch("an additive mask whose element type is not f32, f16 or bf16", producer_of(operand))
    return Term(AddMask(arg.shape, arg.dtype, factor), (operand,))


def _select_by_choice(reader: Reader, choice: ScoreExpr, before: Sequence[Term]) -> list[Term] | None:
    """score + (0 where kept, else a fill that swallows any score) is the score where kept, else the fill."""
    found = {o.value for o in outcomes(choice)}
    lows = found - {0.0}
    if len(lows) != 1 or len(found) != 2:
        return None
    (low,) = lows
    if not may_swallow(reader, low, before):
        return None
    keep = reader.algebra.over_outcomes(choice, lambda c: TRUE if c.value == 0 else FALSE)
    return keep_where_true(reader, keep, low)
