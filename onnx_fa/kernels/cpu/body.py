"""The body of a vector-level attention dispatch: what one workgroup does, as MLIR text, put together from parts.

| part | what it says | choices |
|---|---|---|
| `Operands` | where the workgroup's part of each tensor lies | |
| `QueryRows` | how a number per query lies in vectors | `QueriesAlongLanes`, `VectorPerQuery` |
| `ScoreTerms` | what is known of masks and score functions before the first key | |
| `BlockKernel` | scores, weights, products of a block | `Lane-`, `Pair-`, `Split-`, `Few-`, `RowsKernel` |
| `KeyWalk` | which blocks are visited | |
| `VectorLoop` | what is carried from block to block, as it was derived (derive/, derive/loop.py) | |

Scores are in units of log2, so that exp is exp2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from onnx_fa.derive.terms import Term
from onnx_fa.kernels.cpu.addresses import Helper
from onnx_fa.kernels.cpu.amx_kernel import PairKernel
from onnx_fa.kernels.cpu.amx_products import TileProducts
from onnx_fa.kernels.cpu.bf16_products import PairProducts
from onnx_fa.kernels.cpu.block_kernel import BlockKernel
from onnx_fa.kernels.cpu.block_walk import KeyWalk
from onnx_fa.kernels.cpu.few_kernel import FewKernel
from onnx_fa.kernels.cpu.lane_kernel import LaneKernel
from onnx_fa.kernels.cpu.masks import ScoreTerms
from onnx_fa.kernels.cpu.operands import Operands
from onnx_fa.kernels.cpu.products import FusedProducts, Product
from onnx_fa.kernels.cpu.query_rows import QueriesAlongLanes, QueryRows, VectorPerQuery
from onnx_fa.kernels.cpu.recurrence import VectorLoop, visit_block
from onnx_fa.kernels.cpu.rows_kernel import RowsKernel
from onnx_fa.kernels.cpu.split_kernel import SplitKernel
from onnx_fa.kernels.cpu.state import SoftmaxState
from onnx_fa.kernels.cpu.sweep import Sweep
from onnx_fa.kernels.cpu.tile_loops import statistic
from onnx_fa.kernels.cpu.tiles import FewConfig, VectorConfig
from onnx_fa.kernels.cpu.worker_memory import WorkerMemory
from onnx_fa.kernels.mlir.expressions import Vector
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import ScoreExpr, leaves
from onnx_fa.spec.switches import ALL_ON, Switch
from onnx_fa.spec.terms import Dim

_LOWERING = (
    "#iree_cpu.lowering_config<distribution = [0, 0], vector_common_parallel = [0, 0], vector_reduction = [0, 0]>"
)


@dataclass(frozen=True)
class AttentionBody:
    """The dispatch's function for one spec. Arguments: those of `operand_names`, `dims` for the symbols, the outputs."""

    operands: Operands
    rows: QueryRows
    terms: ScoreTerms
    kernel: BlockKernel
    recurrence: VectorLoop
    helper: Helper | None = None
    """What the dispatch has to hold for its body to know where operands lie."""
    memory: WorkerMemory | None = None
    """What it reads and writes besides."""

    def render(self) -> list[str]:
        """The operations of the function, without its return."""
        operands, t = self.operands, self.operands.t
        self.kernel.load_queries()
        state = self._walk_all()
        # Without any keys the output is divided by 1, so that it is 0.
        divided = replace(state, total=self._unless_empty(state.total, 1.0))
        results = [(operands.out, self.kernel.finish_output(divided, self.recurrence.inverse))]
        results += [(slab, self._statistic(i, state)) for i, slab in enumerate(operands.stats)]
        if operands.has_parts:
            zeros = (t.splat(0.0),) * self.rows.count
            best = self._unless_empty(
                divided.best or zeros, 0.0
            )  # of an infinite sink, what the parts weigh would be NaN
            results.append((operands.part_best, self.rows.store(operands.part_best, best)))
            total = self.rows.store(operands.part_total, self.rows.sums(divided.total or zeros))
            results.append((operands.part_total, total))
        for (slab, result), (name, shape, element) in zip(results, operands.outputs, strict=True):
            t.do(
                f"iree_tensor_ext.dispatch.tensor.store {result}, {name}, {slab.place} : {slab.type} -> "
                f"{operands.binding('writeonly', shape, element)}"
            )
        operands.leave()
        return t.render()

    def _walk_all(self) -> SoftmaxState:
        """The state after all walks over the keys, with the maxima and sums that any of them found."""
        rows, known, language = self.rows, dict[Term, tuple[str, ...]](), self.recurrence.language(self._lengths())
        state = self._start()
        best, total = self.recurrence.start(self.recurrence.loop.walks[0], self.terms.sink)
        state = replace(state, best=best, total=total)
        for i, walk in enumerate(self.recurrence.loop.walks):
            sweep = Sweep(language, walk, known)
            if i:
                started, summed = self.recurrence.start(walk, ())
                state = replace(state, best=started, total=summed)
            state = self._visit_keys(sweep, state, best)
            best, total = state.best or best, state.total or total
            if walk is not self.recurrence.loop.walks[-1]:
                known = known | sweep.results(best, rows.sums(total))
        return replace(state, best=best, total=total)

    def _lengths(self) -> dict[ScoreExpr, Vector]:
        """The numbers of queries and keys, where a weighting reads them."""
        weighting = self.operands.spec.weighting
        read = [x for x in (weighting.weight, weighting.total) if x is not None] if weighting is not None else []
        found = {leaf: self.terms.length(leaf) for x in read for leaf in leaves(x)}
        return {leaf: x for leaf, x in found.items() if x is not None}

    def _start(self) -> SoftmaxState:
        """The tensors before the first key."""
        t, types = self.operands.t, self.kernel.types
        config = f"{{lowering_config = {_LOWERING}}}"
        empty = t.empty(types.acc)
        acc = t.let(f"linalg.fill {config} ins({t.f32(0.0)} : f32) outs({empty} : {types.acc}) -> {types.acc}")
        scratch = tuple(t.empty(s) for s in types.scratch)
        return SoftmaxState(acc, t.empty(types.scores), scratch, (), ())

    def _visit_keys(self, sweep: Sweep, state: SoftmaxState, best: tuple[str, ...]) -> SoftmaxState:
        """The state after one walk over the keys. `best`: the rows' maxima from an earlier walk, if there was one."""
        kernel = self.kernel
        walk = KeyWalk(
            self.terms,
            replace(kernel.types, maxima=len(state.best), sums=len(state.total)),
            lambda before, block: visit_block(sweep, kernel, before, block),
            kernel.clear_apart,
            best,
        )
        return walk.visit_keys(state)

    def _unless_empty(self, vectors: tuple[str, ...], number: float) -> tuple[str, ...]:
        """The vectors, or without any keys this number in all of them."""
        if isinstance(self.operands.spec.Skv, int):
            return vectors
        t = self.operands.t
        none = t.let(f"arith.cmpi eq, {self.operands.skv}, {t.index(0)} : index")
        return tuple(t.let(f"arith.select {none}, {t.splat(number)}, {x} : {t.vec}") for x in vectors)

    def _statistic(self, i: int, state: SoftmaxState) -> str:
        """A row statistic of every query, as the tensor of that result."""
        operands, totals = self.operands, self.rows.sums(state.total)
        which = operands.spec.stats[i]
        numbers = [statistic(operands.t, which, best, total) for best, total in zip(state.best, totals, strict=True)]
        return self.rows.store(operands.stats[i], tuple(numbers))


def lane_body(
    spec: AttentionSpec,
    config: VectorConfig,
    splits: Dim = 1,
    *,
    bf16: bool = False,
    off: frozenset[Switch] = ALL_ON,
) -> AttentionBody:
    """The body for queries along the lanes; `bf16`: with products of bf16; `off`: without these optimisations. Raises
    UnsupportedError where splits of the keys, or products of bf16, are not for the spec and its tiles."""
    operands = Operands(spec, config, splits, off)
    rows = QueriesAlongLanes(operands)
    terms = ScoreTerms(operands, rows)
    factor = terms.query_factor
    product: Product = PairProducts(operands, factor) if bf16 else FusedProducts(operands, factor)
    return AttentionBody(operands, rows, terms, LaneKernel(terms, product), VectorLoop(operands, rows, operands.loop))


def tile_body(
    spec: AttentionSpec, config: VectorConfig, symbol: str, splits: Dim = 1, off: frozenset[Switch] = ALL_ON
) -> AttentionBody:
    """The body of the dispatch `symbol` for queries along the lanes whose products AMX makes; `off` as in lane_body. Raises
    UnsupportedError where the spec has no such products, or its keys cannot be split."""
    # Probabilities become bf16. Sums of exponentials that are results are not rounded any more.
    operands = Operands(spec, config, splits, off, "polynomial" if spec.stats else "rough")
    rows = QueriesAlongLanes(operands)
    terms = ScoreTerms(operands, rows)
    product = TileProducts(operands, terms.query_factor, symbol)
    loop = VectorLoop(operands, rows, operands.loop)
    return AttentionBody(operands, rows, terms, PairKernel(terms, product), loop, product.addresses)


def split_body(
    spec: AttentionSpec,
    config: VectorConfig,
    symbol: str,
    memory: WorkerMemory,
    splits: Dim = 1,
    off: frozenset[Switch] = ALL_ON,
    workers: int = 0,
) -> AttentionBody:
    """The same of f32, whose numbers are split; workers have slots of the `memory`. `workers` as Operands has them."""
    operands = Operands(spec, config, splits, off, moves_back=False, workers=workers)
    rows = QueriesAlongLanes(operands)
    terms = ScoreTerms(operands, rows)
    kernel = SplitKernel(terms, FusedProducts(operands, terms.query_factor), symbol, memory)
    loop = VectorLoop(operands, rows, operands.loop)
    return AttentionBody(operands, rows, terms, kernel, loop, kernel.helpers, memory)


def few_body(spec: AttentionSpec, config: FewConfig, splits: Dim = 1, off: frozenset[Switch] = ALL_ON) -> AttentionBody:
    """The body for a few queries, config.BM; `off` as in lane_body. Raises UnsupportedError where the keys cannot be split."""
    operands = Operands(spec, config, splits, off)
    rows = VectorPerQuery(operands)
    terms = ScoreTerms(operands, rows)
    return AttentionBody(operands, rows, terms, FewKernel(terms, rows), VectorLoop(operands, rows, operands.loop))


def rows_body(
    spec: AttentionSpec, config: FewConfig, heads: int, splits: Dim = 1, off: frozenset[Switch] = ALL_ON
) -> AttentionBody:
    """The body for a few queries, config.BM, of so many key/value heads; `off` as in lane_body. Raises UnsupportedError where the
    keys cannot be split."""
    operands = Operands(spec, config, splits, off, heads=heads)
    rows = VectorPerQuery(operands)
    terms = ScoreTerms(operands, rows)
    return AttentionBody(operands, rows, terms, RowsKernel(terms, rows), VectorLoop(operands, rows, operands.loop))
