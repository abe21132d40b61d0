"""Blocks of keys for a few queries of several key/value heads, whose rows of K and V lie side by side: a workgroup takes a key
with all of these heads, so that it reads memory from one end to the other. Of heads taken one by one, each page of K and V holds
a piece or two, and the processor, which fetches ahead within a page, waits for the first lines of every piece.

Query r is of head r // (queries of a head). Otherwise this is few_kernel.py: products with a key are summed along the head dim in a
vector for each query, and these vectors are turned and added up as many keys at a time as there are lanes.

Of K and V as integers a row holds those of all heads too, and so do scales and zero points that the heads have of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from onnx_fa.kernels.cpu.dequantize import Integers
from onnx_fa.kernels.cpu.few_kernel import FewKernel
from onnx_fa.kernels.cpu.key_rows import keys_with_values, row_at
from onnx_fa.kernels.cpu.masks import ScoreTerms
from onnx_fa.kernels.cpu.operands import Operands
from onnx_fa.kernels.cpu.query_rows import VectorPerQuery
from onnx_fa.kernels.cpu.recurrence import add_decayed
from onnx_fa.kernels.cpu.state import Block, Slab, SoftmaxState
from onnx_fa.kernels.mlir.text import tensor_type

PAGE = 4096
"""Bytes within which a processor fetches ahead."""
_KEYS_AT_ONCE = 4
"""Keys whose values are added together where each lies in a page of its own: the output of a head is then read and written once
for all of them. Keys that share a page are added one after the other, as they lie there: several of them head by head took up to a
third longer to read from memory."""


class RowsKernel(FewKernel):
    """The BlockKernel for a spec whose queries are those of `operands.heads` heads. D and Dv are whole vectors."""

    def __init__(self, terms: ScoreTerms, rows: VectorPerQuery) -> None:
        super().__init__(terms, rows)
        w, each = self.config.lanes, self.config.BM // self.operands.heads
        self.queries_of = [range(h * each, (h + 1) * each) for h in range(self.operands.heads)]
        self.products_type = tensor_type((self.config.BM, w, w), "f32")
        self.types = replace(self.types, scratch=(self.types.acc,))
        self.keys_at_once = _KEYS_AT_ONCE if bytes_between_keys(self.operands) >= PAGE else 1
        registers = 2 * w  # of AVX-512 and AVX2; NEON has more
        # Of the output of a head, so many vectors of each query stay in registers, beside a value and a weight.
        self.dims_at_once = max(1, (registers * 3 // 4) // each)

    def scores(self, state: SoftmaxState, block: Block, part: slice) -> tuple[str, list[str]]:
        t, tile_type = self.t, self.types.scores

        def body(i: str, carried: list[str]) -> list[str]:
            tile, best = carried[0], carried[2:]
            keys = self.few_scores.keys_at(i, block)
            lanes = (t.index(0), t.index(t.width), t.index(1))
            (products,) = t.loop(
                lanes, [(carried[1], self.products_type)], lambda j, c: [self._multiply_key(i, j, c[0], block)]
            )
            for r in range(self.config.BM):
                sums = [
                    t.read(products, self.products_type, t.index(r), t.index(n), t.index(0)) for n in range(t.width)
                ]
                product = self._times_scale(t.sum_lanes(sums), self.operands.k_integers, keys, block)
                s = self.few_scores.score(product, keys, r, block)
                tile = t.write(s, tile, tile_type, t.index(r), i)
                if best:
                    best[r] = t.maximum(s, best[r])
            return [tile, products, *best]

        carried = [
            (state.scores, tile_type),
            (t.empty(self.products_type), self.products_type),
            *((b, t.vec) for b in state.best),
        ]
        tile, _, *best = t.loop((t.index(0), block.rows, t.index(t.width)), carried, body)
        return tile, [self.rows.reduce(b, "maxnumf") for b in best]

    def _multiply_key(self, i: str, j: str, products: str, block: Block) -> str:
        """The tile with the products of all queries and the key at place i + j, each a vector whose lanes are still to be added."""
        t, operands = self.t, self.operands
        key = row_at(operands, block, t.arith("addi", i, j)).stored
        read, scaled = self._reader(operands.k, operands.k_integers, key, self.spec.D)
        for h, queries in enumerate(self.queries_of):
            sums = [t.splat(0.0)] * len(queries)
            for n in range(self.vectors_of_d):
                x = read(t.index(h * self.spec.D + n * t.width))
                for place, r in enumerate(queries):
                    q = t.read(self.queries, self.queries_type, t.index(r), t.index(n * t.width))
                    sums[place] = t.vop("vector.fma", q, x, sums[place])
            for r, x in zip(queries, scaled(h, sums), strict=True):
                products = t.write(x, products, self.products_type, t.index(r), j, t.index(0))
        return products

    def _reader(
        self, slab: Slab, integers: Integers | None, key: str, width: int
    ) -> tuple[Callable[[str], str], Callable[[int, list[str]], list[str]]]:
        """A function from a column to a key's numbers from there on, and one that multiplies vectors by what that leaves out, where
        each head's row of integers has one scale. One for all heads is `_times_scale`'s."""
        t = self.t
        if integers is None:
            return lambda d: self.operands.read_f32(slab, key, d), lambda h, x: x
        if integers.one_per_row:
            return integers.row(key, scaled=False), lambda h, x: x
        if integers.scale.shared != width or integers.scale.element != "f32":
            return integers.row(key), lambda h, x: x

        def times_scale(h: int, vectors: list[str]) -> list[str]:
            scale = t.broadcast(integers.scale.at(t, key, t.index(h * width)))
            return [t.vop("arith.mulf", x, scale) for x in vectors]

        return integers.row(key, scaled=False), times_scale

    def add_values(self, state: SoftmaxState, decay: Sequence[str], block: Block, part: slice) -> SoftmaxState:
        """O = O decay + P V, with P V of the block in a tile of its own: no registers hold the output of so many queries."""
        t, acc_type = self.t, self.types.acc
        places = [(r, n) for r in range(self.config.BM) for n in range(self.vectors_of_dv)]

        def at(r: int, n: int) -> tuple[str, str]:
            return t.index(r), t.index(n * t.width)

        acc, (new,) = state.acc, state.scratch
        for r, n in places:
            new = t.write(t.splat(0.0), new, acc_type, *at(r, n))
        keys, count = keys_with_values(self.operands, block, self.keys_at_once)
        bounds = (t.index(0), keys, t.index(count))
        (new,) = t.loop(bounds, [(new, acc_type)], lambda i, c: [self._add_keys(i, count, c[0], state.scores, block)])
        for r, n in places:
            old, x = t.read(acc, acc_type, *at(r, n)), t.read(new, acc_type, *at(r, n))
            acc = t.write(add_decayed(t, old, decay[r], x), acc, acc_type, *at(r, n))
        return replace(state, acc=acc, scratch=(new,))

    def _add_keys(self, i: str, count: int, new: str, scores: str, block: Block) -> str:
        """The tile with the products of all queries and the values of so many keys from place i on."""
        t, operands, width, acc_type = self.t, self.operands, self.spec.Dv, self.types.acc
        places = [t.shifted(i, u) for u in range(count)]
        keys = [row_at(operands, block, place).stored for place in places]
        readers = [self._reader(operands.v, operands.v_integers, key, width) for key in keys]

        def weight(r: int, place: str) -> str:
            return t.broadcast(t.let(f"tensor.extract {scores}[{t.index(r)}, {place}] : {self.types.scores}"))

        for h, queries in enumerate(self.queries_of):
            weights = [
                scaled(h, [weight(r, place) for r in queries])
                for place, (_, scaled) in zip(places, readers, strict=True)
            ]
            for n0 in range(0, self.vectors_of_dv, self.dims_at_once):
                dims = range(n0, min(n0 + self.dims_at_once, self.vectors_of_dv))
                at = {(r, n): (t.index(r), t.index(n * t.width)) for r in queries for n in dims}
                sums = {place: t.read(new, acc_type, *where) for place, where in at.items()}
                for own, (read, _) in zip(weights, readers, strict=True):
                    for n in dims:
                        x = read(t.index(h * width + n * t.width))
                        for r, p in zip(queries, own, strict=True):
                            sums[r, n] = t.vop("vector.fma", p, x, sums[r, n])
                for place, where in at.items():
                    new = t.write(sums[place], new, acc_type, *where)
        return new


def bytes_between_keys(operands: Operands) -> int:
    """From a key's values to those of the next one."""
    spec = operands.spec
    behind = operands.stored_shapes[2][spec.v_layout.index(spec.rank - 2) + 1 :]
    numbers = math.prod(d for d in behind if isinstance(d, int))
    return numbers * {"f32": 4, "i8": 1}.get(operands.v.element, 2)
