"""How far a kernel's numbers may be from the float64 reference, and whether they are: for tests, tuner and benchmarks.

Long attentions are compared on some of their rows, in blocks that fit in memory: the first, the last, and others spread between.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_fa.spec.attention import LOWEST_STAT, AttentionSpec
from onnx_fa.spec.expr import SQ, Apply, Int, Q, ScoreExpr
from onnx_fa.spec.reference import F64, attention, logits, statistic
from onnx_fa.spec.rounding_bounds import rounds, slack
from onnx_fa.spec.terms import Dim, IndexMask, MaskTerm, Offset, TensorMask, with_leaves, with_shapes

Array = npt.NDArray[Any]

TF32_PRODUCT = 2.0**-9
"""What a product in tf32 may be off, relatively: of the 23 bits of a mantissa 10 are kept and the others dropped, which takes up to
2^-10 from each factor."""
BF16_PRODUCT = 2.0**-7
"""The same of bf16, whose mantissa of 8 bits is rounded to nearest: up to 2^-8 from each factor."""
LOSSY_PRODUCT = {"tf32": TF32_PRODUCT, "bf16 dot": BF16_PRODUCT}
"""By what was asked for that changes results."""
TOLERANCE = {"f32": 2e-6, "f16": 2e-3, "bf16": 1e-2}
"""Largest relative error (2-norm) of a kernel against the reference, for operands of ordinary size. Where lossy products were asked
for: what one may be off, for the product with V."""
ROUNDING = 1.2e-7
"""Added per unit of the largest score, or sink: what rounding it to f32 does to its exp. Where lossy products were asked
for: what one may be off, for the product of Q and K."""
SWALLOWS = 1e6
"""Scores beyond this are masks that swallow what they are added to, so that their rounding cannot matter."""
BLOCK_SCORES = 1 << 22
"""Scores that one step of the comparison holds, in float64."""
ALL_SCORES = 1 << 26
"""Up to this many scores, every row is compared."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """`error` and `allowed` are relative 2-norms over the `rows` of `of` rows that were compared; `problem` says in words
    what is wrong, "" when nothing is."""

    error: float
    allowed: float
    rows: int
    of: int
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Expected:
    """What the reference says of a spec's operands: `blocks` are (first row, rows of the output), made once for many results."""

    spec: AttentionSpec
    blocks: tuple[tuple[int, F64], ...]
    largest_score: float
    stats: tuple[tuple[F64, ...], ...] = ()
    """For every block, the row statistics that the spec has as further outputs."""
    slack: tuple[F64, ...] = ()
    """For every block, how far ties of roundings may move each number of the output (ties.py); empty where nothing is rounded."""
    lossy: str = ""
    """What the kernel was asked for that is less exact than its operands, as in Kernel."""

    @property
    def allowed(self) -> float:
        own = TOLERANCE[self.spec.dtype] + ROUNDING * self.largest_score
        if not self.lossy:
            return own
        return max(own, LOSSY_PRODUCT[self.lossy] * (1 + self.largest_score))

    def compare(self, result: Array) -> Comparison:
        """A result in the spec's output layout against the reference (of a spec with row statistics, the first result)."""
        axis = self.spec.o_layout.index(self.spec.rank - 2)
        return self._compare(result, self.spec.out_shape, axis, self.blocks, slack=self.slack)

    def compare_all(self, results: Sequence[Array]) -> list[Comparison]:
        """Every output, row statistics too: these are sums of f32 whatever the type of the operands."""
        found = [self.compare(results[0])]
        for i, result in enumerate(results[1:]):
            blocks = tuple((start, part[i]) for (start, _), part in zip(self.blocks, self.stats, strict=True))
            found.append(self._compare(result, self.spec.results[1 + i][0], -1, blocks, TOLERANCE["f32"]))
        return found

    def _compare(
        self,
        result: Array,
        shape: tuple[Dim, ...],
        axis: int,
        blocks: tuple[tuple[int, F64], ...],
        tolerance: float | None = None,
        slack: tuple[F64, ...] = (),
    ) -> Comparison:
        """`tolerance` says that the result is a row statistic: extremes must be equal, and an error counts against 1 at least,
        since one of a logarithm is a relative one of what it is of."""
        got, sq = np.asarray(result), _size(self.spec.Sq)
        allowed = self.allowed
        if tolerance is not None and not self.lossy:
            allowed = tolerance + ROUNDING * self.largest_score
        if got.shape != shape:
            return Comparison(math.inf, allowed, 0, sq, f"shape {got.shape}, not {shape}")
        wrong = norm = 0.0
        rows = 0
        for i, (start, want) in enumerate(blocks):
            stop = start + want.shape[axis]
            have = np.take(got, range(start, stop), axis).astype(np.float64)
            if (np.isnan(have) != np.isnan(want)).any():
                problem = f"{np.isnan(have).sum()} NaN, not {np.isnan(want).sum()} (or not the same ones)"
                return Comparison(math.inf, allowed, rows, sq, problem)
            infinite = np.isinf(want)
            if tolerance is not None:
                infinite = np.abs(want) > -LOWEST_STAT
            if (have[infinite] != want[infinite]).any():
                return Comparison(math.inf, allowed, rows, sq, "an infinite result is not the reference's")
            known = ~(infinite | np.isnan(want))
            size = want[known] if tolerance is None else np.maximum(np.abs(want[known]), 1.0)
            off = np.abs(have[known] - want[known])
            wrong += float(np.sum((np.maximum(off - slack[i][known], 0.0) if slack else off) ** 2))
            norm += float(np.sum(size**2))
            rows += stop - start
        error = math.sqrt(wrong) / (math.sqrt(norm) or 1.0)
        bad = not error <= allowed  # also where it is NaN
        problem = f"relative error {error:.2e}, allowed {allowed:.2e}" if bad else ""
        return Comparison(error, allowed, rows, sq, problem)


def expect(spec: AttentionSpec, operands: Sequence[Array], *, budget: int = ALL_SCORES) -> Expected:
    """The reference of a spec without symbols. `budget` bounds the scores computed (never below one block at each end)."""
    blocks, stats, ties, largest = [], [], [], 0.0
    for start, stop in _blocks(spec, budget):
        part, inputs = rows_of(spec, operands, start, stop)
        with np.errstate(all="ignore"):
            blocks.append((start, attention(part, *inputs)))
            stats.append(tuple(statistic(part, which, *inputs) for which in part.stats))
            s = np.abs(logits(part, *inputs))
            if rounds(part):
                ties.append(slack(part, inputs))
        largest = max(largest, float(np.max(s[s < SWALLOWS], initial=0.0)))
    return Expected(spec, tuple(blocks), largest, tuple(stats), tuple(ties))


def compare(spec: AttentionSpec, operands: Sequence[Array], result: Array, *, budget: int = ALL_SCORES) -> Comparison:
    """`expect` and its `compare` in one, for a single result."""
    return expect(spec, operands, budget=budget).compare(result)


def _blocks(spec: AttentionSpec, budget: int) -> list[tuple[int, int]]:
    """(start, stop) of the query blocks to compare: all of them, or the ends and as many between as the budget allows."""
    sq = _size(spec.Sq)
    per_row = max(1, math.prod(_size(d) for d in (*spec.batch, spec.Hq, spec.Skv)))
    step = max(1, min(sq, BLOCK_SCORES // per_row))
    blocks = [(i, min(i + step, sq)) for i in range(0, sq, step)]
    count = max(2, budget // (per_row * step))
    if count >= len(blocks):
        return blocks
    chosen = {round(n * (len(blocks) - 1) / (count - 1)) for n in range(count)}
    return [blocks[n] for n in sorted(chosen)]


def rows_of(spec: AttentionSpec, operands: Sequence[Array], start: int, stop: int) -> tuple[AttentionSpec, list[Array]]:
    """The attention of the queries `start` to `stop` alone, as a spec and operands of its own; positions are the old ones."""
    sq, skv = _size(spec.Sq), _size(spec.Skv)
    if (start, stop) == (0, sq):
        return spec, list(operands)

    def size(shape: tuple[int | str, ...]) -> tuple[int | str, ...]:
        has_rows = len(shape) > 1 and shape[-2] == sq != 1
        return (*shape[:-2], stop - start, shape[-1]) if has_rows else shape

    def leaf(e: ScoreExpr) -> ScoreExpr:
        if e == Q:
            return Apply("Add", Q, Int(start))
        return Int(sq) if e == SQ else e

    def moved(term: MaskTerm) -> MaskTerm:
        if isinstance(term, IndexMask):
            offset: Offset = (skv - sq if term.offset == "end" else term.offset) + start
            return dataclasses.replace(term, offset=offset)
        if not isinstance(term, TensorMask):
            term = with_leaves(term, leaf)
        return with_shapes(term, size)

    part = dataclasses.replace(
        spec,
        Sq=stop - start,
        masks=tuple(map(moved, spec.masks)),
        sink=spec.sink and dataclasses.replace(spec.sink, shape=size(spec.sink.shape)),
        weights=spec.weights and dataclasses.replace(spec.weights, shape=size(spec.weights.shape)),
    )
    axes = [spec.q_layout.index(spec.rank - 2), None, None]
    axes += [-2 if size(x.shape) != x.shape else None for x in operands[3 : spec.scales_at]]
    axes += [None] * (len(operands) - spec.scales_at)
    cut = slice(start, stop)
    inputs = [
        x if a is None else x[(slice(None),) * (a % x.ndim) + (cut,)] for x, a in zip(operands, axes, strict=True)
    ]
    return part, inputs


def _size(d: int | str) -> int:
    if isinstance(d, str):
        raise ValueError(f"symbol {d!r} has no size")
    return d
