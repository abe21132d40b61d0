"""One walk over the keys, as a pass of a derivation says, for vectors of queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from onnx_fa.derive.loop import MASS, MAXIMUM, OLD_MAXIMUM, SCORE, Walk
from onnx_fa.derive.terms import Term, known
from onnx_fa.derive.writer import write
from onnx_fa.kernels.cpu.language import VectorLanguage


@dataclass(frozen=True)
class Sweep:
    """What one walk over the keys does with a block. `known`: results of earlier walks, a vector for each of the queries'."""

    language: VectorLanguage
    walk: Walk
    known: dict[Term, tuple[str, ...]] = field(default_factory=dict)

    def decays(self, old: Sequence[str], new: Sequence[str]) -> list[str]:
        """What sums and output so far are multiplied by, as the maxima grew from `old` to `new`; nothing where they stay."""
        if self.walk.correction is None:
            return []
        return [
            write(self.walk.correction, self.language, {OLD_MAXIMUM: a, MAXIMUM: b})
            for a, b in zip(old, new, strict=True)
        ]

    def values(self, j: int, score: str, best: Sequence[str]) -> tuple[str, str]:
        """For scores of the j-th vector of queries: what values are multiplied by (what is summed, where not); then what is
        summed, "" for nothing."""
        place = {SCORE: score} | ({MAXIMUM: best[j]} if best else {}) | {k: v[j] for k, v in self.known.items()}
        memo: dict[Term, str] = {}
        mass, weight = (
            write(x, self.language, place, memo) if x is not None else "" for x in (self.walk.mass, self.walk.weight)
        )
        return weight or mass, mass

    def results(self, best: tuple[str, ...], totals: tuple[str, ...]) -> dict[Term, tuple[str, ...]]:
        """What the walk leaves to the next, for every vector of queries."""
        count = max(len(best), len(totals))
        places = [({MAXIMUM: best[j]} if best else {}) | ({MASS: totals[j]} if totals else {}) for j in range(count)]
        return {
            known(name): tuple(write(term, self.language, place) for place in places)
            for name, term in self.walk.results.items()
        }
