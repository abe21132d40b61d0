"""How the elements that a row is made of are picked out of another row: by shuffles of neighbours, where the places are constants
and vectors of them are alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_MOST = 24
"""Groups of vectors, at most, for each of which there is code."""
_WINDOWS = 1, 2
"""How many vectors of neighbours a vector is picked out of: a shuffle takes two."""


@dataclass(frozen=True)
class Picks:
    """`count` vectors from column `start` on, side by side, of which the first is picked out of as many vectors of neighbours from
    `base` on as `window` says, each other from `step` elements further on. `masks` say which of these, for each tap."""

    start: int
    count: int
    base: int
    step: int
    window: int
    masks: tuple[tuple[int, ...], ...]


def find_picks(places: Sequence[Sequence[int]], width: int, lanes: int) -> list[Picks]:
    """The vectors of rows of (taps, columns) places in rows of `width` elements. The last may make columns of the one before again.
    Empty where neighbours are too far apart, or vectors too different."""
    columns = len(places[0])
    found = list[Picks]()
    for start in [*range(0, columns - lanes, lanes), columns - lanes]:
        one = _pick([row[start : start + lanes] for row in places], start, width)
        if one is None:
            return []
        joined = _joined(found[-1], one, lanes) if found else None
        found[-1:] = [joined] if joined else [*found[-1:], one]
        if len(found) > _MOST:
            return []
    return found


def _pick(rows: Sequence[Sequence[int]], start: int, width: int) -> Picks | None:
    lanes, low, high = len(rows[0]), min(map(min, rows)), max(map(max, rows))
    for window in _WINDOWS:
        base = min(low, width - window * lanes)
        if base >= 0 and high - base < window * lanes:
            return Picks(start, 1, base, 0, window, tuple(tuple(place - base for place in row) for row in rows))
    return None


def _joined(some: Picks, one: Picks, lanes: int) -> Picks | None:
    """Vectors and one behind them as one group, if they are alike."""
    step = one.base - (some.base + (some.count - 1) * some.step)
    alike = (some.window, some.masks) == (one.window, one.masks) and one.start == some.start + some.count * lanes
    if not alike or (some.count > 1 and step != some.step):
        return None
    return Picks(some.start, some.count + 1, some.base, step, some.window, some.masks)
