"""Which products of f32 are made by AMX, of numbers that are split (linear_split.py), and what each workgroup has of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onnx_fa.kernels.cpu.amx import ROWS
from onnx_fa.kernels.cpu.split_products import STEP
from onnx_fa.kernels.cpu.workgroups import busiest
from onnx_fa.spec.linear import LinearSpec

PANEL = 32
"""Columns of a panel, two tiles."""
LEAST_ROWS = 64
LEAST_PRODUCTS = 20e6
"""So many rows are worth splitting a panel for, and so many products of numbers the memory that it takes."""
MOST_WORKERS = 4
"""More workers are not known to gain: on a host of 16 cores whose tiles others used as well, vectors were faster from two threads
on (docs/developer/linear-sites.md)."""
PAIR = 2 * ROWS
"""Rows of two tiles, which are multiplied at once."""
MOST_ROWS = 256
"""Of a workgroup: their parts of a block of 16 steps fill three eighths of the second cache."""
MOST_PANELS = 16
"""Of a workgroup, whose sums of all but the last block wait in its slot."""
_SPLIT_ROW, _SPLIT_PANEL, _MULTIPLY = 10.0, 300.0, 6.0
"""ns on a Xeon for a step along K: of a row, of a panel, and of a row by a panel."""
_FINISH, _GROUP = 14.0, 2000.0
"""ns: of what becomes of a row's sums of a panel, and of a workgroup."""
_BY_VECTORS, _FINISH_VECTORS = 13.5, 5.0
"""The same of a row by a panel without tiles, for a step, and of what becomes of the sums."""
_MANY_BLOCKS = 16
"""Blocks of rows up to which other numbers of panels are considered, where only the run knows the rows."""
_ACROSS = 8
"""Panels of a workgroup, about, where only the run knows the rows."""


def least_rows(spec: LinearSpec, workers: Sequence[int]) -> int | None:
    """The rows from which on a site's products are split; None where so many of them gain nothing."""
    least = max(LEAST_ROWS, math.ceil(LEAST_PRODUCTS / (spec.K * spec.N)))
    return next(
        (
            rows
            for rows in (least, *range(-(-least // PAIR) * PAIR, least + MOST_ROWS, PAIR))
            if _gains(spec, rows, workers)
        ),
        None,
    )


def can_split(spec: LinearSpec, workers: Sequence[int]) -> bool:
    """Whether a site's products are of f32, and enough for tiles to be worth splitting them, or may be in a run, and the workers
    that share them few."""
    if max(workers) > MOST_WORKERS or spec.dtype != "f32" or spec.stored or spec.bits is not None or spec.K < 2 * STEP:
        return False
    least, rows = least_rows(spec, workers), spec.rows_of_one
    is_free = spec.rows is None and rows == 1
    return least is not None and (is_free or (rows >= least and _gains(spec, rows, workers)))


def _gains(spec: LinearSpec, rows: int, workers: Sequence[int]) -> bool:
    vectors = rows * spec.N / PANEL * (spec.K / STEP * _BY_VECTORS + _FINISH_VECTORS)
    return min(time for _, time in _shares(spec, rows, workers, MOST_PANELS)) < len(workers) * vectors


@dataclass(frozen=True)
class Share:
    """What a workgroup computes: so many rows by so many panels."""

    rows: int
    panels: int

    def cost(self, steps: int) -> float:
        """In ns, of so many steps along K: splitting rows and panels, products of whole tiles, and what becomes of the sums."""
        splits = _SPLIT_ROW * self.rows + self.panels * _SPLIT_PANEL
        return steps * splits + self.rows * self.panels * (steps * _MULTIPLY + _FINISH)


def share_of(spec: LinearSpec, workers: Sequence[int]) -> Share:
    """The parts of a site by which so many workers, on average of their numbers, get done first. Of rows that only the run knows
    workgroups have as many as those of one element of the batch would have, and their panels depend on how many blocks of them
    there are."""
    rows = spec.rows_of_one
    if rows < LEAST_ROWS:
        return Share(MOST_ROWS, min(_ACROSS, -(-spec.N // PANEL)))
    most = MOST_PANELS if spec.rows is not None else _ACROSS
    share, _ = min(_shares(spec, rows, workers, most), key=lambda x: (x[1], -x[0].rows, -x[0].panels))
    return share


def panels_by_blocks(spec: LinearSpec, share: Share, workers: Sequence[int]) -> list[tuple[int, int]]:
    """The panels of a workgroup of so many rows as the share has, for every number of such blocks of rows, as they change: up to so
    many blocks, so many panels. The last stands for all that are more."""
    panels, steps = -(-spec.N // PANEL), -(-spec.K // STEP)

    def time(blocks: int, across: int) -> float:
        groups = blocks * -(-panels // across)
        return sum(n * busiest(groups, n) for n in workers) * (Share(share.rows, across).cost(steps) + _GROUP)

    found = [(_MANY_BLOCKS + 1, min(share.panels, panels))]
    for blocks in range(_MANY_BLOCKS, 0, -1):
        best = min(range(min(2 * share.panels, panels), 0, -1), key=lambda n: time(blocks, n))
        if best != found[-1][1]:
            found.append((blocks, best))
    return found[::-1]


def _shares(spec: LinearSpec, rows: int, workers: Sequence[int], most: int) -> Iterator[tuple[Share, float]]:
    """What a workgroup may have of so many rows, and how long each of the numbers of workers takes then, ns, added up."""
    panels, steps = -(-spec.N // PANEL), -(-spec.K // STEP)
    parts = range(-(-rows // MOST_ROWS), -(-rows // PAIR) + 1)
    for high in {-(-rows // (n * PAIR)) * PAIR for n in parts}:
        for across in range(1, min(most, panels) + 1):
            share, groups = Share(high, across), -(-rows // high) * -(-panels // across)
            yield share, sum(n * busiest(groups, n) for n in workers) * (share.cost(steps) + _GROUP)
