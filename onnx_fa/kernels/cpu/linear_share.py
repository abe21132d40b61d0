"""Which products of f32 are made by AMX, of numbers that are split (linear_split.py), and what each workgroup has of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onnx_fa.kernels.cpu.amx import ROWS
from onnx_fa.kernels.cpu.split_products import STEP
from onnx_fa.kernels.cpu.workgroups import busiest
from onnx_fa.spec.linear import LinearSpec

LEAST_ROWS = 64
LEAST_PRODUCTS = 20e6
"""So many rows are worth splitting a panel for, and so many products of numbers the memory that it takes."""
MOST_WORKERS = 4
"""More workers are not known to gain: on a host of 16 cores whose tiles others used as well, vectors were faster from two threads
on (docs/developer/linear-sites.md)."""
PAIR = 2 * ROWS
"""Rows of two tiles, which are multiplied at once."""
MOST_ROWS = 256
"""Of a workgroup: their parts of a block fill half of the second cache."""
MOST_PANELS = 16
"""Of a workgroup, whose sums of all but the last block wait in its slot."""
_SPLIT_ROW, _SPLIT_PANEL, _MULTIPLY, _GROUP = 8.0, 300.0, 4.9, 2000.0
"""ns: of a row and of a panel for a step, of a row by a panel, and of a workgroup."""
_ACROSS = 8
"""Panels of a workgroup, about, where only the run knows the rows."""


def least_rows(spec: LinearSpec) -> int:
    """The rows from which on a site's products are split."""
    return max(LEAST_ROWS, math.ceil(LEAST_PRODUCTS / (spec.K * spec.N)))


def can_split(spec: LinearSpec, workers: Sequence[int]) -> bool:
    """Whether a site's products are of f32, and enough for tiles to be worth splitting them, or may be in a run, and the workers
    that share them few."""
    if max(workers) > MOST_WORKERS:
        return False
    many = spec.rows is None or spec.rows >= least_rows(spec)
    return spec.dtype == "f32" and not spec.stored and spec.bits is None and spec.K >= 2 * STEP and many


@dataclass(frozen=True)
class Share:
    """What a workgroup computes: so many rows by so many panels."""

    rows: int
    panels: int

    @property
    def cost(self) -> float:
        """In ns for a step along K, measured on a Xeon: splitting rows and panels, and products of whole tiles."""
        return _SPLIT_ROW * self.rows + self.panels * (_SPLIT_PANEL + _MULTIPLY * self.rows)


def share_of(spec: LinearSpec, workers: Sequence[int]) -> Share:
    """The parts of a site by which so many workers, on average of their numbers, get done first. Of rows that only the run knows
    workgroups have as many as they may have, and their panels depend on how many blocks of them there are."""
    if spec.rows is None:
        return Share(MOST_ROWS, min(_ACROSS, spec.panels))
    parts = range(-(-spec.rows // MOST_ROWS), -(-spec.rows // PAIR) + 1)
    rows = {-(-spec.rows // (n * PAIR)) * PAIR for n in parts}
    shares = [Share(r, p) for r in rows for p in range(1, min(MOST_PANELS, spec.panels) + 1)]

    def time(share: Share) -> float:
        groups = -(-spec.rows // share.rows) * -(-spec.panels // share.panels) if spec.rows else 0
        each = share.cost + _GROUP / -(-spec.K // STEP)
        return sum(n * busiest(groups, n) for n in workers) * each

    return min(shares, key=lambda share: (time(share), -share.rows, -share.panels))
