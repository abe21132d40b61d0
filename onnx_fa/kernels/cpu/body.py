"""The body of a vector-level attention dispatch: what one workgroup does, as MLIR text, put together from parts.

| part | what it says | choices |
|---|---|---|
| `Operands` | where the workgroup's part of each tensor lies | |
| `QueryRows` | how a number per query lies in vectors | `QueriesAlongLanes`, `VectorPerQuery` |
| `ScoreTerms` | what is known of masks and score functions before the first key | |
| `BlockKernel` | scores, probabilities and products of a block of keys | `LaneKernel` (with a `Product`), `FewKernel` |
| `KeyWalk` | which blocks are visited | |
| `Recurrence` | how maximum, sum and output go from block to block | `OnlineSoftmax`, `RoundedSoftmax` |

Scores are in units of log2, so that exp is exp2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from onnx_fa.kernels.cpu.bf16_products import PairProducts
from onnx_fa.kernels.cpu.block_kernel import BlockKernel
from onnx_fa.kernels.cpu.block_walk import KeyWalk
from onnx_fa.kernels.cpu.few_kernel import FewKernel
from onnx_fa.kernels.cpu.lane_kernel import LaneKernel
from onnx_fa.kernels.cpu.masks import ScoreTerms
from onnx_fa.kernels.cpu.operands import Operands
from onnx_fa.kernels.cpu.products import FusedProducts, Product
from onnx_fa.kernels.cpu.query_rows import QueriesAlongLanes, QueryRows, VectorPerQuery
from onnx_fa.kernels.cpu.recurrence import OnlineSoftmax, Recurrence, Sweep, visit_block
from onnx_fa.kernels.cpu.state import SoftmaxState
from onnx_fa.kernels.cpu.tile_loops import statistic
from onnx_fa.kernels.cpu.tiles import FewConfig, VectorConfig
from onnx_fa.kernels.cpu.two_sweeps import RoundedSoftmax
from onnx_fa.spec.attention import AttentionSpec

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
    recurrence: Recurrence

    def render(self) -> list[str]:
        """The operations of the function, without its return."""
        operands, t = self.operands, self.operands.t
        self.kernel.load_queries()
        state = self.recurrence.attend(self._start(), self._visit_keys)
        # Without any keys the output is divided by 1, so that it is 0.
        divided = replace(state, total=self._unless_empty(state.total, 1.0))
        results = [(operands.out, self.kernel.finish_output(divided, self.recurrence.inverse))]
        results += [(slab, self._statistic(i, state)) for i, slab in enumerate(operands.stats)]
        if operands.splits > 1:
            best = self._unless_empty(divided.best, 0.0)  # of an infinite sink, what the parts weigh would be NaN
            results.append((operands.part_best, self.rows.store(operands.part_best, best)))
            total = self.rows.store(operands.part_total, self.rows.sums(divided.total))
            results.append((operands.part_total, total))
        for (slab, result), (name, shape, element) in zip(results, operands.outputs, strict=True):
            t.do(
                f"iree_tensor_ext.dispatch.tensor.store {result}, {name}, {slab.place} : {slab.type} -> "
                f"{operands.binding('writeonly', shape, element)}"
            )
        return t.render()

    def _start(self) -> SoftmaxState:
        """The state before the first key."""
        t, types = self.operands.t, self.kernel.types
        config = f"{{lowering_config = {_LOWERING}}}"
        empty = t.let(f"tensor.empty() : {types.acc}")
        acc = t.let(f"linalg.fill {config} ins({t.f32(0.0)} : f32) outs({empty} : {types.acc}) -> {types.acc}")
        scratch = tuple(t.let(f"tensor.empty() : {s}") for s in types.scratch)
        scores = t.let(f"tensor.empty() : {types.scores}")
        best, total = self.recurrence.start(self.terms.sink)
        return SoftmaxState(acc, scores, scratch, best, total)

    def _visit_keys(self, sweep: Sweep, state: SoftmaxState) -> SoftmaxState:
        """The state after one walk over the keys."""
        kernel = self.kernel
        walk = KeyWalk(
            self.terms,
            kernel.types,
            lambda before, block: visit_block(sweep, kernel, before, block),
            kernel.clear_apart,
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


def lane_body(spec: AttentionSpec, config: VectorConfig, splits: int = 1, *, bf16: bool = False) -> AttentionBody:
    """The body for queries along the lanes; `bf16`: with products of bf16. Raises UnsupportedError where these, or splits of the
    keys, are not for the spec and its tiles."""
    operands = Operands(spec, config, splits)
    rows = QueriesAlongLanes(operands)
    terms = ScoreTerms(operands, rows)
    factor = terms.query_factor
    product: Product = PairProducts(operands, factor) if bf16 else FusedProducts(operands, factor)
    return AttentionBody(operands, rows, terms, LaneKernel(terms, product), _recurrence(operands, rows))


def few_body(spec: AttentionSpec, config: FewConfig, splits: int = 1) -> AttentionBody:
    """The body for a few queries, config.BM. Raises UnsupportedError where the keys cannot be split."""
    operands = Operands(spec, config, splits)
    rows = VectorPerQuery(operands)
    terms = ScoreTerms(operands, rows)
    return AttentionBody(operands, rows, terms, FewKernel(terms, rows), _recurrence(operands, rows))


def _recurrence(operands: Operands, rows: QueryRows) -> Recurrence:
    """Two sweeps for probabilities that are rounded, else one."""
    if operands.spec.rounding is None:
        return OnlineSoftmax(operands, rows)
    return RoundedSoftmax(operands, rows, operands.spec.rounding)
