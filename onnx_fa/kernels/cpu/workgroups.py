"""How many panels of a weight a workgroup has, so that workers have alike.

A worker of IREE's task system takes one workgroup after the other, or, where there are at least RESERVED for each worker, so many
at a time (runtime/src/iree/task): of 24 workgroups one of two workers has 16, and the other waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from onnx_fa.spec.target import Target

RESERVED = 8
"""Workgroups that a worker takes at a time where there are so many for each."""
WORKERS = (2, 4, 8, 16)
"""What is meant by workers of a machine that is not known: each of these."""
_EACH = 48
"""What a workgroup costs beside its products, in steps along K of a panel's tiles of rows: 0.65 us on a Xeon."""
_LAST = 0.1
"""What is waited for at the end, as a part of what a worker takes at a time."""
_MANY = 16
"""Blocks of rows up to which other numbers of panels are considered."""
_GAIN = 0.92
"""The part of the time that another number of panels must get by with."""


def workers_of(target: Target) -> tuple[int, ...]:
    """The numbers of workers that a site is made for."""
    return (target.cores,) if target.cores else WORKERS


@dataclass(frozen=True)
class Product:
    """A weight of so many `panels`, each of so many `steps` along K, of which the tiles put about `across` into a workgroup;
    `workers` are the numbers of them that may share the workgroups."""

    panels: int
    across: int
    steps: int
    workers: tuple[int, ...] = WORKERS

    @property
    def usual(self) -> int:
        return min(self.across, self.panels)


def busiest(groups: int, workers: int) -> int:
    """The workgroups of the worker that has most of them."""
    each = _each(groups, workers)
    taken = [0] * workers
    for first in range(0, groups, each):
        taken[taken.index(min(taken))] += min(each, groups - first)
    return max(taken)


def _each(groups: int, workers: int) -> int:
    return RESERVED if groups >= workers * RESERVED else 1


def _time_of(blocks: int, product: Product, together: int) -> float:
    """The time of all workgroups where each has so many panels together, over the least that it could be, on average of the numbers
    of workers."""

    def one(n: int) -> float:
        groups = blocks * -(-product.panels // together)
        time = busiest(groups, n) * (together + _EACH / product.steps) + _LAST * _each(groups, n) * together
        return time * n / (blocks * product.panels)

    return sum(map(one, product.workers)) / len(product.workers)


@cache
def panels_together(blocks: int, product: Product) -> int:
    """The panels of a workgroup: `across`, or, where that takes workers less time, another number up to twice as large."""
    best, usual = _fastest(blocks, product), product.usual
    return best if blocks <= _MANY and _gains(blocks, product, best, usual) else usual


@cache
def panels_by_blocks(product: Product) -> list[tuple[int, int]]:
    """The panels of a workgroup for every number of blocks of rows, from 1 on, as they change: up to so many blocks, so many
    panels, which stay the same for as long as others gain little. The last stands for all that are more."""
    found = [(_MANY + 1, product.usual)]
    for blocks in range(_MANY, 0, -1):
        best = _fastest(blocks, product)
        if _gains(blocks, product, best, found[-1][1]):
            found.append((blocks, best))
    return found[::-1]


def _fastest(blocks: int, product: Product) -> int:
    return min(range(min(2 * product.across, product.panels), 0, -1), key=lambda n: _time_of(blocks, product, n))


def _gains(blocks: int, product: Product, best: int, usual: int) -> bool:
    return _time_of(blocks, product, best) < _GAIN * _time_of(blocks, product, usual)
