"""A derived loop (derive/loop.py) for vectors of queries. How scores, sums and products are computed, and where they lie, is for a
`BlockKernel` to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from onnx_fa.derive.loop import MAXIMUM, SCORE, Loop, Walk
from onnx_fa.derive.writer import write
from onnx_fa.kernels.cpu.block_kernel import BlockKernel
from onnx_fa.kernels.cpu.language import VectorLanguage, inverse_of
from onnx_fa.kernels.cpu.operands import Operands
from onnx_fa.kernels.cpu.query_rows import QueryRows
from onnx_fa.kernels.cpu.state import Block, SoftmaxState
from onnx_fa.kernels.cpu.sweep import Sweep
from onnx_fa.kernels.mlir.expressions import Vector
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.kernels.plan.score import MAX_START
from onnx_fa.spec.expr import ScoreExpr


def visit_block(sweep: Sweep, kernel: BlockKernel, state: SoftmaxState, block: Block) -> SoftmaxState:
    """The state after a block of keys. Its sums and products are made by themselves first, which rounds less."""
    state, block = kernel.prepare(state, block)
    return kernel.visit_parts(sweep, state, block)


def visit_in_turn(sweep: Sweep, kernel: BlockKernel, state: SoftmaxState, block: Block) -> SoftmaxState:
    """The state after a block of keys that was prepared has met one part of the queries after the other."""
    for part in kernel.parts:
        if needed := kernel.needs(part):
            state = _visit_if(needed, sweep, kernel, state, block, part)
        else:
            state = _visit_part(sweep, kernel, state, block, part)
    return state


def _visit_if(
    needed: str, sweep: Sweep, kernel: BlockKernel, state: SoftmaxState, block: Block, part: slice
) -> SoftmaxState:
    """The same where there are queries of the part; of the state nothing else changes."""
    return either_state(
        kernel, needed, state, part, lambda: _visit_part(sweep, kernel, state, block, part), lambda: state
    )


def either_state(
    kernel: BlockKernel,
    condition: str,
    state: SoftmaxState,
    part: slice,
    yes: Callable[[], SoftmaxState],
    no: Callable[[], SoftmaxState],
) -> SoftmaxState:
    """The state behind one of two branches, which change the output, and of maxima and sums those of a part."""

    def changed(state: SoftmaxState) -> list[str]:
        return [state.acc, *state.best[part], *state.total[part]]

    types = [kernel.types.acc, *[kernel.t.vec] * (len(changed(state)) - 1)]
    acc, *vectors = kernel.t.either(condition, types, lambda: changed(yes()), lambda: changed(no()))
    many = len(state.best[part])
    best, total = replaced(state.best, part, vectors[:many]), replaced(state.total, part, vectors[many:])
    return replace(state, acc=acc, best=best, total=total)


def _visit_part(sweep: Sweep, kernel: BlockKernel, state: SoftmaxState, block: Block, part: slice) -> SoftmaxState:
    """The state after a block of keys has met the queries of some vectors."""
    scores, found = kernel.scores(state, block, part)
    decay, best = grown(sweep, kernel, state, part, found)
    weights, sums = kernel.probabilities(sweep, replace(state, scores=scores, best=best), block, part)
    total = summed(kernel, state, part, decay, sums)
    state = replace(state, scores=weights, best=best, total=total)
    return kernel.add_values(state, decay, block, part) if sweep.walk.weight is not None else state


def grown(
    sweep: Sweep, kernel: BlockKernel, state: SoftmaxState, part: slice, found: Sequence[str]
) -> tuple[list[str], tuple[str, ...]]:
    """What a part's sums and output so far are multiplied by, as its maxima become those that were found; and all maxima."""
    decay = sweep.decays(state.best[part], found) or [""] * len(range(*part.indices(kernel.types.sums)))
    return decay, replaced(state.best, part, found)


def summed(
    kernel: BlockKernel, state: SoftmaxState, part: slice, decay: Sequence[str], sums: Sequence[str]
) -> tuple[str, ...]:
    """All sums, those of a part with a block's own."""
    updates = zip(state.total[part], decay[: len(sums)], sums, strict=True)
    return replaced(state.total, part, [add_decayed(kernel.t, *update) for update in updates])


def replaced(vectors: tuple[str, ...], part: slice, new: Sequence[str]) -> tuple[str, ...]:
    made = list(vectors)
    made[part] = new
    return tuple(made)


def add_decayed(t: Lanes, old: str, decay: str, new: str) -> str:
    """old * decay + new; without a decay, old + new."""
    return t.vop("vector.fma", old, decay, new) if decay else t.vop("arith.addf", old, new)


@dataclass(frozen=True)
class VectorLoop:
    """Where a loop starts, and what its output is divided by. Where keys are split, each part's output is left as it is:
    `combine.py` divides."""

    operands: Operands
    rows: QueryRows
    loop: Loop

    def language(self, lengths: dict[ScoreExpr, Vector]) -> VectorLanguage:
        return VectorLanguage(self.operands.t, self.operands.spec, lengths)

    def start(self, walk: Walk, sinks: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Maxima and sums before the first key: those of no key, or of the sinks, which are keys that were seen before."""
        t, count = self.operands.t, self.rows.count
        best = (t.splat(MAX_START),) * count if walk.has_maximum else ()
        total = (t.splat(0.0),) * count if walk.mass is not None else ()
        if not sinks or not walk.has_maximum or walk.mass is None:
            return best, total
        best = tuple(t.maximum(sink, t.splat(MAX_START)) for sink in sinks)
        language, mass = self.language({}), walk.mass

        def first_sum(sink: str, m: str) -> str:
            lane = self.rows.lane_of_sums()
            weight = write(mass, language, {SCORE: sink, MAXIMUM: m})
            if lane is not None:
                weight = t.select(lane, weight, t.splat(0.0))
            return self.operands.in_first_split(weight)

        return best, tuple(first_sum(sink, m) for sink, m in zip(sinks, best, strict=True))

    def inverse(self, total: str) -> str:
        """What the output of a vector of queries is multiplied by; 1 where the keys are split."""
        if self.operands.has_parts:
            return self.operands.t.splat(1.0)
        return inverse_of(self.loop, self.language({}), total)
