"""Probabilities that are rounded before they multiply V: they must be normalised first, so that the keys are walked twice.

The first sweep finds the maximum m and the sum l of every row; the second makes the scores again and

    P = 2^(S - m) / l;  N = min(round(P / scale), most);  O^T = O^T + V^T N

with whole numbers N, which f32 holds exactly; the scale multiplies the output. Nothing of Sq x Skv is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from onnx_fa.kernels.cpu.operands import Operands
from onnx_fa.kernels.cpu.query_rows import QueryRows
from onnx_fa.kernels.cpu.recurrence import OnlineSweep, Sweep, start_softmax
from onnx_fa.kernels.cpu.state import SoftmaxState
from onnx_fa.kernels.mlir.vectors import Lanes
from onnx_fa.spec.terms import Rounding


@dataclass(frozen=True)
class RoundedSweep:
    """The second sweep: the maximum is known, and the state's `total` is 1 / l, which stays."""

    t: Lanes
    rounding: Rounding
    multiplies_values: bool = True

    def decays(self, old: Sequence[str], new: Sequence[str]) -> list[str]:
        return [self.t.splat(1.0)] * len(old)

    def weight(self, score: str, best: str, total: str) -> str:
        t = self.t
        p = t.exp2(t.vop("arith.subf", score, best))
        # In the order of a graph, which divides the probability by the step.
        steps = t.vop("arith.divf", t.vop("arith.mulf", p, total), t.splat(self.rounding.scale))
        steps = t.maximum(t.vop("math.roundeven", steps), t.splat(0.0))  # and 0 for NaN
        most = t.splat(float(self.rounding.most))
        return t.select(t.compare("olt", steps, most), steps, most)

    def next_totals(self, total: tuple[str, ...], grown: list[str]) -> tuple[str, ...]:
        return total


@dataclass(frozen=True)
class RoundedSoftmax:
    """Two sweeps over the keys, which are not split."""

    operands: Operands
    rows: QueryRows
    rounding: Rounding

    def start(self, sinks: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return start_softmax(self.operands, self.rows, sinks)

    def attend(self, state: SoftmaxState, visit: Callable[[Sweep, SoftmaxState], SoftmaxState]) -> SoftmaxState:
        t = self.operands.t
        first = visit(OnlineSweep(t, multiplies_values=False), state)
        shares = tuple(self._share(x) for x in self.rows.sums(first.total))
        return replace(visit(RoundedSweep(t, self.rounding), replace(first, total=shares)), total=first.total)

    def inverse(self, total: str) -> str:
        """What a step of the rounding stands for: 1 / l is in the probabilities."""
        return self.operands.t.splat(self.rounding.scale)

    def _share(self, total: str) -> str:
        """1 / l; 0 in rows without a key, whose probabilities are 0 or NaN, which both become 0."""
        t, zero = self.operands.t, self.operands.t.splat(0.0)
        return t.select(t.compare("ogt", total, zero), t.vop("arith.divf", t.splat(1.0), total), zero)
