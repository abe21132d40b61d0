"""What the function of a vector kernel passes between its parts."""

from __future__ import annotations

from dataclasses import dataclass, field

from onnx_fa.kernels.mlir.expressions import Vector
from onnx_fa.spec.expr import ScoreExpr
from onnx_fa.spec.terms import Dim


@dataclass(frozen=True)
class Slab:
    """The part of an operand that a workgroup reads or writes, as a tensor of rank 1 or 2."""

    value: str
    type: str
    element: str
    place: str
    swapped: bool = False


@dataclass(frozen=True)
class Block:
    """A block of keys: the first, how many rows of the score tile to run, whether to test positions, whether the terms that
    `MaskedScores.clear_plan` lacks leave its scores as they are."""

    k0: str
    rows: str
    edge: bool
    clear: bool = False


@dataclass(frozen=True)
class SoftmaxState:
    """What the loops over keys carry: O^T, score tile, further tiles; per vector of queries the maximum and the sum."""

    acc: str
    scores: str
    scratch: tuple[str, ...]
    best: tuple[str, ...]
    total: tuple[str, ...]


@dataclass(frozen=True)
class Cut:
    """What a workgroup takes of one stored axis: `size` elements from `offset`; `dim` is None for a single element."""

    offset: str
    size: str
    dim: Dim | None


@dataclass(frozen=True)
class Row:
    """A key of a block: its place in the block, its position, the key to read for it and its row of K and V, and what is
    known of it alone."""

    at: str
    key: str
    read: str
    stored: str
    known: dict[ScoreExpr, Vector] = field(default_factory=dict)
