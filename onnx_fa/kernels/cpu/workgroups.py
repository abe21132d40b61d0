"""How many panels of a weight a workgroup has, so that workers have alike.

A worker of IREE's task system takes one workgroup after the other, or, where there are at least RESERVED for each worker, so many
at a time (runtime/src/iree/task): of 24 workgroups one of two workers has 16, and the other waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

RESERVED = 8
"""Workgroups that a worker takes at a time where there are so many for each."""
WORKERS = (2, 4, 8, 16)
"""What is meant by workers of a machine that is not known: each of these."""
_EACH = 0.05
"""What a workgroup costs beside its panels, in panels."""
_LAST = 0.1
"""What is waited for at the end, as a part of what a worker takes at a time."""
_MANY = 16
"""Blocks of rows up to which other numbers of panels are considered."""
_GAIN = 0.92
"""The part of the time that another number of panels must get by with."""


def busiest(groups: int, workers: int) -> int:
    """The workgroups of the worker that has most of them."""
    each = _each(groups, workers)
    taken = [0] * workers
    for first in range(0, groups, each):
        taken[taken.index(min(taken))] += min(each, groups - first)
    return max(taken)


def _each(groups: int, workers: int) -> int:
    return RESERVED if groups >= workers * RESERVED else 1


def _time_of(blocks: int, panels: int, together: int, workers: Sequence[int]) -> float:
    """The time of all workgroups where each has so many panels together, over the least that it could be: of so many workers, on
    average."""

    def one(n: int) -> float:
        groups = blocks * -(-panels // together)
        time = busiest(groups, n) * (together + _EACH) + _LAST * _each(groups, n) * together
        return time * n / (blocks * panels)

    return sum(map(one, workers)) / len(workers)


@cache
def panels_together(blocks: int, panels: int, across: int, workers: Sequence[int]) -> int:
    """The panels of a workgroup: `across`, or, where that takes workers less time, another number up to twice as large."""
    best, usual = _fastest(blocks, panels, across, workers), min(across, panels)
    few = blocks <= _MANY
    return best if few and _gains(blocks, panels, best, usual, workers) else usual


@cache
def panels_by_blocks(panels: int, across: int, workers: Sequence[int]) -> list[tuple[int, int]]:
    """The panels of a workgroup for every number of blocks of rows, from 1 on, as they change: up to so many blocks, so many
    panels, which stay the same for as long as others gain little. The last stands for all that are more."""
    found = [(_MANY + 1, min(across, panels))]
    for blocks in range(_MANY, 0, -1):
        best = _fastest(blocks, panels, across, workers)
        if _gains(blocks, panels, best, found[-1][1], workers):
            found.append((blocks, best))
    return found[::-1]


def _fastest(blocks: int, panels: int, across: int, workers: Sequence[int]) -> int:
    return min(range(min(2 * across, panels), 0, -1), key=lambda n: _time_of(blocks, panels, n, workers))


def _gains(blocks: int, panels: int, best: int, usual: int, workers: Sequence[int]) -> bool:
    return _time_of(blocks, panels, best, workers) < _GAIN * _time_of(blocks, panels, usual, workers)
