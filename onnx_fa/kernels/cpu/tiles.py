"""Tiles of the vector kernels, and their operands as the dispatch sees them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import astuple, dataclass

from onnx_fa.kernels.plan.score import score_plan, tile_parts, tile_slots
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.processor import WIDTHS

MOST_QUERIES = 8
"""So many queries are a few: from here on, queries along the lanes use the registers better."""


@dataclass(frozen=True)
class CpuTiles(ABC):
    """Tiles of a vector kernel, in queries, keys and head dims. Raises ValueError for tiles that no kernel can have."""

    lanes: int
    """Of a vector: 4, 8 or 16."""
    BM: int
    """Queries per workgroup."""
    BK: int
    """Keys per block."""
    tile_keys: int
    """Keys of a register tile of scores, tile_keys x BM."""
    tile_dims: int
    """Head dims of a register tile of the output, tile_dims x BM."""
    unroll: int
    """Steps of the reductions that are written out."""

    def __post_init__(self) -> None:
        if min(astuple(self)) < 1 or self.lanes not in WIDTHS:
            raise ValueError(f"tiles must be positive, and lanes 4, 8 or 16: {self}")
        self.check()

    @abstractmethod
    def check(self) -> None:
        """Raises ValueError for tiles that contradict each other."""


@dataclass(frozen=True)
class VectorConfig(CpuTiles):
    """Tiles with queries along the lanes: BM is a multiple of `lanes`, BK of `tile_keys`."""

    def check(self) -> None:
        if self.BM % self.lanes or self.BK % self.tile_keys:
            raise ValueError(f"BM must be a multiple of lanes, and BK of tile_keys: {self}")


@dataclass(frozen=True)
class FewConfig(CpuTiles):
    """Tiles for a few queries: BM are all of them, `tile_keys` is `lanes`, `tile_dims` counts vectors of head dims. BK is a
    multiple of `tile_keys`."""

    def check(self) -> None:
        if self.BK % self.tile_keys or self.tile_keys != self.lanes:
            raise ValueError(f"BK must be a multiple of tile_keys, and tile_keys be lanes: {self}")


def operand_names(spec: AttentionSpec) -> list[str]:
    """The dispatch's arguments for the operands."""
    return [f"%{name}" for name in spec.operand_names("mask")]


def widens(spec: AttentionSpec) -> bool:
    """Whether blocks of K and V are made f32 before they are used."""
    return spec.dtype != "f32" or bool(spec.quantized)


def mask_tiles(spec: AttentionSpec) -> int:
    """How many tiles of keys x queries the mask terms need."""
    return sum(tile_slots(part, spec.tensors) for part in tile_parts(score_plan(spec), spec.tensors))
