"""Measured tiles of linear sites: data/cuda-linear-sm_90.json, of f16 on an H100 (samples: benchmarks/linear-tiles-h100.csv)."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources

from onnx_fa.kernels.triton.linear_source import LinearConfig
from onnx_fa.spec.linear import LinearSpec

_DATA = "cuda-linear-sm_90.json"


@dataclass(frozen=True)
class Measured:
    """A product of so many rows, and the tiles that were fastest, the first of them best."""

    rows: int
    K: int
    N: int
    tiles: tuple[LinearConfig, ...]


@cache
def all_measured() -> tuple[Measured, ...]:
    """What was measured, as the package has it."""
    data = json.loads((resources.files("onnx_fa.kernels.tiles") / "data" / _DATA).read_text())
    return tuple(
        Measured(e["rows"], e["K"], e["N"], tuple(_config(tiles) for tiles in e["tiles"])) for e in data["entries"]
    )


def _config(tiles: dict[str, float]) -> LinearConfig:
    return LinearConfig(**{name: int(value) for name, value in tiles.items() if name != "us"})


def measured_tiles(spec: LinearSpec, rows: int) -> list[LinearConfig]:
    """The tiles of the nearest product that was measured: that which is fewest times as high, as deep and as wide, or as low and
    so on. None for f32 and for weights of a few bits, of which nothing was."""
    if spec.dtype not in ("f16", "bf16") or spec.bits is not None:
        return []

    def distance(m: Measured) -> float:
        return abs(math.log2(rows / m.rows)) + abs(math.log2(spec.K / m.K)) + abs(math.log2(spec.N / m.N))

    return list(min(all_measured(), key=distance).tiles)
