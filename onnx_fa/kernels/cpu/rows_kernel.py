"""Blocks of keys for a few queries of several key/value heads, whose rows of K and V lie side by side: a workgroup takes a key
with all of these heads, so that it reads memory from one end to the other. Of heads taken one by one, each page of K and V holds
a piece or two, and the processor, which fetches ahead within a page, waits for the first lines of every piece.

Query r is of head r // (queries of a head). Otherwise this is few_kernel.py: products with a key are summed along the head dim in a
vector for each query, and these vectors are turned and added up as many keys at a time as there are lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from onnx_fa.kernels.cpu.few_kernel import FewKernel
from onnx_fa.kernels.cpu.key_rows import keys_with_values, row_at
from onnx_fa.kernels.cpu.masks import ScoreTerms
from onnx_fa.kernels.cpu.query_rows import VectorPerQuery
from onnx_fa.kernels.cpu.recurrence import add_decayed
from onnx_fa.kernels.cpu.state import Block, SoftmaxState
from onnx_fa.kernels.mlir.text import tensor_type


class RowsKernel(FewKernel):
    """The BlockKernel for a spec whose queries are those of `operands.heads` heads. D and Dv are whole vectors, K and V numbers."""

    def __init__(self, terms: ScoreTerms, rows: VectorPerQuery) -> None:
        super().__init__(terms, rows)
        w, each = self.config.lanes, self.config.BM // self.operands.heads
        self.queries_of = [range(h * each, (h + 1) * each) for h in range(self.operands.heads)]
        self.products_type = tensor_type((self.config.BM, w, w), "f32")
        self.types = replace(self.types, scratch=(self.types.acc,))

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
                s = self.few_scores.score(t.sum_lanes(sums), keys, r, block)
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
        for h, queries in enumerate(self.queries_of):
            sums = [t.splat(0.0)] * len(queries)
            for n in range(self.vectors_of_d):
                x = operands.read_f32(operands.k, key, t.index(h * self.spec.D + n * t.width))
                for place, r in enumerate(queries):
                    q = t.read(self.queries, self.queries_type, t.index(r), t.index(n * t.width))
                    sums[place] = t.vop("vector.fma", q, x, sums[place])
            for r, x in zip(queries, sums, strict=True):
                products = t.write(x, products, self.products_type, t.index(r), j, t.index(0))
        return products

    def add_values(self, state: SoftmaxState, decay: Sequence[str], block: Block, part: slice) -> SoftmaxState:
        """O = O decay + P V, with P V of the block in a tile of its own: no registers hold the output of so many queries."""
        t, operands, acc_type = self.t, self.operands, self.types.acc
        places = [(r, n) for r in range(self.config.BM) for n in range(self.vectors_of_dv)]

        def at(r: int, n: int) -> tuple[str, str]:
            return t.index(r), t.index(n * t.width)

        def add_key(i: str, carried: list[str]) -> list[str]:
            new, key = carried[0], row_at(operands, block, i).stored
            for h, queries in enumerate(self.queries_of):
                weights = [
                    t.broadcast(t.let(f"tensor.extract {state.scores}[{t.index(r)}, {i}] : {self.types.scores}"))
                    for r in queries
                ]
                for n in range(self.vectors_of_dv):
                    x = operands.read_f32(operands.v, key, t.index(h * self.spec.Dv + n * t.width))
                    for r, p in zip(queries, weights, strict=True):
                        old = t.read(new, acc_type, *at(r, n))
                        new = t.write(t.vop("vector.fma", p, x, old), new, acc_type, *at(r, n))
            return [new]

        acc, (new,) = state.acc, state.scratch
        for r, n in places:
            new = t.write(t.splat(0.0), new, acc_type, *at(r, n))
        keys, _ = keys_with_values(operands, block, 1)
        (new,) = t.loop((t.index(0), keys, t.index(1)), [(new, acc_type)], add_key)
        for r, n in places:
            old, x = t.read(acc, acc_type, *at(r, n)), t.read(new, acc_type, *at(r, n))
            acc = t.write(add_decayed(t, old, decay[r], x), acc, acc_type, *at(r, n))
        return replace(state, acc=acc, scratch=(new,))
