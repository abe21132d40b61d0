"""Probabilities that are rounded before they multiply V: they must be normalised first, so that the keys are walked twice.

The first sweep finds the maximum m and the sum l of every row; the second makes the scores again and

    P = 2^(S - m) / l;  N = min(round(P / scale), most);  O^T = O^T + V^T N

with whole numbers N, which f32 holds exactly; the scale multiplies the output. Nothing of Sq x Skv is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from onnx_fa.errors import UnsupportedError
from onnx_fa.kernels.cpu.few_body import FewBody
from onnx_fa.kernels.cpu.state import Block, SoftmaxState
from onnx_fa.kernels.cpu.tiles import VectorConfig
from onnx_fa.kernels.cpu.vector_body import VectorBody
from onnx_fa.spec.attention import AttentionSpec


class TwoSweeps(VectorBody):
    """The body of a spec that rounds its probabilities. In the second sweep the state's `total` is 1 / l.

    Raises UnsupportedError where the keys are split."""

    def __init__(self, spec: AttentionSpec, config: VectorConfig, splits: int = 1) -> None:
        if spec.rounding is None or splits > 1:
            raise UnsupportedError(
                "two sweeps over the keys are for probabilities that are rounded, and keys not split"
            )
        super().__init__(spec, config, splits)
        self.rounding = spec.rounding
        self.second = False

    def attended(self, state: SoftmaxState) -> SoftmaxState:
        first = self.all_keys(state)
        self.second = True
        shares = tuple(self.share(x) for x in self.sums(first.total))
        return dataclasses.replace(self.all_keys(dataclasses.replace(first, total=shares)), total=first.total)

    def share(self, total: str) -> str:
        """1 / l; 0 in rows without a key, whose probabilities are 0 or NaN, which both become 0."""
        t, zero = self.t, self.t.splat(0.0)
        return t.select(t.compare("ogt", total, zero), t.vop("arith.divf", t.splat(1.0), total), zero)

    def decays(self, old: Sequence[str], new: Sequence[str]) -> list[str]:
        return [self.t.splat(1.0)] * len(old) if self.second else super().decays(old, new)

    def weight(self, s: str, best: str, total: str) -> str:
        t, p = self.t, super().weight(s, best, total)
        if not self.second:
            return p
        # In the order of a graph, which divides the probability by the step.
        steps = t.vop("arith.divf", t.vop("arith.mulf", p, total), t.splat(self.rounding.scale))
        steps = t.maximum(t.vop("math.roundeven", steps), t.splat(0.0))  # and 0 for NaN
        most = t.splat(float(self.rounding.most))
        return t.select(t.compare("olt", steps, most), steps, most)

    def probabilities(
        self, scores: str, best: list[str], decay: list[str], total: Sequence[str], block: Block
    ) -> tuple[str, list[str]]:
        tile, sums = super().probabilities(scores, best, decay, total, block)
        return tile, list(total) if self.second else sums

    def values(self, acc: str, tile: str, decay: list[str], block: Block, scratch: list[str]) -> str:
        return super().values(acc, tile, decay, block, scratch) if self.second else acc

    def inverse(self, total: str) -> str:
        return self.t.splat(self.rounding.scale)


class FewInTwoSweeps(TwoSweeps, FewBody):
    """The same for a few queries."""
