"""The reduction program of an attention: what happens between its scores and its output.

Keys are s, the masked scores; v, the values; w, what probabilities are multiplied by. A sink is a key that was seen before the
first, with its logit for a score and zeros for a value: it changes where a loop starts, not the program.
"""

from __future__ import annotations

import math

import numpy as np

from onnx_fa.derive.search import Program
from onnx_fa.derive.terms import Term, apply, exp, key, log, maximum, num, peak, total
from onnx_fa.errors import UnsupportedError
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import SCORE, Apply, Float, ScoreExpr, evaluate
from onnx_fa.spec.terms import BoolMask, IndexMask, Weighting

OUTPUT, LSE, MAXIMUM = "out", "lse", "max"
WEIGHT, TOTAL, STEPS = "weight", "total", "Steps"
"""Functions that stand for what has no terms here: a weighting's two, and a rounding to whole steps."""
LARGEST_EXPONENT = 50.0
"""Scores up to here may go without a maximum: e^50 is 5e21, so that sums over 1e9 keys of values up to 1e7 are f32, and e^-50 is
far from where f32 loses bits."""
S, V, W = key("s"), key("v"), key("w")
_BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Max": "max"}


def program_of(spec: AttentionSpec, *, narrow: bool = False) -> Program:
    """The program of a spec's output and row statistics. `narrow`: probabilities multiply V as f16, which holds no e^50."""
    if spec.weighting is not None:
        return Program(((OUTPUT, _weighed(spec, spec.weighting)),))
    top = peak(S)
    weights = exp(S - top)
    mass = total(weights)
    p = weights / mass
    if spec.rounding is not None:
        p = num(spec.rounding.scale) * apply(STEPS, p)
    if spec.weights is not None:
        p = p * W
    if spec.renormalised:
        p = p / total(p)
    outputs = [(OUTPUT, total(p * V))]
    outputs += [(which, {"lse": log(mass) + top, "max": top, "sum": mass}[which]) for which in spec.stats]
    bounded = ("s",) if not narrow and largest_score(spec) <= LARGEST_EXPONENT else ()
    return Program(tuple(outputs), bounded=bounded)


def largest_score(spec: AttentionSpec) -> float:
    """A bound of the scores' sizes, but for those that a mask makes -inf; infinity where nothing says one. A row statistic asks for
    the maximum, a sink's logit may be any number, and finite fills make rows that only their maximum tells from empty ones."""
    if not spec.mods or spec.stats or spec.sink is not None or spec.rounding is not None or spec.renormalised:
        return math.inf
    if any(not isinstance(m, IndexMask | BoolMask) or m.fill != -math.inf for m in spec.masks):
        return math.inf
    return abs(spec.mods[-1].cap)


def _weighed(spec: AttentionSpec, weighting: Weighting) -> Term:
    weight = _term(weighting.weight) or apply(WEIGHT, S)
    out = total(weight * W * V if spec.weights is not None else weight * V)
    if weighting.total is None:
        return out
    mass = total(_term(weighting.total) or apply(TOTAL, S))
    if weighting.plus:
        mass = mass + num(weighting.plus)
    if weighting.least != -math.inf:
        mass = maximum(mass, num(weighting.least))
    return out / mass


def _term(expr: ScoreExpr) -> Term | None:
    """The expression as a term; None where it has an op that terms have not."""
    match expr:
        case _ if expr == SCORE:
            return S
        case Float(value):
            return num(value)
        case Apply(op, (x,)):
            # An exponential is a function like others here: no maximum is ever taken out of what a weighting says.
            inner = _term(x)
            return apply(op, inner) if inner is not None else None
        case Apply(op, (a, b)) if op in _BINARY:
            first, second = _term(a), _term(b)
            return Term(_BINARY[op], (first, second)) if first is not None and second is not None else None
    return None


def function_of(spec: AttentionSpec, name: str) -> ScoreExpr:
    """What a `map` of an attention's program computes, as an expression of its argument in the score's place."""
    if spec.weighting is not None and name == WEIGHT:
        return spec.weighting.weight
    if spec.weighting is not None and name == TOTAL and spec.weighting.total is not None:
        return spec.weighting.total
    return Apply(name, SCORE)


def hidden_score(spec: AttentionSpec) -> float:
    """The score that kernels give to keys past the last one, which must weigh nothing: -inf, or 0 where only that does so, as with
    SiLU, GELU or a score's size. Raises UnsupportedError where both weigh something."""
    if spec.weighting is None or vanishes(spec.weighting, -math.inf):
        return -math.inf
    if vanishes(spec.weighting, 0.0):
        return 0.0
    raise UnsupportedError(
        "a key past the last one would weigh something, as neither a score of -inf nor one of 0 weighs 0"
    )


def vanishes(weighting: Weighting, score: float) -> bool:
    """Whether a score, such as a mask's fill, weighs nothing."""
    exprs = [weighting.weight, *([weighting.total] if weighting.total is not None else [])]
    return all(bool(np.all(evaluate(e, np.full((1, 1), score), []) == 0.0)) for e in exprs)
