"""Attention without a softmax: the function of the score in its place, and what is done to its values, as a spec says it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import After, Anchor, Behind, Select, Step, Term
from onnx_fa.spec.expr import Float, ScoreExpr, compose, evaluate, leaves
from onnx_fa.spec.terms import BoolMask, Elementwise, IndexMask, Weighting

_MAX_WEIGHT = 1e18
"""Of masked scores: larger weights, times V and a factor of the row, overflow in one order of operations alone."""


def in_words_of_weights(reason: str) -> str:
    """A reason that is said of a softmax's probabilities, where there is no softmax."""
    return reason.replace("the softmax result", "the function of the score").replace("probabilities", "weights")


def check_layer(after: After) -> None:
    """Raises NoMatch for what may stand behind a softmax, and not behind weights of another kind."""
    if after.guard:
        raise NoMatch(
            "a guard for rows without keys stands behind weights that no softmax makes", after.value.producer()
        )
    if after.rounding is not None:
        raise NoMatch("weights that no softmax makes are rounded before they multiply V", after.value.producer())


def fold_drops(steps: Sequence[Step], behind: Behind, weight: ScoreExpr) -> tuple[list[Step], Select | None]:
    """The steps, and what of the masks on the weights is no mask on the score. Where a score of -inf, or one of 0, has a weight of
    zero, a weight that is set to zero is that of such a score. Raises NoMatch for a sum of masked weights where that is not so."""
    fill = next((score for score in (-math.inf, 0.0) if value_at(weight, score) == 0.0), None)
    total = behind.total
    folded, left = list(behind.drops), list[Select]()
    if total is not None or fill is None:
        folded, left = [], folded
    if total is not None and total.drops:
        if fill is None or value_at(total.of, 0.0) != 0.0:
            raise NoMatch(
                "masked weights are divided by their sum, and those of masked scores are not zero",
                behind.weighting.product.node,
            )
        folded = [*total.drops]
    if len(left) > 1:
        raise NoMatch("weights are set to zero by several masks", behind.weighting.product.node)
    new = [*steps, *(replace(d, fill=fill, drops=True) for d in folded if fill is not None)]
    return new, left[0] if left else None


def write_weighting(anchor: Anchor, behind: Behind) -> Weighting | None:
    """What the spec says of an attention without a softmax; None with one. Raises NoMatch where it cannot be said."""
    if anchor.weight is None:
        return None
    total = behind.total
    try:
        if total is None:
            return Weighting(anchor.weight, label=anchor.label)
        summed = compose(total.of, anchor.weight)
        return Weighting(anchor.weight, summed, total.plus, total.least, f"{anchor.label}_by_sum")
    except ValueError as e:
        raise NoMatch(str(e), anchor.node) from e


def sink_fills(terms: Sequence[Term], weighting: Weighting) -> list[Term]:
    """The terms with -inf in place of a fill, where either gives a masked key a weight of exactly zero: whole blocks may then be
    skipped. Behind the fill only other masks may stand. Raises NoMatch for a fill of so large a weight that sums overflow."""
    found = list(terms)
    for i in reversed(range(len(found))):
        term = found[i].term
        if not isinstance(term, (BoolMask, IndexMask)):
            break
        parts = [x for x in (weighting.weight, weighting.total) if x is not None]
        if all(value_at(x, term.fill) == 0.0 == value_at(x, -math.inf) for x in parts):
            found[i] = replace(found[i], term=replace(term, fill=-math.inf))
    for t in found:
        for fill in _numbers_put(t):
            if -math.inf < fill < -_MAX_WEIGHT and abs(value_at(weighting.weight, fill)) > _MAX_WEIGHT:
                raise NoMatch(f"masked scores become {fill:g}, whose weight is no small number")
    # The same mask on the scores and on their weights is one.
    return [t for i, t in enumerate(found) if not (isinstance(t.term, IndexMask) and t in found[:i])]


def _numbers_put(term: Term) -> list[float]:
    """The numbers that a term may put in place of a score."""
    if isinstance(term.term, Elementwise):
        return [leaf.value for leaf in leaves(term.term.expr) if isinstance(leaf, Float)]
    return [term.term.fill] if isinstance(term.term, (BoolMask, IndexMask)) else []


def value_at(expr: ScoreExpr, score: float) -> float:
    """What an expression of the score alone makes of one score."""
    return float(np.broadcast_to(evaluate(expr, np.full((1, 1), score), []), (1, 1))[0, 0])
