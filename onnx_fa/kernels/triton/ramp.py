"""Biases that grow evenly along the keys, as ALiBi's, which cost one addition per score: a ramp along a block of keys, and a number
for the whole block."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from onnx_fa.kernels.plan.score import LOG2, ExprStep, ScorePlan, uses
from onnx_fa.kernels.plan.skipping import Skipping
from onnx_fa.spec.attention import AttentionSpec, TensorArg
from onnx_fa.spec.expr import ScoreExpr

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
        case ("Add", ("score",), (op, ("Mul", a, b))) | ("Add", (op, ("Mul", a, b)), ("score",)) if op == LOG2:
            for slope, distance in ((a, b), (b, a)):
                match distance:
                    case ("ToFloat", ("Sub", ("k",), start)) if not uses(slope, tensors) and _is_positional(start):
                        return Ramp(slope, start)
                    case ("ToFloat", ("k",)) if not uses(slope, tensors):
                        return Ramp(slope, ("i", 0))
    return None


def _is_positional(expr: ScoreExpr) -> bool:
    """Whether a whole number follows from the query's position and the lengths by sums and products."""
    if expr[0] in _SUMS:
        return all(map(_is_positional, expr[1:]))
    return expr[0] in ("q", "i", "Sq", "Skv")


def position_text(expr: ScoreExpr, names: Mapping[str, str]) -> str:
    """A whole number that follows from the query's position and the lengths, as source."""
    if expr[0] in _SUMS:
        return f"({position_text(expr[1], names)} {_SUMS[expr[0]]} {position_text(expr[2], names)})"
    return str(expr[1]) if expr[0] == "i" else names[expr[0]]


def find_ramp(spec: AttentionSpec, plan: ScorePlan, skips: Skipping) -> Ramp | None:
    """The bias of a spec that has only one, and that a ramp. What depends on the query alone is left out of it, as no softmax
    sees that; so nothing else may compare scores with numbers of its own. f32 wants the bias rounded as it is written."""
    others = [x for x in plan.steps if not isinstance(x, ExprStep)]
    if len(plan.expressions) != 1 or plan.natural or spec.dtype == "f32" or spec.sink is not None:
        return None
    if skips.threshold is not None or any(x.fill != -math.inf for x in others):
        return None
    return ramp_of(plan.expressions[0], spec.tensors)
