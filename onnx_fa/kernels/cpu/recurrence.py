"""The recurrence of online softmax over blocks of keys, for vectors of queries, in units of log2:

    m' = max(m, S);  P = 2^(S - m');  l' = l 2^(m - m') + sum P;  O' = O 2^(m - m') + P V;  in the end O / l

A `Recurrence` says where m and l start, how often the keys are walked, and what divides O; a `Sweep` says what one walk does with a
block. How scores, sums and products are computed, and where they lie, is for a `BlockKernel` to say (block_kernel.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from onnx_fa.kernels.cpu.block_kernel import BlockKernel
from onnx_fa.kernels.cpu.operands import Operands
from onnx_fa.kernels.cpu.query_rows import QueryRows
from onnx_fa.kernels.cpu.state import Block, SoftmaxState
from onnx_fa.kernels.cpu.tile_loops import inverse_of_sum
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.kernels.plan.score import MAX_START


class Sweep(Protocol):
    """What one walk over the keys does with a block."""

    @property
    def multiplies_values(self) -> bool:
        """Whether probabilities are multiplied by V, and O changes."""

    def decays(self, old: Sequence[str], new: Sequence[str]) -> list[str]:
        """What sums and output so far are multiplied by, as the maxima grew from `old` to `new`."""

    def weight(self, score: str, best: str, total: str) -> str:
        """What values are multiplied by, for scores of a vector of queries, whose sum so far is `total`."""

    def next_totals(self, total: tuple[str, ...], grown: list[str]) -> tuple[str, ...]:
        """The state's sums after a block that makes them `grown`."""


class Recurrence(Protocol):
    """What happens to a state from before the first key to after the last."""

    def start(self, sinks: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The maxima and the sums before the first key. `sinks`: one more logit of every query, without a value; or none."""

    def attend(self, state: SoftmaxState, visit: Callable[[Sweep, SoftmaxState], SoftmaxState]) -> SoftmaxState:
        """The state after all keys. `visit` walks them once."""

    def inverse(self, total: str) -> str:
        """What the output is multiplied by, for a vector of sums."""


def visit_block(sweep: Sweep, kernel: BlockKernel, state: SoftmaxState, block: Block) -> SoftmaxState:
    """The state after a block of keys. Its sums and products are made by themselves first, which rounds less."""
    state, block = kernel.prepare(state, block)
    scores, best = kernel.scores(state, block)
    decay = sweep.decays(state.best, best)
    weights, sums = kernel.probabilities(sweep.weight, replace(state, scores=scores, best=tuple(best)), block)
    grown = [add_decayed(kernel.t, *update) for update in zip(state.total, decay, sums, strict=True)]
    total = sweep.next_totals(state.total, grown)
    state = replace(state, scores=weights, best=tuple(best), total=total)
    return kernel.add_values(state, decay, block) if sweep.multiplies_values else state


def add_decayed(t: Lanes, old: str, decay: str, new: str) -> str:
    """old * decay + new"""
    return t.vop("vector.fma", old, decay, new)


@dataclass(frozen=True)
class OnlineSweep:
    """Maximum, sum and (if `multiplies_values`) output grow with every block."""

    t: Lanes
    multiplies_values: bool = True

    def decays(self, old: Sequence[str], new: Sequence[str]) -> list[str]:
        return [self.t.exp2(self.t.vop("arith.subf", a, b)) for a, b in zip(old, new, strict=True)]

    def weight(self, score: str, best: str, total: str) -> str:
        return self.t.exp2(self.t.vop("arith.subf", score, best))

    def next_totals(self, total: tuple[str, ...], grown: list[str]) -> tuple[str, ...]:
        return tuple(grown)


def start_softmax(operands: Operands, rows: QueryRows, sinks: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Maxima and sums before the first key: those of no key, or of the sinks."""
    t = operands.t
    best, total = (t.splat(MAX_START),) * rows.count, (t.splat(0.0),) * rows.count
    if not sinks:
        return best, total

    def first_sum(sink: str, best: str) -> str:
        lane = rows.lane_of_sums()
        weight = t.exp2(t.vop("arith.subf", sink, best))
        if lane is not None:
            weight = t.select(lane, weight, t.splat(0.0))
        return operands.in_first_split(weight)

    best = tuple(t.maximum(sink, t.splat(MAX_START)) for sink in sinks)
    return best, tuple(first_sum(sink, m) for sink, m in zip(sinks, best, strict=True))


@dataclass(frozen=True)
class OnlineSoftmax:
    """One sweep over the keys. Where these are split, each part's output is left as it is: `combine.py` divides."""

    operands: Operands
    rows: QueryRows

    def start(self, sinks: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return start_softmax(self.operands, self.rows, sinks)

    def attend(self, state: SoftmaxState, visit: Callable[[Sweep, SoftmaxState], SoftmaxState]) -> SoftmaxState:
        return visit(OnlineSweep(self.operands.t), state)

    def inverse(self, total: str) -> str:
        """1 / l, or what stands for it in rows without a key; 1 where the keys are split."""
        if self.operands.splits > 1:
            return self.operands.t.splat(1.0)
        return inverse_of_sum(self.operands.t, total, self.operands.spec.empty_row)
