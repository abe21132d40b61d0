"""Biases that grow evenly along the keys, as ALiBi's, which cost one addition per score: a ramp along a block of keys, and a number
for the whole block."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from onnx_fa.kernels.plan.score import LOG2, ExprStep, ScorePlan, uses
from onnx_fa.kernels.plan.skipping import Skipping
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import Apply, Int, Length, Position, Q, Score, ScoreExpr
from onnx_fa.spec.terms import TensorArg

_SUMS = {"Add": "+", "Sub": "-", "Mul": "*"}


@dataclass(frozen=True)
class Ramp:
    """A bias of `slope` * (k - `start`), with one slope per head, and a whole number that follows from the query's position for a
    start, as in ALiBi."""

    slope: ScoreExpr
    start: ScoreExpr


def ramp_of(step: ScoreExpr, tensors: tuple[TensorArg, ...]) -> Ramp | None:
    """The ramp that a step, in units of log2, adds to the score. None where it does anything else."""
    match step:
        case Apply("Add", (Score(), Apply(op, (Apply("Mul", (a, b)),)))) if op == LOG2:
            return _ramp_of_product(a, b, tensors)
        case Apply("Add", (Apply(op, (Apply("Mul", (a, b)),)), Score())) if op == LOG2:
            return _ramp_of_product(a, b, tensors)
    return None


def _ramp_of_product(a: ScoreExpr, b: ScoreExpr, tensors: tuple[TensorArg, ...]) -> Ramp | None:
    for slope, distance in ((a, b), (b, a)):
        match distance:
            case Apply("ToFloat", (Apply("Sub", (Position("k"), start)),)):
                if not uses(slope, tensors) and _is_positional(start):
                    return Ramp(slope, start)
            case Apply("ToFloat", (Position("k"),)) if not uses(slope, tensors):
                return Ramp(slope, Int(0))
    return None


def _is_positional(expr: ScoreExpr) -> bool:
    """Whether a whole number follows from the query's position and the lengths by sums and products."""
    if isinstance(expr, Apply):
        return expr.op in _SUMS and all(map(_is_positional, expr.args))
    return expr == Q or isinstance(expr, Int | Length)


def position_text(expr: ScoreExpr, names: Mapping[ScoreExpr, str]) -> str:
    """A whole number that follows from the query's position and the lengths, whose `names` are given, as source."""
    match expr:
        case Apply(op, (a, b)):
            return f"({position_text(a, names)} {_SUMS[op]} {position_text(b, names)})"
        case Int(value):
            return str(value)
    return names[expr]


def find_ramp(spec: AttentionSpec, plan: ScorePlan, skips: Skipping) -> Ramp | None:
    """The bias of a spec that has only one, and that a ramp. What depends on the query alone is left out of it, as no softmax
    sees that; so nothing else may compare scores with numbers of its own. f32 wants the bias rounded as it is written."""
    others = [x for x in plan.steps if not isinstance(x, ExprStep)]
    if len(plan.expressions) != 1 or plan.natural or spec.dtype == "f32" or spec.sink is not None or spec.stats:
        return None
    if skips.threshold is not None or any(x.fill != -math.inf for x in others):
        return None
    return ramp_of(plan.expressions[0], spec.tensors)
