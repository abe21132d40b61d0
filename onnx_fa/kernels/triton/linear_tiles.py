"""Measured tiles of linear sites: the database cuda-linear-sm_90, of f16 on an H100 (samples: benchmarks/linear-tiles-h100.csv)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

from onnx_fa.kernels.tiles.database import Entry, read_database
from onnx_fa.kernels.triton.linear_source import LinearConfig
from onnx_fa.spec.linear import LinearSpec

DATABASE = "cuda-linear-sm_90"
PRODUCT = "product"
"""In what an entry says of its measurement: rows, K and N. Families are wider than the range in which tiles of a GPU stay the
fastest, so that the nearest product counts."""


@dataclass(frozen=True)
class Measured:
    """A product of so many rows, and the tiles that were fastest, the first of them best."""

    rows: int
    K: int
    N: int
    tiles: tuple[LinearConfig, ...]


@cache
def all_measured() -> tuple[Measured, ...]:
    """What was measured, as the database has it."""
    return tuple(map(_read, read_database(DATABASE).entries))


def _read(entry: Entry) -> Measured:
    rows, K, N = entry.measured[PRODUCT]
    fastest_first = sorted(entry.choices, key=lambda c: c.cost)
    return Measured(rows, K, N, tuple(LinearConfig(**c.tiles) for c in fastest_first))


def nearest(spec: LinearSpec, rows: int) -> Measured | None:
    """The nearest product that was measured: that which is fewest times as high, as deep and as wide, or as low and so on. None for
    f32 and for weights of a few bits, of which nothing was."""
    if spec.dtype not in ("f16", "bf16") or spec.bits is not None:
        return None

    def distance(m: Measured) -> float:
        return abs(math.log2(rows / m.rows)) + abs(math.log2(spec.K / m.K)) + abs(math.log2(spec.N / m.N))

    return min(all_measured(), key=distance)


def measured_tiles(spec: LinearSpec, rows: int) -> list[LinearConfig]:
    """The tiles of the nearest product; empty where nothing was measured."""
    found = nearest(spec, rows)
    return [] if found is None else list(found.tiles)
