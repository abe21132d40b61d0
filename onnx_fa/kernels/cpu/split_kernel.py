"""Blocks of keys of f32 whose products AMX makes, of numbers that are split into three of bf16 (split_operands.py).

A workgroup splits its queries once, and each block of keys and values once for all of them; the probabilities are split as they
come out. Tiles and vectors work at the same time: while a part of the queries has its exponentials taken, tiles multiply the
probabilities of the part before by the values, and the queries of the next by the keys (Shah et al. 2024, "FlashAttention-3",
arXiv:2407.08608, section 3.2, does so with warps of a GPU).

Blocks with numbers that have no such parts, that are not finite or too large, or values so small that AMX takes parts of them for
zeros, are multiplied by vectors, and so is everything where the processor gives no tiles, or where there are so few queries that
splitting keys for them takes longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from onnx_fa.kernels.cpu.addresses import Addresses, Helpers
from onnx_fa.kernels.cpu.amx import ROWS, Tile
from onnx_fa.kernels.cpu.key_rows import keys_with_values, row_at
from onnx_fa.kernels.cpu.masks import ScoreTerms
from onnx_fa.kernels.cpu.pointers import behind, moved
from onnx_fa.kernels.cpu.products import FusedProducts
from onnx_fa.kernels.cpu.recurrence import either_state, grown, summed, visit_in_turn
from onnx_fa.kernels.cpu.slots import Slots, take_slot
from onnx_fa.kernels.cpu.split_operands import SplitLayout, SplitOperands
from onnx_fa.kernels.cpu.split_products import HALVES, PARTS, TILE_BYTES, add_split_products
from onnx_fa.kernels.cpu.state import Block, SoftmaxState
from onnx_fa.kernels.cpu.sweep import Sweep
from onnx_fa.kernels.cpu.tile_kernel import ACROSS, AT_ONCE, STEP, TileKernel
from onnx_fa.kernels.cpu.tile_loops import fma_tile
from onnx_fa.kernels.cpu.worker_memory import WorkerMemory
from onnx_fa.kernels.mlir.text import memref_type
from onnx_fa.spec.attention import AttentionSpec

LEAST_QUERIES = 64
"""So many of a workgroup are worth splitting keys for."""
_RIGHT = PARTS * ACROSS * TILE_BYTES
"""Bytes of a step of a right factor."""


@dataclass(frozen=True)
class Products:
    """So many products of two by two tiles, each of `steps`: of the n-th, `lefts` are the left factors, `right` the right one, and
    the sums are written to `to`."""

    count: int
    steps: int
    lefts: Callable[[str], Sequence[str]]
    right: Callable[[str], str]
    to: Callable[[str], Tile]


def rows_of_sums(spec: AttentionSpec) -> int:
    """Head dims of V in whole products, or those of Q."""
    return max(spec.D, -(-spec.Dv // STEP) * STEP)


class SplitKernel(TileKernel):
    """The BlockKernel of the dispatch `symbol`, whose workers have a slot of `memory` each."""

    def __init__(self, terms: ScoreTerms, product: FusedProducts, symbol: str, memory: WorkerMemory) -> None:
        super().__init__(terms, product)
        self.memory, self.slots, self.places = memory, Slots(symbol, memory.count), Addresses(symbol)
        self.layout, self.factor = SplitLayout(self.spec, self.config), product.query_factor
        # Of tiles the sums of a part's products with V, for vectors the queries of a part.
        self.sums_type = memref_type((rows_of_sums(self.spec), STEP), "f32")
        self.block_split, self.tiled, self._buffers = "", False, list[str]()

    @property
    def helpers(self) -> Helpers:
        """The functions that the dispatch's module has to hold."""
        return Helpers((self.places, self.slots))

    def load_queries(self) -> None:
        t = self.t
        self.slot = take_slot(t, self.slots, self.memory.memory.operand)
        super().load_queries()
        self.sums_at, self.next_scores = self.unit.pointer(self.sums, self.sums_type), t.empty(self.types.scores)
        self.parts_of = SplitOperands(self.operands, self.factor, self.places.of(t, self.slot.value, self.slot.type))
        many = self.unit.granted
        if self.operands.few_queries:
            enough = t.test("sge", self.operands.rows, t.index(min(LEAST_QUERIES, self.config.BM - STEP + 1)))
            many = t.arith("andi", many, enough, "i1")
        self.split = self._if(many, self.parts_of.split_queries)

    def _if(self, condition: str, body: Callable[[], str]) -> str:
        """What the body says, where this holds, else false."""
        return self.t.either(condition, ["i1"], lambda: [body()], lambda: [self.t.let("arith.constant false")])[0]

    def prepare(self, state: SoftmaxState, block: Block) -> tuple[SoftmaxState, Block]:
        def split() -> str:
            keys, values = self.parts_of.split_keys(block), self.parts_of.split_values(block)
            return self.t.arith("andi", keys, values, "i1")

        self.block_split = self._if(self.split, split)
        return self.prepare_masks(state, block)

    def visit_parts(self, sweep: Sweep, state: SoftmaxState, block: Block) -> SoftmaxState:
        def by_tiles() -> SoftmaxState:
            self.tiled = True
            return visit_in_turn(sweep, self, state, block) if block.edge else self._overlapped(sweep, state, block)

        def by_vectors() -> SoftmaxState:
            self.tiled = False
            return visit_in_turn(sweep, self, state, block)

        return either_state(self, self.block_split, state, slice(0, self.vectors), by_tiles, by_vectors)

    def _overlapped(self, sweep: Sweep, state: SoftmaxState, block: Block) -> SoftmaxState:
        """The state after a whole block: tiles work while exponentials are taken."""
        self._buffers = [state.scores, self.next_scores]
        self._multiply(self._products_with_keys(0))
        started, everything = state, slice(0, self.vectors)
        for n, part in enumerate(self.parts):

            def weigh(n: int = n, state: SoftmaxState = state) -> SoftmaxState:
                return self._weigh_part(sweep, started, state, block, n)

            def leave(n: int = n, state: SoftmaxState = state) -> SoftmaxState:
                return self._add_last(sweep, started, state, n - 1)

            needed = self.needs(part)
            state = either_state(self, needed, state, everything, weigh, leave) if needed else weigh()
        return self._add_last(sweep, started, state, len(self.parts) - 1)

    def _weigh_part(
        self, sweep: Sweep, started: SoftmaxState, state: SoftmaxState, block: Block, n: int
    ) -> SoftmaxState:
        """The state with the maxima and sums of the n-th part, and the output of the one before."""
        part, scores, adds = self.parts[n], self._buffers[n % 2], sweep.walk.weight is not None
        found = self.masked(scores, state, block, part)
        decay, best = grown(sweep, self, state, part, found)
        state = replace(state, best=best)
        jobs = [self._products_with_values(n - 1)] if n and adds else []
        if n + 1 < len(self.parts):
            jobs.append(self._products_with_keys(n + 1))
        sums = self._weigh(sweep, replace(state, scores=scores), part, n, jobs)
        state = replace(state, total=summed(self, state, part, decay, sums))
        return self._add_new(sweep, started, state, n - 1) if n and adds else state

    def _add_last(self, sweep: Sweep, started: SoftmaxState, state: SoftmaxState, n: int) -> SoftmaxState:
        """The state with the output of the n-th part, if there is that, and behind it none."""
        if sweep.walk.weight is None:
            return state

        def add() -> SoftmaxState:
            self._multiply(self._products_with_values(n))
            return self._add_new(sweep, started, state, n)

        needed = self.needs(self.parts[n])
        return either_state(self, needed, state, slice(0, self.vectors), add, lambda: state) if needed else add()

    def _add_new(self, sweep: Sweep, started: SoftmaxState, state: SoftmaxState, n: int) -> SoftmaxState:
        """The state with the output of the n-th part, whose products with values are there."""
        t, part = self.t, self.parts[n]
        decay, _ = grown(sweep, self, started, part, state.best[part])
        acc = self.add_sums(state.acc, self.sums, self.sums_type, t.index(0), self.spec.Dv, decay, part)
        return replace(state, acc=acc)

    def _products_with_keys(self, n: int, scores: str = "") -> Products:
        """S^T = K Q^T of a whole block and the n-th part, 32 keys at a time."""
        t, layout = self.t, self.layout
        pointer = self.unit.pointer(scores or self._buffers[n % 2], self.types.scores)
        queries = behind(t, self.parts_of.queries, n * layout.query_part)

        def keys(n: str) -> Sequence[str]:
            first = moved(t, self.parts_of.keys, n, 2 * layout.key_tile)
            return first, behind(t, first, layout.key_tile)

        return Products(
            self.config.BK // STEP,
            layout.steps,
            keys,
            lambda n: queries,
            lambda n: Tile(moved(t, pointer, n, 4 * STEP * STEP), 4 * STEP),
        )

    def _products_with_values(self, n: int) -> Products:
        """V^T P of a whole block and the n-th part, 32 head dims at a time; where there are but 16 at the end, others that nobody
        reads."""
        t, layout = self.t, self.layout

        def values(n: str) -> Sequence[str]:
            first = moved(t, self.parts_of.values, n, 2 * layout.value_tile)
            return first, behind(t, first, layout.value_tile)

        return Products(
            -(-self.spec.Dv // STEP),
            self.config.BK // STEP,
            values,
            lambda _: self.parts_of.weights[n % 2],
            lambda n: Tile(moved(t, self.sums_at, n, 4 * STEP * STEP), 4 * STEP),
        )

    def _pieces(self, products: Products, n: str) -> Iterator[None]:
        """Writes the n-th product, and stops behind each half of a step."""
        t, lefts, right = self.t, products.lefts(n), products.right(n)
        self.unit.clear(2, ACROSS)
        for s in range(products.steps):
            factors = [behind(t, left, s * PARTS * TILE_BYTES) for left in lefts], behind(t, right, s * _RIGHT)
            for half in HALVES:
                add_split_products(t, *factors, ACROSS, half)
                yield
        self.unit.store(products.to(n), 2, ACROSS)

    def _multiply(self, products: Products, count: str = "") -> None:
        """All of them, or so many, with nothing else to do."""
        t = self.t

        def one(n: str) -> None:
            for _ in self._pieces(products, n):
                pass

        t.each((t.index(0), count or t.index(products.count), t.index(1)), one)

    def _weigh(
        self, sweep: Sweep, state: SoftmaxState, part: slice, number: int, jobs: Sequence[Products]
    ) -> list[str]:
        """The sums of a part of a whole block, whose probabilities become weights; meanwhile tiles do these jobs, each half step of
        which comes before as many exponentials."""
        t, weights = self.t, self.parts_of.weights[number % 2]
        sums = [t.splat(0.0)] * len(state.total[part])
        pairs, first = self.config.BK // 2, 0
        each = pairs // max(1, sum(job.count * job.steps * len(HALVES) for job in jobs))
        for job in jobs if each else ():
            every = each * job.steps * len(HALVES)

            def one(
                n: str, carried: list[str], job: Products = job, first: int = first, every: int = every
            ) -> list[str]:
                at = t.shifted(t.arith("muli", n, t.index(every)), first)
                for piece, _ in enumerate(self._pieces(job, n)):
                    for i in range(each):
                        carried = self._pair(sweep, state, part, weights, t.shifted(at, piece * each + i), carried)
                return carried

            sums = t.loop((t.index(0), t.index(job.count), t.index(1)), [(x, t.vec) for x in sums], one)
            first += every * job.count
        if not each:
            for job in jobs:
                self._multiply(job)

        def rest(i: str, carried: list[str]) -> list[str]:
            return self._pair(sweep, state, part, weights, i, carried)

        return t.loop((t.index(first), t.index(pairs), t.index(1)), [(x, t.vec) for x in sums], rest)

    def _pair(
        self, sweep: Sweep, state: SoftmaxState, part: slice, weights: str, number: str, carried: list[str]
    ) -> list[str]:
        """The sums with the probabilities of two keys, which lie 16 apart, and become pairs of the product with V."""
        t, tile, type_, sums = self.t, state.scores, self.types.scores, list(carried)
        step, r = (t.arith(op, number, t.index(ROWS)) for op in ("divui", "remui"))
        low = t.arith("addi", t.arith("muli", step, t.index(STEP)), r)
        for at, j in enumerate(range(part.start, part.stop)):
            made = []
            for key in (low, t.shifted(low, ROWS)):
                p, mass = sweep.values(j, t.read(tile, type_, key, self.operands.lane(at)), state.best)
                if mass:
                    sums[at] = t.vop("arith.addf", sums[at], mass)
                made.append(p)
            self.parts_of.store_weights(weights, step, r, at, *made)
        return sums

    # A part alone: of a block on an edge, and by vectors.

    def multiply_keys(self, scores: str, block: Block, first: int) -> None:
        t = self.t
        if self.tiled:
            products = self._products_with_keys(first // ACROSS, scores)
            self._multiply(products, t.arith("divui", block.rows, t.index(STEP)))
            return

        def rows(i: str) -> None:
            rows = [row_at(self.operands, block, t.shifted(i, r)) for r in range(AT_ONCE)]
            scalars = [self._head_dims_of(row.stored) for row in rows]
            zeros = [[t.splat(0.0)] * ACROSS] * AT_ONCE
            made = fma_tile(t, self.product.multiply, lambda: scalars, self.spec.D, 2, self.sums, self.sums_type, zeros)
            for row, vectors in zip(rows, made, strict=True):
                for j, x in enumerate(vectors):
                    t.write(x, scores, self.types.scores, row.at, self.operands.lane(j))

        self.parts_of.load_part(first, self.sums, self.sums_type)
        t.each((t.index(0), block.rows, t.index(AT_ONCE)), rows)

    def _head_dims_of(self, row: str) -> Callable[[str], str]:
        return lambda d: self.operands.extract(self.operands.k, row, d)

    def probabilities(self, sweep: Sweep, state: SoftmaxState, block: Block, part: slice) -> tuple[str, list[str]]:
        if not self.tiled:
            return super().probabilities(sweep, state, block, part)
        t = self.t
        pairs = t.arith("divui", block.rows, t.index(2))

        def pair(i: str, carried: list[str]) -> list[str]:
            return self._pair(sweep, state, part, self.parts_of.weights[0], i, carried)

        sums = t.loop((t.index(0), pairs, t.index(1)), [(t.splat(0.0), t.vec)] * len(state.total[part]), pair)
        return state.scores, sums

    def add_values(self, state: SoftmaxState, decay: Sequence[str], block: Block, part: slice) -> SoftmaxState:
        add = self.add_by_tiles if self.tiled else self.add_by_vectors
        return replace(state, acc=add(state, decay, block, part))

    def multiply_values(self, scores: str, block: Block, part: slice, d: str, count: int) -> None:
        t = self.t
        lefts = self._products_with_values(0).lefts(t.arith("divui", d, t.index(STEP)))
        self.unit.clear(2, ACROSS)

        def step(i: str) -> None:
            at = [moved(t, left, i, PARTS * TILE_BYTES) for left in lefts]
            for half in HALVES:
                add_split_products(t, at, moved(t, self.parts_of.weights[0], i, _RIGHT), ACROSS, half)

        t.each((t.index(0), t.arith("divui", block.rows, t.index(STEP)), t.index(1)), step)
        self.unit.store(Tile(self.sums_at, 4 * STEP), 2, ACROSS)

    def values_by_vectors(self, scores: str, block: Block, d: str, count: int) -> list[list[str]]:
        t = self.t

        def column(at: str) -> Callable[[str], str]:
            return lambda i: self.operands.extract(self.operands.v, row_at(self.operands, block, i).stored, at)

        columns = [column(t.shifted(d, r)) for r in range(count)]
        zeros = [[t.splat(0.0)] * ACROSS] * count
        keys, unroll = keys_with_values(self.operands, block, 2)
        return fma_tile(t, self.product.multiply, lambda: columns, keys, unroll, scores, self.types.scores, zeros)

    def finish_output(self, state: SoftmaxState, inverse: Callable[[str], str]) -> str:
        made = super().finish_output(state, inverse)
        self.slot.leave(self.t, made, self.operands.out.type)
        return made
