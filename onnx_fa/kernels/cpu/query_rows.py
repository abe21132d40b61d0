"""How numbers of which each query of a workgroup has one lie in vectors: along the lanes, or a vector for each query."""

from __future__ import annotations

from typing import Protocol

from onnx_fa.kernels.cpu.operands import Operands
from onnx_fa.kernels.cpu.state import Slab
from onnx_fa.kernels.mlir.expressions import Vector
from onnx_fa.kernels.mlir.text import I32, tensor_type
from onnx_fa.kernels.plan.score import varies
from onnx_fa.spec.terms import TensorArg


class QueryRows(Protocol):
    """A number of each query, in `count` vectors."""

    @property
    def count(self) -> int: ...

    def positions(self) -> list[str]:
        """The queries' indices, as i32 vectors."""

    def load(self, tensor: TensorArg, slab: Slab) -> list[Vector]:
        """A tensor that does not vary along the keys."""

    def lane_of_sums(self) -> str | None:
        """The lanes, as i1, in which a number counts that is added to the sums once; None for all."""

    def sums(self, total: tuple[str, ...]) -> tuple[str, ...]:
        """The sum of each query, from what the loops over keys add up."""

    def store(self, slab: Slab, vectors: tuple[str, ...]) -> str:
        """The tensor of a result that has a number of each query."""


class QueriesAlongLanes:
    """Vector j holds the numbers of the queries from j times the lanes on."""

    def __init__(self, operands: Operands) -> None:
        self.operands = operands
        self.count = operands.config.BM // operands.config.lanes

    def positions(self) -> list[str]:
        operands, t = self.operands, self.operands.t
        lanes = operands.lane_numbers()
        last = t.broadcast(operands.i32(t.arith("subi", operands.sq, t.index(1))), I32)
        found = []
        for j in range(self.count):
            first = operands.i32(t.shifted(operands.m0, j * t.width))
            position = t.arith("addi", t.broadcast(first, I32), lanes, t.ivec)
            found.append(t.arith("minsi", position, last, t.ivec) if operands.few_queries else position)
        return found

    def load(self, tensor: TensorArg, slab: Slab) -> list[Vector]:
        operands, t = self.operands, self.operands.t
        if not varies(tensor)[0]:
            return [operands.splat_of(slab, t.index(0))] * self.count
        row_type = tensor_type((operands.config.BM,), slab.element)

        def copy(row: str, carried: list[str]) -> list[str]:
            value = t.let(f"tensor.extract {slab.value}[{operands.query(row)}] : {slab.type}")
            return [t.let(f"tensor.insert {value} into {carried[0]}[{row}] : {row_type}")]

        empty = t.let(f"tensor.empty() : {row_type}")
        rows = t.loop((t.index(0), t.index(operands.config.BM), t.index(1)), [(empty, row_type)], copy)[0]
        vectors = [t.read(rows, row_type, operands.lane(j), element=slab.element) for j in range(self.count)]
        return [operands.to_vector(x, slab.element) for x in vectors]

    def lane_of_sums(self) -> str | None:
        return None

    def sums(self, total: tuple[str, ...]) -> tuple[str, ...]:
        return total

    def store(self, slab: Slab, vectors: tuple[str, ...]) -> str:
        operands, t = self.operands, self.operands.t
        tile, type_ = slab.value, slab.type
        if operands.few_queries:
            tile, type_ = t.let(f"tensor.empty() : {operands.row_type}"), operands.row_type
        for j, x in enumerate(vectors):
            tile = t.write(x, tile, type_, operands.lane(j))
        if not operands.few_queries:
            return tile

        def copy(row: str, carried: list[str]) -> list[str]:
            """One by one: of vectors that reach over the end, all but the first would be lost (docs/developer/iree-bugs.md)."""
            x = t.let(f"tensor.extract {tile}[{row}] : {type_}")
            return [t.let(f"tensor.insert {x} into {carried[0]}[{row}] : {slab.type}")]

        return t.loop((t.index(0), operands.rows, t.index(1)), [(slab.value, slab.type)], copy)[0]


class VectorPerQuery:
    """A vector for each query: its number in every lane. Sums over keys are parts, which the lanes hold, until `sums` adds them."""

    def __init__(self, operands: Operands) -> None:
        self.operands = operands
        self.count = operands.config.BM

    def positions(self) -> list[str]:
        return [self.operands.t.dense(str(r), "i32") for r in range(self.count)]

    def load(self, tensor: TensorArg, slab: Slab) -> list[Vector]:
        operands, by_row = self.operands, varies(tensor)[0]
        return [operands.splat_of(slab, operands.t.index(r if by_row else 0)) for r in range(self.count)]

    def lane_of_sums(self) -> str | None:
        t = self.operands.t
        return t.let(f"arith.cmpi eq, {self.operands.lane_numbers()}, {t.dense('0', 'i32')} : {t.ivec}")

    def sums(self, total: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(self.reduce(x, "add") for x in total)

    def reduce(self, x: str, combine: str) -> str:
        """The sum ("add") or the largest ("maxnumf") of the lanes, in all lanes."""
        t = self.operands.t
        return t.broadcast(t.let(f"vector.reduction <{combine}>, {x} : {t.vec} into f32"))

    def store(self, slab: Slab, vectors: tuple[str, ...]) -> str:
        t, out = self.operands.t, slab.value
        for r, x in enumerate(vectors):
            number = t.let(f"vector.extract {x}[0] : f32 from {t.vec}")
            out = t.let(f"tensor.insert {number} into {out}[{t.index(r)}] : {slab.type}")
        return out
