"""What roundings inside an attention may do to its output: how far two correct f32 computations may lie apart.

A rounding (of scores, where a model quantises them, or of probabilities) is a step function. Both computations are right where an
argument lies within its f32 error of a step, and then may fall on different sides. That error is bounded, not guessed, with
u = 2^-24 the unit roundoff:

* of a score: (D + 3) u |scale| sum_d |q_d k_d| for the product in any order (Higham, Accuracy and Stability of Numerical
  Algorithms, 2002, section 3.1), carried through every term by its values at both ends, and 4 u of the result more for each;
* of a probability, relatively: exp of the error of its score and of the mean of the row's, and SUMS for the sum and exp itself.

So every score and every probability has an interval, a point wherever no step is near, and

    |O' - O| <= sum_j max(P_j's upper end - P_j, P_j - its lower end) |v_j|

for every row and head dim: for a probability near a tie, one step times |v|. What a rounding of scores leaves open is a factor on
weights, and so moves the other probabilities of the row as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import Apply, ScoreExpr, parts
from onnx_fa.spec.reference import F64, Array, canonical, dequantized, masked, rounded
from onnx_fa.spec.terms import Elementwise, term_tensors

UNIT = 2.0**-24
SUMS = 2e-6
"""Relative error of exp and of a row's sum: what every f32 attention is held to."""
SWALLOWS = 1e6
"""Scores beyond this are masks, which nothing is near."""
_STEPS = ("Round", "Floor", "Ceil")


def rounds(spec: AttentionSpec) -> bool:
    """Whether the spec rounds scores or probabilities."""
    return spec.rounding is not None or any(_has_step(m.expr) for m in spec.masks if isinstance(m, Elementwise))


def _has_step(expr: ScoreExpr) -> bool:
    return any(isinstance(part, Apply) and part.op in _STEPS for part in parts(expr))


def slack(spec: AttentionSpec, operands: Sequence[Array]) -> F64:
    """How far each element of the output, in the spec's output layout, may be from `reference.attention` because of ties."""
    numbers = dequantized(spec, operands)
    q, k, v = (canonical(spec, i, numbers[i]) for i in range(3))
    with np.errstate(all="ignore"):
        s, error, low, high = _scores(spec, q, k, numbers[3:])
        top = high.max(axis=-1, keepdims=True, initial=-np.inf)
        sink: F64 | float = 0.0
        if spec.sink is not None:
            logit = numbers[-1].astype(np.float64)
            top = np.maximum(top, logit)
            sink = np.exp(logit - top)
        nominal, least, most = (np.exp(x - top) for x in (s, low, high))
        p = nominal / (nominal.sum(axis=-1, keepdims=True) + sink)
        p_low = least / (least + (most.sum(axis=-1, keepdims=True) - most) + sink)
        p_high = most / (most + (least.sum(axis=-1, keepdims=True) - least) + sink)
        if spec.rounding is not None:
            doubt = np.expm1(error + np.nansum(p * error, axis=-1, keepdims=True)) + SUMS
            p_low, p, p_high = (
                rounded(spec.rounding, x) for x in (np.maximum(p_low * (1 - doubt), 0), p, p_high * (1 + doubt))
            )
        change = np.fmax(np.fmax(p_high - p, p - p_low), 0.0)
        change[~np.isfinite(change)] = 0.0
        if spec.weights is not None:
            change = change * np.abs(numbers[2 + len(spec.tensors)].astype(np.float64))
        return np.transpose(change @ np.abs(np.where(np.isfinite(v), v, 0.0)), spec.o_layout)


def _scores(spec: AttentionSpec, q: F64, k: F64, tensors: list[Array]) -> tuple[F64, F64, F64, F64]:
    """(score, its error, the least and the largest that ties may make of it), each (*B, Hq, Sq, Skv)."""
    kt = np.swapaxes(k, -1, -2)
    s: F64 = spec.scale * (q @ kt)
    error: F64 = UNIT * (spec.D + 3) * abs(spec.scale) * (np.abs(q) @ np.abs(kt))
    for mod in spec.mods:  # of slope 1 at most
        s = mod.cap * np.tanh(s / mod.cap)
        error = error + 8 * UNIT * np.abs(s)
    low = high = s
    rest = list(tensors)
    for term in spec.masks:
        read = [rest.pop(0) for _ in term_tensors(term)]
        alone = dataclasses.replace(spec, masks=(term,))
        steps = isinstance(term, Elementwise) and _has_step(term.expr)
        ends = (low - error, high + error) if steps else (low, high)
        new, below, above, first, last = (masked(alone, x, *read) for x in (s, s - error, s + error, *ends))
        spread = np.fmax(np.abs(below - new), np.abs(above - new))
        found = [new, first, last]
        if steps:  # what moves no further than a slope would is no step
            found += [below, above]
            found = [np.where(np.abs(x - new) <= 4 * error, new, x) for x in found]
            spread = np.where(np.abs(new) < SWALLOWS, UNIT * np.abs(new), 0.0)
        s, low, high = new, np.fmin.reduce(found), np.fmax.reduce(found)
        error = np.where(spread > 0, spread + 4 * UNIT * np.abs(s), 0.0)  # a constant that was chosen is exact
        error = np.where(np.isfinite(error), error, 0.0)
    return s, error, low, high
