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
    `ScoreTerms.clear_plan` lacks leave its scores as they are."""

    k0: str
    rows: str
    edge: bool
    clear: bool = False
    tiles: dict[ScoreExpr, list[str]] = field(default_factory=dict)
    """The tiles that hold what was made of an Sq x Skv tensor for this block."""


@dataclass(frozen=True)
class SoftmaxState:
    """What the loops over keys carry: O^T, score tile, further tiles; per vector of queries the maximum and the sum, where the walk
    has them."""

    acc: str
    scores: str
    scratch: tuple[str, ...]
    best: tuple[str, ...]
    total: tuple[str, ...]


@dataclass(frozen=True)
class StateTypes:
    """The MLIR types of a state: its tensors, and the vectors of `maxima` and `sums`, so many."""

    acc: str
    scores: str
    scratch: tuple[str, ...]
    vector: str
    maxima: int
    sums: int

    def carried(self, state: SoftmaxState) -> list[tuple[str, str]]:
        """(value, type) of all that a loop carries."""
        tensors = [(state.acc, self.acc), (state.scores, self.scores)]
        tensors += zip(state.scratch, self.scratch, strict=True)
        return [*tensors, *((x, self.vector) for x in (*state.best, *state.total))]

    def pack(self, state: SoftmaxState) -> list[str]:
        """The values of `carried`."""
        return [value for value, _ in self.carried(state)]

    def unpack(self, values: list[str]) -> SoftmaxState:
        """The state of such values."""
        acc, scores, *rest = values
        tiles = len(self.scratch)
        best, total = rest[tiles : tiles + self.maxima], rest[tiles + self.maxima :]
        return SoftmaxState(acc, scores, tuple(rest[:tiles]), tuple(best), tuple(total))


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
