"""Operands of attention in f32 as AMX multiplies them: each number as three of bf16 (split_products.py), in memory that a worker
has in its caches.

    S^T = K Q^T:    K, a row of words per key;         Q^T, a column per query
    O^T = V^T P:    V^T, a row of words per head dim;  P, a column per query

K and P are cut, which takes less time; Q and V are split to the nearest.

A word is a pair of bf16 that lie 16 apart along what is summed, head dims or keys. Tiles of 16 by 16 words stand one behind the
other, those that are multiplied after each other too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onnx_fa.kernels.cpu.amx import ROWS
from onnx_fa.kernels.cpu.key_rows import passes_last_key, row_at
from onnx_fa.kernels.cpu.operands import Operands
from onnx_fa.kernels.cpu.pointers import behind, moved, store_vector
from onnx_fa.kernels.cpu.split_products import LARGEST, PARTS, STEP, TILE_BYTES, magnitude_of, split_pair
from onnx_fa.kernels.cpu.state import Block, Slab
from onnx_fa.kernels.cpu.tile_kernel import ACROSS
from onnx_fa.kernels.cpu.tiles import CpuTiles
from onnx_fa.spec.attention import AttentionSpec

_SMALLEST = 0x0D800000
"""The bits of 2^-100: of smaller values AMX takes parts that count for zeros."""
_ROW_BYTES = 64


@dataclass(frozen=True)
class SplitLayout:
    """The bytes of what a workgroup splits, one behind the other."""

    spec: AttentionSpec
    config: CpuTiles

    @property
    def steps(self) -> int:
        """Of head dims that are summed."""
        return -(-self.spec.D // STEP)

    @property
    def key_tile(self) -> int:
        """16 keys, all steps."""
        return self.steps * PARTS * TILE_BYTES

    @property
    def query_part(self) -> int:
        """32 queries, all steps."""
        return ACROSS * self.key_tile

    @property
    def value_tile(self) -> int:
        """16 head dims, all keys of a block."""
        return self.config.BK // STEP * PARTS * TILE_BYTES

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of queries, keys, values, and probabilities of two parts, as those of the next are written while these are multiplied."""
        weights = self.config.BK // STEP * ACROSS * PARTS * TILE_BYTES
        return (
            self.config.BM // STEP * self.query_part,
            self.config.BK // ROWS * self.key_tile,
            -(-self.spec.Dv // STEP) * ACROSS * self.value_tile,
            weights,
            weights,
        )

    @property
    def bytes(self) -> int:
        return sum(self.sizes)


class SplitOperands:
    """Splits the operands of a workgroup into memory that begins at a pointer. `factor` is what queries are multiplied by."""

    def __init__(self, operands: Operands, factor: float, memory: str) -> None:
        self.operands, self.t, self.factor = operands, operands.t, factor
        self.layout = SplitLayout(operands.spec, operands.config)
        sizes = self.layout.sizes
        self.queries, self.keys, self.values, *self.weights = (
            behind(self.t, memory, sum(sizes[:i])) for i in range(len(sizes))
        )

    def split_queries(self) -> str:
        """Writes Q^T, times its factor, 16 queries at a time. Whether all of its numbers are ordinary, i1."""
        t, config = self.t, self.operands.config

        def tile(row: str, carried: list[str]) -> list[str]:
            number = t.arith("divui", row, t.index(ROWS))
            column = t.arith("remui", number, t.index(ACROSS))
            part = t.arith("divui", number, t.index(ACROSS))
            to = moved(t, moved(t, self.queries, part, self.layout.query_part), column, TILE_BYTES)

            def step(s: str, count: int, largest: str) -> str:
                low, high = (self._columns(row, s, i, count) for i in range(2))
                target = moved(t, to, s, PARTS * ACROSS * TILE_BYTES)
                for r, (a, b) in enumerate(zip(low, high, strict=True)):
                    largest = self._larger(largest, a, b)
                    self._store(split_pair(t, a, b), target, ACROSS * TILE_BYTES, r)
                return largest

            return [self._over_head_dims(step, carried[0])]

        bounds = t.index(0), t.index(config.BM), t.index(ROWS)
        return self._is_ordinary(t.loop(bounds, [(self._zeros, t.ivec)], tile)[0])

    def load_part(self, first: int, tile: str, type_: str) -> None:
        """Writes Q^T of the queries from that vector on, times its factor, as f32."""
        t, D = self.t, self.operands.spec.D

        def columns(d: str) -> None:
            for j in range(ACROSS):
                row = self.operands.lane(first + j)
                for r, x in enumerate(self._transposed(row, d)):
                    t.write(x, tile, type_, t.shifted(d, r), self.operands.lane(j))

        t.each((t.index(0), t.index(D), t.index(ROWS)), columns)

    def split_keys(self, block: Block) -> str:
        """Writes a block of K, a key at a time. Whether all of its numbers are ordinary."""
        t, k = self.t, self.operands.k

        def tile(first: str, carried: list[str]) -> list[str]:
            to = moved(t, self.keys, t.arith("divui", first, t.index(ROWS)), self.layout.key_tile)

            def key(i: str, inner: list[str]) -> list[str]:
                row = row_at(self.operands, block, t.arith("addi", first, i)).stored
                target = moved(t, to, i, _ROW_BYTES)

                def step(s: str, count: int, largest: str) -> str:
                    at = t.arith("muli", s, t.index(STEP))
                    low, high = (self._number_of(k, row, at, i, count) for i in range(2))
                    parts = split_pair(t, low, high, cut=True)
                    self._store(parts, moved(t, target, s, PARTS * TILE_BYTES), TILE_BYTES, 0)
                    return self._larger(largest, low, high)

                return [self._over_head_dims(step, inner[0])]

            return t.loop((t.index(0), t.index(ROWS), t.index(1)), [(carried[0], t.ivec)], key)

        bounds = t.index(0), block.rows, t.index(ROWS)
        return self._is_ordinary(t.loop(bounds, [(self._zeros, t.ivec)], tile)[0])

    def split_values(self, block: Block) -> str:
        """Writes V^T of a block, 32 keys by 16 head dims at a time; past the last key it is zeros, for 0 times an infinite value is
        NaN. Whether all of its numbers are ordinary, and none so small that parts of it are lost."""
        t, Dv = self.t, self.operands.spec.Dv

        def keys(first: str, carried: list[str]) -> list[str]:
            step = t.arith("divui", first, t.index(STEP))
            target = moved(t, self.values, step, PARTS * TILE_BYTES)

            def dims(d: str, inner: list[str]) -> list[str]:
                largest, least = inner
                halves = []
                for half in range(2):
                    rows = [self._value(block, t.shifted(first, ROWS * half + i), d) for i in range(ROWS)]
                    for x in rows:
                        largest, least = self._larger(largest, x), self._smaller(least, x)
                    halves.append(t.transpose(rows))
                to = moved(t, target, t.arith("divui", d, t.index(ROWS)), self.layout.value_tile)
                for r, (low, high) in enumerate(zip(*halves, strict=True)):
                    self._store(split_pair(t, low, high), to, TILE_BYTES, r)
                return [largest, least]

            bounds = t.index(0), t.index(Dv), t.index(ROWS)
            return t.loop(bounds, [(x, t.ivec) for x in carried], dims)

        started = [(self._zeros, t.ivec), (t.dense("-1", "i32"), t.ivec)]
        largest, least = t.loop((t.index(0), block.rows, t.index(STEP)), started, keys)
        # Zeros are -1 here, the largest of numbers without a sign.
        tiny = t.let(f"vector.reduction <minui>, {least} : {t.ivec} into i32")
        none_lost = t.let(f"arith.cmpi uge, {tiny}, {t.constant(str(_SMALLEST - 1), 'i32')} : i32")
        return t.arith("andi", self._is_ordinary(largest), none_lost, "i1")

    def store_weights(self, weights: str, step: str, r: str, column: int, low: str, high: str) -> None:
        """Writes to the `weights` of a part the probabilities of keys r and 16 + r of a step, of a vector of queries."""
        t = self.t
        at = moved(t, moved(t, weights, step, PARTS * ACROSS * TILE_BYTES), r, _ROW_BYTES)
        parts = split_pair(t, low, high, cut=True)
        self._store(parts, behind(t, at, column * TILE_BYTES), ACROSS * TILE_BYTES, 0)

    # Numbers.

    @property
    def _zeros(self) -> str:
        return self.t.dense("0", "i32")

    def _over_head_dims(self, step: Callable[[str, int, str], str], carried: str) -> str:
        """step(s, how many of its head dims there are, what is carried) for each step of D."""
        t, whole, rest = self.t, self.operands.spec.D // STEP, self.operands.spec.D % STEP
        bounds = t.index(0), t.index(whole), t.index(1)
        made = t.loop(bounds, [(carried, t.ivec)], lambda s, c: [step(s, STEP, c[0])])[0]
        return step(t.index(whole), rest, made) if rest else made

    def _columns(self, row: str, s: str, half: int, count: int) -> list[str]:
        """Q^T of 16 queries and 16 head dims, half of a step, zeros where it has not so many."""
        t = self.t
        if half * ROWS >= count:
            return [t.splat(0.0)] * ROWS
        return self._transposed(row, t.shifted(t.arith("muli", s, t.index(STEP)), half * ROWS))

    def _transposed(self, row: str, d: str) -> list[str]:
        t, operands, scale = self.t, self.operands, self.t.splat(self.factor)
        rows = [operands.read_f32(operands.q, operands.query_row(t.shifted(row, i)), d) for i in range(ROWS)]
        return [t.vop("arith.mulf", x, scale) for x in t.transpose(rows)]

    def _number_of(self, slab: Slab, row: str, at: str, half: int, count: int) -> str:
        t = self.t
        return t.splat(0.0) if half * ROWS >= count else self.operands.read_f32(slab, row, t.shifted(at, half * ROWS))

    def _value(self, block: Block, place: str, d: str) -> str:
        t, row = self.t, row_at(self.operands, block, place)
        x = self.operands.read_f32(self.operands.v, row.stored, d)
        if not passes_last_key(self.operands, block):
            return x
        inside = t.broadcast(t.test("slt", row.key, self.operands.skv), "i1")
        return t.select(inside, x, t.splat(0.0))

    def _store(self, parts: list[str], pointer: str, apart: int, row: int) -> None:
        for i, words in enumerate(parts):
            store_vector(self.t, words, self.t.ivec, pointer, i * apart + row * _ROW_BYTES)

    def _larger(self, largest: str, *numbers: str) -> str:
        """The largest magnitudes so far, whose order is that of their bits."""
        for x in numbers:
            largest = self.t.arith("maxsi", largest, magnitude_of(self.t, x), self.t.ivec)
        return largest

    def _smaller(self, least: str, x: str) -> str:
        """The least magnitudes so far but zeros', each less one."""
        t = self.t
        less = t.arith("addi", magnitude_of(self.t, x), t.dense("-1", "i32"), t.ivec)
        return t.arith("minui", least, less, t.ivec)

    def _is_ordinary(self, largest: str) -> str:
        """Whether no magnitude is too large for a split, or not finite."""
        t = self.t
        most = t.let(f"vector.reduction <maxsi>, {largest} : {t.ivec} into i32")
        return t.let(f"arith.cmpi sle, {most}, {t.constant(str(LARGEST), 'i32')} : i32")
