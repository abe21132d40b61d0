"""Blocks of keys of bf16 whose products AMX makes, and AVX512_BF16 where the processor gives no tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from onnx_fa.kernels.cpu.amx import PAIRS, ROWS, Tile
from onnx_fa.kernels.cpu.amx_products import TileProducts
from onnx_fa.kernels.cpu.key_rows import passes_last_key
from onnx_fa.kernels.cpu.masks import ScoreTerms
from onnx_fa.kernels.cpu.pointers import moved
from onnx_fa.kernels.cpu.state import Block, SoftmaxState
from onnx_fa.kernels.cpu.tile_kernel import ACROSS, AT_ONCE, STEP, TileKernel
from onnx_fa.kernels.cpu.tile_loops import fma_tile


class PairKernel(TileKernel):
    """The BlockKernel whose factors are pairs of bf16 in memory of the stack."""

    def __init__(self, terms: ScoreTerms, product: TileProducts) -> None:
        super().__init__(terms, product)
        self.tiles = product

    def load_queries(self) -> None:
        t, tiles = self.t, self.tiles
        super().load_queries()
        self.queries = tiles.load_queries()
        if tiles.addresses is not None:
            self.keys_at = tiles.addresses.of(t, self.operands.k.value, self.operands.k.type)
        self.keys, self.values = tiles.empty_keys(), t.empty(tiles.values_type)
        self.at = {
            name: self.unit.pointer(memory, type_)
            for name, memory, type_ in (
                ("queries", self.queries, tiles.queries_type),
                ("keys", self.keys, tiles.copied_type),
                ("values", self.values, tiles.values_type),
                ("sums", self.sums, self.sums_type),
            )
        }

    def prepare(self, state: SoftmaxState, block: Block) -> tuple[SoftmaxState, Block]:
        if self.tiles.key_bytes is None:
            self.tiles.copy_keys(self.keys, block)
        self.tiles.transpose_values(self.values, block)
        return self.prepare_masks(state, block)

    def multiply_keys(self, scores: str, block: Block, first: int) -> None:
        """Two tiles of keys at a time. Where K's rows are read in place, those that pass the last one, and those that vectors
        multiply, are copied first."""
        t, unit, BM, pairs = self.t, self.unit, self.config.BM, self.tiles.pairs
        pointer, column = unit.pointer(scores, self.types.scores), first * t.width

        def by_tiles(i: str, keys: Tile) -> None:
            unit.clear(2, 2)
            for pair in range(0, pairs, PAIRS):
                queries = Tile(self.at["queries"], 4 * BM, 4 * (pair * BM + column))
                unit.add_product(replace(keys, offset=4 * pair).below(2), queries, 2)
            unit.store(Tile(moved(t, pointer, i, 4 * STEP), 4 * STEP), 2, 2)

        def by_vectors(i: str, copied: str) -> None:
            def some(key: str) -> None:
                rows = [t.shifted(t.arith("addi", i, key), r) for r in range(AT_ONCE)]
                columns = [t.shifted(t.arith("addi", copied, key), r) for r in range(AT_ONCE)]
                scalars = [self._column(self.keys, self.tiles.copied_type, row) for row in columns]
                zeros = [[t.splat(0.0)] * ACROSS] * AT_ONCE
                made = fma_tile(
                    t,
                    self.product.multiply,
                    lambda: scalars,
                    pairs,
                    2,
                    self.queries,
                    self.tiles.queries_type,
                    zeros,
                    first,
                )
                for row, vectors in zip(rows, made, strict=True):
                    for j, x in enumerate(vectors):
                        t.write(x, scores, self.types.scores, row, self.operands.lane(j))

            t.each((t.index(0), t.index(STEP), t.index(AT_ONCE)), some)

        def from_copy(i: str, copied: str) -> None:
            keys = Tile(moved(t, self.at["keys"], copied, 4 * pairs), 4 * pairs)
            unit.if_granted(lambda: by_tiles(i, keys), lambda: by_vectors(i, copied))

        def in_place(i: str, row_bytes: int) -> None:
            first, direct = t.arith("addi", block.k0, i), unit.granted
            if passes_last_key(self.operands, block):
                inside = t.arith("cmpi sle,", t.shifted(first, STEP), self.operands.skv)
                direct = t.arith("andi", direct, inside, "i1")
            t.do(f"scf.if {direct} {{")
            by_tiles(i, Tile(moved(t, self.keys_at, first, row_bytes), row_bytes))
            t.do("} else {")
            self.tiles.copy_keys(self.keys, replace(block, k0=first, rows=t.index(STEP)))
            from_copy(i, t.index(0))
            t.do("}")

        stored = self.tiles.key_bytes
        bounds = t.index(0), block.rows, t.index(STEP)
        t.each(bounds, lambda i: from_copy(i, i) if stored is None else in_place(i, stored))

    def add_values(self, state: SoftmaxState, decay: Sequence[str], block: Block, part: slice) -> SoftmaxState:
        acc = self.t.either(
            self.unit.granted,
            [self.types.acc],
            lambda: [self.add_by_tiles(state, decay, block, part)],
            lambda: [self.add_by_vectors(state, decay, block, part)],
        )
        return replace(state, acc=acc[0])

    def multiply_values(self, scores: str, block: Block, part: slice, d: str, count: int) -> None:
        t, unit, config = self.t, self.unit, self.config
        down, row_bytes = count // ROWS, 4 * (config.BK // 2)
        values = moved(t, self.at["values"], d, row_bytes)
        weights = unit.pointer(scores, self.types.scores)

        def step(i: str) -> None:
            left = Tile(moved(t, values, i, 4 * PAIRS), row_bytes)
            right = Tile(moved(t, weights, i, 4 * PAIRS * STEP), 4 * STEP)
            unit.add_product(left.below(down), right, 2)

        unit.clear(down, 2)
        if block.edge:
            t.each((t.index(0), t.arith("divui", block.rows, t.index(STEP)), t.index(1)), step)
        else:
            for i in range(config.BK // STEP):
                step(t.index(i))
        unit.store(Tile(self.at["sums"], 4 * STEP), down, 2)

    def values_by_vectors(self, scores: str, block: Block, d: str, count: int) -> list[list[str]]:
        t = self.t
        columns = [self._column(self.values, self.tiles.values_type, t.shifted(d, r)) for r in range(count)]
        zeros = [[t.splat(0.0)] * ACROSS] * count
        steps = t.arith("divui", block.rows, t.index(2))
        return fma_tile(t, self.product.multiply, lambda: columns, steps, 2, scores, self.types.scores, zeros)

    def _column(self, memory: str, type_: str, row: str) -> Callable[[str], str]:
        return lambda step: self.t.extract(memory, type_, row, step)
