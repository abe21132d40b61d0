"""Which blocks of keys a kernel with an explicit loop may leave out, and when it must go back for them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnx_fa.spec import AddMask, AttentionSpec, Causal, Elementwise, SlidingWindow

LOG2E = math.log2(math.e)
MASK_FLOOR = -1.0e37
"""Finite masks and fills are raised to this, so that log2(e) times them, and sums of a few of them, stay finite."""
_HUGE = -1e30
_EXP2_RANGE = 130.0  # a score so far below its row's maximum, in units of log2, has probability 0 in f32

IndexMask = Causal | SlidingWindow


def fill_log2(fill: float) -> float:
    """A mask's fill in units of log2, clamped where it is finite."""
    return fill if math.isinf(fill) else max(fill, MASK_FLOOR) * LOG2E


def window(mask: IndexMask) -> tuple[int | None, int | None]:
    """(left, right): a query at key position p keeps the keys p - left .. p + right; None is no bound."""
    return (None, 0) if isinstance(mask, Causal) else (mask.left, mask.right)


def never_empty(spec: AttentionSpec) -> bool:
    """Whether every query surely keeps a key: index masks alone, at known places, that leave one in every row."""
    if spec.tensor_masks:
        return False
    low, high = -math.inf, math.inf
    for mask in spec.masks:
        if not isinstance(mask, IndexMask):
            continue
        if mask.offset != "end":
            offset = mask.offset
        elif isinstance(spec.Sq, int) and isinstance(spec.Skv, int):
            offset = spec.Skv - spec.Sq
        elif spec.Sq == spec.Skv:
            offset = 0
        else:
            return False
        left, right = window(mask)
        low = max(low, offset - left) if left is not None else low
        high = min(high, offset + right) if right is not None else high
    if low > high or high < 0:
        return False
    if low == -math.inf:
        return True
    if isinstance(spec.Sq, int) and isinstance(spec.Skv, int):
        return spec.Sq - 1 + low <= spec.Skv - 1
    return spec.Sq == spec.Skv and low <= 0


@dataclass(frozen=True)
class Skipping:
    """`terms`: places in spec.masks of the index masks whose blocks may be left out. `threshold`: a row whose maximum
    (in units of log2) ends at or below it needs those blocks after all; None: no row can."""

    terms: frozenset[int]
    threshold: float | None


def skipping(spec: AttentionSpec) -> Skipping:
    """A key outside an index mask may go unvisited where its probability is 0 in every row.

    With a fill of -inf that is so unless a later mask puts a finite fill in its place. With a finite fill it is so in
    each row whose maximum is far above the fill, which is known once the other keys are done.
    """
    terms: set[int] = set()
    fills: list[float] = []
    certain = never_empty(spec)
    for i, mask in enumerate(spec.masks):
        if not isinstance(mask, IndexMask):
            continue
        later = spec.masks[i + 1 :]
        filling = [m for m in (mask, *later) if not isinstance(m, (AddMask, Elementwise))]
        reached = [m.fill for m in filling if math.isfinite(m.fill)]
        if any(f > _HUGE for f in reached) and any(isinstance(m, AddMask) for m in later):
            continue  # what is added after the fill could lift it
        terms.add(i)
        if not (certain and all(f <= _HUGE for f in reached)):
            fills += [fill_log2(f) for f in reached]
    return Skipping(frozenset(terms), max(fills) + _EXP2_RANGE if fills else None)
