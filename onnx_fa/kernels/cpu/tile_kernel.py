"""Blocks of keys whose products a processor's tiles make, and vectors where it gives none: queries lie along the lanes, as in
`LaneKernel`, which does all but the products. Which numbers tiles multiply is for a subclass: bf16 (amx_kernel.py), or f32 as three
of them (split_kernel.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from onnx_fa.kernels.cpu.amx import ROWS, TileUnit
from onnx_fa.kernels.cpu.key_rows import row_at
from onnx_fa.kernels.cpu.lane_kernel import LaneKernel
from onnx_fa.kernels.cpu.masks import ScoreTerms
from onnx_fa.kernels.cpu.products import Product
from onnx_fa.kernels.cpu.recurrence import add_decayed
from onnx_fa.kernels.cpu.state import Block, SoftmaxState
from onnx_fa.kernels.mlir.text import memref_type

STEP = 2 * ROWS
"""Keys, queries or head dims of two tiles."""
ACROSS = 2
"""Vectors of queries, that two tiles hold."""
AT_ONCE = 8
"""Keys or head dims that vectors multiply at once."""
_LOOKED_AT = 4
"""Keys whose scores one step of a loop looks at."""


class TileKernel(LaneKernel, ABC):
    """The BlockKernel whose scores and probabilities are in memory that tiles are loaded from and stored to."""

    def __init__(self, terms: ScoreTerms, product: Product) -> None:
        super().__init__(terms, product)
        scores = memref_type((self.config.BK, STEP), "f32")
        scratch = self.types.scratch[:-1] if product.copied_type else self.types.scratch
        self.types = replace(self.types, scores=scores, scratch=scratch)
        self.sums_type = memref_type((STEP, STEP), "f32")

    @property
    def parts(self) -> Sequence[slice]:
        """Two tiles of queries at a time: what they work on lies in the first cache then."""
        return tuple(slice(j, j + ACROSS) for j in range(0, self.vectors, ACROSS))

    def needs(self, part: slice) -> str:
        if not (part.start and self.operands.few_queries):
            return ""
        return self.t.test("slt", self.operands.lane(part.start), self.operands.rows)

    @property
    def computed(self) -> int | str:
        t = self.t
        if not self.operands.few_queries:
            return self.config.BM
        # By an And, behind which the compiler does not look for bounds (key_rows.py).
        return t.arith("andi", t.shifted(self.operands.rows, STEP - 1), t.index(-STEP))

    def load_queries(self) -> None:
        self.unit = TileUnit(self.t)
        self.sums = self.t.empty(self.sums_type)

    @abstractmethod
    def multiply_keys(self, scores: str, block: Block, first: int) -> None:
        """Writes S^T = K Q^T of the block and the queries from that vector on."""

    @abstractmethod
    def multiply_values(self, scores: str, block: Block, part: slice, d: str, count: int) -> None:
        """Writes to `sums` V^T P of a part's queries and `count` head dims from d on, by tiles."""

    @abstractmethod
    def values_by_vectors(self, scores: str, block: Block, d: str, count: int) -> list[list[str]]:
        """The same as vectors, for each of fewer head dims, by products of vectors."""

    def scores(self, state: SoftmaxState, block: Block, part: slice) -> tuple[str, list[str]]:
        self.multiply_keys(state.scores, block, part.start)
        return state.scores, self.masked(state.scores, state, block, part)

    def masked(self, scores: str, state: SoftmaxState, block: Block, part: slice) -> list[str]:
        """Makes what the softmax sees of the products of a part, and finds the new maxima."""
        t, type_ = self.t, self.types.scores

        def body(i: str, carried: list[str]) -> list[str]:
            best = list(carried)
            for r in range(_LOOKED_AT):
                row = row_at(self.operands, block, t.shifted(i, r))
                for j in range(ACROSS):
                    lane = self.operands.lane(j)
                    raw = self.product.scale_score(t.read(scores, type_, row.at, lane))
                    s = self.lane_scores.score(raw, row, part.start + j, block)
                    t.write(s, scores, type_, row.at, lane)
                    if best:
                        best[j] = t.maximum(s, best[j])
            return best

        bounds, carried = (t.index(0), block.rows, t.index(_LOOKED_AT)), [(b, t.vec) for b in state.best[part]]
        if carried:
            return t.loop(bounds, carried, body)

        def change(i: str) -> None:
            body(i, [])

        t.each(bounds, change)
        return []

    def add_by_tiles(self, state: SoftmaxState, decay: Sequence[str], block: Block, part: slice) -> str:
        """O^T with what a block adds to a part's queries, by tiles."""

        def some(d: str, acc: str, count: int) -> str:
            self.multiply_values(state.scores, block, part, d, count)
            return self.add_sums(acc, self.sums, self.sums_type, d, count, decay, part)

        return self._over_head_dims(state.acc, STEP, some)

    def add_by_vectors(self, state: SoftmaxState, decay: Sequence[str], block: Block, part: slice) -> str:
        """The same by products of vectors."""

        def some(d: str, acc: str, count: int) -> str:
            for r, row in enumerate(self.values_by_vectors(state.scores, block, d, count)):
                acc = self._decayed(acc, self.t.shifted(d, r), part, decay, row)
            return acc

        return self._over_head_dims(state.acc, AT_ONCE, some)

    def _over_head_dims(self, acc: str, step: int, some: Callable[[str, str, int], str]) -> str:
        """O^T behind some(d, O^T, step) for each step of head dims, the last of which has the rest."""
        t, type_, rest = self.t, self.types.acc, self.spec.Dv % step
        bounds = t.index(0), t.index(self.spec.Dv - rest), t.index(step)
        acc = t.loop(bounds, [(acc, type_)], lambda d, carried: [some(d, carried[0], step)])[0]
        return some(t.index(self.spec.Dv - rest), acc, rest) if rest else acc

    def add_sums(self, acc: str, sums: str, type_: str, d: str, count: int, decay: Sequence[str], part: slice) -> str:
        """O^T of a part's queries and `count` head dims from d on, decayed, and these sums added."""
        t = self.t

        def update(r: str, carried: list[str]) -> list[str]:
            new = [t.read(sums, type_, r, self.operands.lane(j)) for j in range(ACROSS)]
            return [self._decayed(carried[0], t.arith("addi", d, r), part, decay, new)]

        return t.loop((t.index(0), t.index(count), t.index(1)), [(acc, self.types.acc)], update)[0]

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
