"""Tiles of the vector kernels, and their operands as the dispatch sees them."""

from __future__ import annotations

from dataclasses import dataclass

from onnx_fa.kernels.cpu.dequantize import stored_shape
from onnx_fa.kernels.plan.score import score_plan, tile_parts, tile_slots
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.terms import Dim


@dataclass(frozen=True)
class VectorConfig:
    """Tiles of the kernel, in queries, keys and head dims.

    W lanes of a vector; BM queries per workgroup; BK keys per block; register tiles of RI keys x BM queries (scores)
    and RN head dims x BM queries (output); U steps of the reduction unrolled. BM is a multiple of W, BK of RI.
    Raises ValueError otherwise.
    """

    W: int
    BM: int
    BK: int
    RI: int
    RN: int
    U: int

    def __post_init__(self) -> None:
        if min(self.W, self.BM, self.BK, self.RI, self.RN, self.U) < 1 or self.W not in (4, 8, 16):
            raise ValueError(f"tiles must be positive, and W 4, 8 or 16: {self}")
        self.check()

    def check(self) -> None:
        if self.BM % self.W or self.BK % self.RI:
            raise ValueError(f"BM must be a multiple of W, and BK of RI: {self}")


def operand_types(spec: AttentionSpec) -> list[str]:
    """Element types of the operands as the dispatch sees them: booleans and small integers are bytes."""
    return ["i8" if d in ("bool", "i8", "u8", "i4", "u4") else d for d in spec.operand_dtypes]


def operand_shapes(spec: AttentionSpec) -> list[tuple[Dim, ...]]:
    """Shapes of the operands as the dispatch sees them."""
    return [stored_shape(s, d) for s, d in zip(spec.operand_shapes, spec.operand_dtypes, strict=True)]


def operand_names(spec: AttentionSpec) -> list[str]:
    """The dispatch's arguments for the operands."""
    return [f"%{name}" for name in spec.operand_names("mask")]


def widens(spec: AttentionSpec) -> bool:
    """Whether blocks of K and V are made f32 before they are used."""
    return spec.dtype != "f32" or bool(spec.quantized)


def mask_tiles(spec: AttentionSpec) -> int:
    """How many tiles of keys x queries the mask terms need."""
    return sum(tile_slots(part, spec.tensors) for part in tile_parts(score_plan(spec), spec.tensors))
