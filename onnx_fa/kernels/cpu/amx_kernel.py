"""Blocks of keys whose products AMX makes, and AVX512_BF16 where the processor gives no tiles: queries lie along the lanes, as
in `LaneKernel`, which does all but the products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from onnx_fa.kernels.cpu.amx import PAIRS, ROWS, Tile, TileUnit
from onnx_fa.kernels.cpu.amx_products import TileProducts
from onnx_fa.kernels.cpu.key_rows import passes_last_key, row_at
from onnx_fa.kernels.cpu.lane_kernel import LaneKernel
from onnx_fa.kernels.cpu.masks import ScoreTerms
from onnx_fa.kernels.cpu.recurrence import add_decayed
from onnx_fa.kernels.cpu.state import Block, SoftmaxState
from onnx_fa.kernels.cpu.tile_loops import fma_tile
from onnx_fa.kernels.mlir.text import memref_type

STEP = 2 * ROWS
"""Keys, queries or head dims of two tiles."""
_AT_ONCE = 4
"""Keys whose scores one step of a loop looks at."""
_VECTORS = 2
"""Of queries, that two tiles hold."""
_ROWS = 8
"""Keys or head dims that vectors multiply at once."""


class TileKernel(LaneKernel):
    """The BlockKernel whose factors, scores and probabilities are in memory that tiles are loaded from and stored to."""

    def __init__(self, terms: ScoreTerms, product: TileProducts) -> None:
        super().__init__(terms, product)
        self.tiles = product
        scores = memref_type((self.config.BK, STEP), "f32")
        self.types = replace(self.types, scores=scores, scratch=self.types.scratch[:-1])
        self.sums_type = memref_type((STEP, STEP), "f32")

    @property
    def parts(self) -> Sequence[slice]:
        """Two tiles of queries at a time: what they work on lies in the first cache then."""
        return tuple(slice(j, j + _VECTORS) for j in range(0, self.vectors, _VECTORS))

    def load_queries(self) -> None:
        t, tiles = self.t, self.tiles
        self.unit = TileUnit(t)
        super().load_queries()
        if tiles.addresses is not None:
            self.keys_at = tiles.addresses.of(t, self.operands.k.value, self.operands.k.type)
        self.keys, self.values, self.sums = tiles.empty_keys(), t.empty(tiles.values_type), t.empty(self.sums_type)
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

    def scores(self, state: SoftmaxState, block: Block, part: slice) -> tuple[str, list[str]]:
        t, type_ = self.t, self.types.scores
        self._multiply_keys(state.scores, block, part.start)

        def body(i: str, carried: list[str]) -> list[str]:
            best = list(carried)
            for r in range(_AT_ONCE):
                row = row_at(self.operands, block, t.shifted(i, r))
                for j in range(_VECTORS):
                    lane = self.operands.lane(j)
                    raw = self.product.scale_score(t.read(state.scores, type_, row.at, lane))
                    s = self.lane_scores.score(raw, row, part.start + j, block)
                    t.write(s, state.scores, type_, row.at, lane)
                    if best:
                        best[j] = t.maximum(s, best[j])
            return best

        bounds, carried = (t.index(0), block.rows, t.index(_AT_ONCE)), [(b, t.vec) for b in state.best[part]]
        if carried:
            return state.scores, t.loop(bounds, carried, body)

        def change(i: str) -> None:
            body(i, [])

        self._each(t.index(0), block.rows, _AT_ONCE, change)
        return state.scores, []

    def _multiply_keys(self, scores: str, block: Block, first: int) -> None:
        """Writes S^T = K Q^T of the queries from that vector on, two tiles of keys at a time. Where K's rows are read in place,
        those that pass the last one, and those that vectors multiply, are copied first."""
        t, unit, BM, pairs = self.t, self.unit, self.config.BM, self.tiles.pairs
        pointer, column = unit.pointer(scores, self.types.scores), first * t.width

        def by_tiles(i: str, keys: Tile) -> None:
            unit.clear(2, 2)
            for pair in range(0, pairs, PAIRS):
                queries = Tile(self.at["queries"], 4 * BM, 4 * (pair * BM + column))
                unit.add_product(replace(keys, offset=4 * pair).below(2), queries, 2)
            unit.store(Tile(unit.moved(pointer, i, 4 * STEP), 4 * STEP), 2, 2)

        def by_vectors(i: str, copied: str) -> None:
            def some(key: str) -> None:
                rows = [t.shifted(t.arith("addi", i, key), r) for r in range(_ROWS)]
                columns = [t.shifted(t.arith("addi", copied, key), r) for r in range(_ROWS)]
                scalars = [self._column(self.keys, self.tiles.copied_type, row) for row in columns]
                zeros = [[t.splat(0.0)] * _VECTORS] * _ROWS
                made = fma_tile(
                    t, self.product.multiply, scalars, pairs, 2, self.queries, self.tiles.queries_type, zeros, first
                )
                for row, vectors in zip(rows, made, strict=True):
                    for j, x in enumerate(vectors):
                        t.write(x, scores, self.types.scores, row, self.operands.lane(j))

            self._each(t.index(0), t.index(STEP), _ROWS, some)

        def from_copy(i: str, copied: str) -> None:
            keys = Tile(unit.moved(self.at["keys"], copied, 4 * pairs), 4 * pairs)
            unit.if_granted(lambda: by_tiles(i, keys), lambda: by_vectors(i, copied))

        def in_place(i: str, row_bytes: int) -> None:
            first, direct = t.arith("addi", block.k0, i), unit.granted
            if passes_last_key(self.operands, block):
                inside = t.arith("cmpi sle,", t.shifted(first, STEP), self.operands.skv)
                direct = t.arith("andi", direct, inside, "i1")
            t.do(f"scf.if {direct} {{")
            by_tiles(i, Tile(unit.moved(self.keys_at, first, row_bytes), row_bytes))
            t.do("} else {")
            self.tiles.copy_keys(self.keys, replace(block, k0=first, rows=t.index(STEP)))
            from_copy(i, t.index(0))
            t.do("}")

        stored = self.tiles.key_bytes
        self._each(t.index(0), block.rows, STEP, lambda i: from_copy(i, i) if stored is None else in_place(i, stored))

    def add_values(self, state: SoftmaxState, decay: Sequence[str], block: Block, part: slice) -> SoftmaxState:
        t, acc_type, dv = self.t, self.types.acc, self.spec.Dv
        made = t.let(f"scf.if {self.unit.granted} -> ({acc_type}) {{")
        for adds, count, end in ((self._add_by_tiles, STEP, "} else {"), (self._add_by_vectors, _ROWS, "}")):
            rest = dv % count

            def body(d: str, acc: str, count: int, adds: _Adds = adds) -> str:
                return adds(state.scores, acc, decay, block, part, d, count)

            def whole(d: str, carried: list[str], count: int = count, body: _Body = body) -> list[str]:
                return [body(d, carried[0], count)]

            acc = t.loop((t.index(0), t.index(dv - rest), t.index(count)), [(state.acc, acc_type)], whole)[0]
            if rest:
                acc = body(t.index(dv - rest), acc, rest)
            t.do(f"scf.yield {acc} : {acc_type}")
            t.do(end)
        return replace(state, acc=made)

    def _add_by_tiles(
        self, scores: str, acc: str, decay: Sequence[str], block: Block, part: slice, d: str, count: int
    ) -> str:
        """O^T of a part's queries and `count` head dims from d on."""
        t, unit, config = self.t, self.unit, self.config
        down, row_bytes = count // ROWS, 4 * (config.BK // 2)
        values = unit.moved(self.at["values"], d, row_bytes)
        weights = unit.pointer(scores, self.types.scores)

        def step(i: str) -> None:
            left = Tile(unit.moved(values, i, 4 * PAIRS), row_bytes)
            right = Tile(unit.moved(weights, i, 4 * PAIRS * STEP), 4 * STEP)
            unit.add_product(left.below(down), right, 2)

        unit.clear(down, 2)
        if block.edge:
            self._each(t.index(0), t.arith("divui", block.rows, t.index(STEP)), 1, step)
        else:
            for i in range(config.BK // STEP):
                step(t.index(i))
        unit.store(Tile(self.at["sums"], 4 * STEP), down, 2)

        def update(r: str, carried: list[str]) -> list[str]:
            new = [t.read(self.sums, self.sums_type, r, self.operands.lane(j)) for j in range(_VECTORS)]
            return [self._decayed(carried[0], t.arith("addi", d, r), part, decay, new)]

        return t.loop((t.index(0), t.index(count), t.index(1)), [(acc, self.types.acc)], update)[0]

    def _add_by_vectors(
        self, scores: str, acc: str, decay: Sequence[str], block: Block, part: slice, d: str, count: int
    ) -> str:
        """The same by products of vectors."""
        t = self.t
        dims = [t.shifted(d, r) for r in range(count)]
        columns = [self._column(self.values, self.tiles.values_type, x) for x in dims]
        zeros = [[t.splat(0.0)] * _VECTORS] * count
        steps = t.arith("divui", block.rows, t.index(2))
        new = fma_tile(t, self.product.multiply, columns, steps, 2, scores, self.types.scores, zeros)
        for x, row in zip(dims, new, strict=True):
            acc = self._decayed(acc, x, part, decay, row)
        return acc

    def _decayed(self, acc: str, d: str, part: slice, decay: Sequence[str], new: Sequence[str]) -> str:
        """O^T with a head dim of a part's queries decayed, and what is new added."""
        t, type_ = self.t, self.types.acc
        for j, (of, x) in enumerate(zip(decay, new, strict=True)):
            lane = self.operands.lane(part.start + j)
            acc = t.write(add_decayed(t, t.read(acc, type_, d, lane), of, x), acc, type_, d, lane)
        return acc

    def finish_output(self, state: SoftmaxState, inverse: Callable[[str], str]) -> str:
        self.unit.release()
        return super().finish_output(state, inverse)

    def _column(self, memory: str, type_: str, row: str) -> Callable[[str], str]:
        return lambda step: self.t.extract(memory, type_, row, step)

    def _each(self, low: str, high: str, step: int, body: Callable[[str], None]) -> None:
        """body(i) for each i, which changes memory alone."""
        t = self.t
        i = t.fresh()
        t.do(f"scf.for {i} = {low} to {high} step {t.index(step)} {{")
        body(i)
        t.do("}")


_Adds = Callable[[str, str, Sequence[str], Block, slice, str, int], str]
_Body = Callable[[str, str, int], str]
