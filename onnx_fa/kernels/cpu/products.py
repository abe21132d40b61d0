"""Products of a block of keys with queries along the lanes: how a step is made, and what it takes of K, Q, V and probabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from onnx_fa.kernels.cpu.dequantize import Integers
from onnx_fa.kernels.cpu.key_rows import row_at
from onnx_fa.kernels.cpu.operands import Operands
from onnx_fa.kernels.cpu.state import Block, Slab
from onnx_fa.kernels.cpu.tile_loops import copy_rows, over_rows, over_tiles
from onnx_fa.kernels.cpu.tiles import widens
from onnx_fa.kernels.mlir.text import tensor_type


class Product(Protocol):
    """Sums of products, a scalar of K or V times vectors of queries, `per_step` head dims (or keys) in a step."""

    @property
    def per_step(self) -> int: ...

    @property
    def queries_type(self) -> str:
        """The type of the tile of queries, Q^T in steps of head dims."""

    @property
    def copied_type(self) -> str:
        """The type of the tile that blocks of K and of V are copied to before they are multiplied; "" where they are not."""

    def load_queries(self) -> str:
        """The tile of queries."""

    def copy_keys(self, tile: str, block: Block) -> str:
        """The tile with a block of K, a row per key."""

    def copy_values(self, tile: str, block: Block) -> str:
        """The tile with a block of V, a row per step of keys."""

    def multiply(self, scalar: str, vector: str, total: str) -> str:
        """The total plus one step of a product, with `scalar` in all lanes already."""

    def scale_score(self, product: str) -> str:
        """A product of K and Q with the factor of the queries."""

    def join_weights(self, weights: list[str]) -> str:
        """The probabilities of `per_step` keys as one step takes them."""


class FusedProducts:
    """Fused multiply-adds of f32, one head dim or key in a step. Q^T is D x BM, times `query_factor`."""

    per_step = 1

    def __init__(self, operands: Operands, query_factor: float) -> None:
        self.operands, self.query_factor = operands, query_factor
        spec, config = operands.spec, operands.config
        self.t = operands.t
        self.queries_type = tensor_type((spec.D, config.BM), "f32")
        self.copied_type = tensor_type((config.BK, max(spec.D, spec.Dv)), "f32") if widens(spec) else ""

    def load_queries(self) -> str:
        operands, t, width = self.operands, self.t, self.operands.spec.D
        scale, wide = t.splat(self.query_factor), t.width <= width

        def swapped(d: str, row: str, out: str) -> str:
            if operands.few_queries:  # one by one, so that the last query is repeated
                for lane in range(t.width):
                    column = t.shifted(row, lane)
                    number = operands.extract(operands.q, operands.query_row(column), d)
                    x = t.arith("mulf", number, t.f32(self.query_factor), "f32")
                    out = t.insert(x, out, self.queries_type, d, column)
                return out
            x = operands.read_f32(operands.q, d, row)
            return t.write(t.vop("arith.mulf", x, scale), out, self.queries_type, d, row)

        def transposed(row: str, d: str, out: str) -> str:
            rows = [
                operands.read_f32(operands.q, operands.query_row(t.shifted(row, i)), d, wide) for i in range(t.width)
            ]
            for i, x in enumerate(t.transpose([t.vop("arith.mulf", x, scale) for x in rows])[:width]):
                out = t.write(x, out, self.queries_type, t.shifted(d, i), row)
            return out

        empty = t.empty(self.queries_type)
        if operands.q.swapped:
            return over_rows(t, operands.config.BM, width, empty, self.queries_type, swapped)
        return over_tiles(t, operands.config.BM, width, empty, self.queries_type, transposed)

    def copy_keys(self, tile: str, block: Block) -> str:
        operands = self.operands
        return self._copy(operands.k, operands.k_integers, operands.spec.D, tile, block)

    def copy_values(self, tile: str, block: Block) -> str:
        operands = self.operands
        return self._copy(operands.v, operands.v_integers, operands.spec.Dv, tile, block)

    def _copy(self, slab: Slab, integers: Integers | None, width: int, tile: str, block: Block) -> str:
        """Copies a block of K or V to f32: once per block instead of once per use."""
        operands = self.operands
        by_one = slab.swapped or width < self.t.width if integers is None else not integers.in_vectors(width)

        def numbers(i: str) -> Callable[[str], str]:
            row = row_at(operands, block, i).stored
            if by_one:
                return lambda d: operands.extract(slab, row, d) if integers is None else integers.element(row, d)
            return integers.row(row) if integers is not None else lambda d: operands.read_f32(slab, row, d)

        return copy_rows(self.t, self.copied_type, tile, block.rows, width, numbers, by_one)

    def multiply(self, scalar: str, vector: str, total: str) -> str:
        return self.t.vop("vector.fma", scalar, vector, total)

    def scale_score(self, product: str) -> str:
        return product

    def join_weights(self, weights: list[str]) -> str:
        return weights[0]
