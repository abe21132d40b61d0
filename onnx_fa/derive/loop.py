"""A derived recurrence as kernels run it: walks over the keys with at most one running maximum, one sum beside the output, and one
correction for both. The bodies write its terms in their own language (`onnx_fa.derive.writer`), and know nothing else of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from onnx_fa.derive.attention import OUTPUT, S, V, W, program_of
from onnx_fa.derive.factors import factors_of, product, without
from onnx_fa.derive.recurrence import NoFactorError, Pass
from onnx_fa.derive.search import derive
from onnx_fa.derive.terms import Term, in_range, now, old
from onnx_fa.errors import UnsupportedError
from onnx_fa.spec.attention import AttentionSpec

SCORE, VALUE, MULTIPLIER = (in_range(x, "block") for x in (S, V, W))
"""A key's score, its row of V, and what its probability is multiplied by."""
MAXIMUM, OLD_MAXIMUM, MASS = now("m"), old("m"), now("l")
"""Carried values by the names that a derivation gives them: a row's maximum, and its sum."""


@dataclass(frozen=True)
class Walk:
    """One walk over the keys. `weight`: what a row of V is multiplied by, None where the walk makes no output; `mass`: what a key
    adds to the row's sum, None where nothing is summed. Either is multiplied by the spec's weights where it is said to be.
    `correction`: what output and sum so far are multiplied by in every block; None for nothing."""

    has_maximum: bool
    weight: Term | None
    weight_multiplied: bool
    mass: Term | None
    mass_multiplied: bool
    correction: Term | None
    results: Mapping[str, Term]


@dataclass(frozen=True)
class Loop:
    """The walks of an attention. In the end the output is `factor` times what was added up, divided by `divisor` (a term of the
    sum) where there is one."""

    walks: tuple[Walk, ...]
    factor: float
    divisor: Term | None

    @property
    def one_walk(self) -> Walk:
        """The only walk. Raises UnsupportedError where there are several."""
        if len(self.walks) > 1:
            raise UnsupportedError("probabilities that are rounded need a second sweep over the keys")
        return self.walks[0]


def loop_of(spec: AttentionSpec, *, narrow: bool = False, bounded: bool = True) -> Loop:
    """The derived loop of a spec. `narrow`: probabilities multiply V as f16; `bounded`: what bounds scores may be used. Raises
    UnsupportedError for a recurrence that kernels do not run."""
    passes = derive(program_of(spec, narrow=narrow or not bounded)).recurrence.passes
    try:
        walks = tuple(map(_walk, passes))
    except NoFactorError as e:
        raise UnsupportedError(f"kernels carry sums and maxima alone: {e}") from e
    factor, divisor = _epilogue(passes[-1].results[OUTPUT], passes[-1])
    return Loop(walks, factor, divisor)


def _walk(walk: Pass) -> Walk:
    peaks = [c for c in walk.carried if c.reduction == "peak"]
    sums = [c for c in walk.carried if c.reduction == "sum" and not c.wide]
    if len(peaks) > 1 or len(sums) > 1 or len(walk.wide) > 1 or any(p.body != SCORE for p in peaks):
        names = ", ".join(c.name for c in walk.carried)
        raise UnsupportedError(f"kernels carry one maximum of the scores, one sum and one output, not {names}")
    corrections = {c.correction for c in (*sums, *walk.wide)}
    if len(corrections) > 1:
        raise UnsupportedError("kernels correct the sum and the output alike")
    weight, weighted = _multiplied(without(walk.wide[0].body, VALUE)) if walk.wide else (None, False)
    mass, summed_weighted = _multiplied(sums[0].body) if sums else (None, False)
    if (walk.wide and weight is None) or (summed_weighted and mass != weight):
        raise UnsupportedError("kernels multiply a row of V by what the scores say, and sum that")
    correction = next(iter(corrections), None)
    return Walk(bool(peaks), weight, weighted, mass, summed_weighted, correction, walk.results)


def _multiplied(term: Term | None) -> tuple[Term | None, bool]:
    """The term without the spec's weights, and whether it had them."""
    if term is None:
        return None, False
    rest = without(term, MULTIPLIER)
    return (term, False) if rest is None else (rest, True)


def _epilogue(out: Term, walk: Pass) -> tuple[float, Term | None]:
    """The constant factor and the divisor of the output. Raises UnsupportedError for another epilogue."""
    divisor = None
    factors = factors_of(out)
    numbers = [f.number for f in factors if f.op == "num"]
    rest = product(f for f in factors if f.op != "num")
    if rest.op == "div":
        rest, divisor = rest.args
        inner = factors_of(rest)
        numbers += [f.number for f in inner if f.op == "num"]
        rest = product(f for f in inner if f.op != "num")
    if rest != now(walk.wide[0].name) if walk.wide else True:
        raise UnsupportedError(f"kernels divide their output by a sum, they do not make {out}")
    factor = math.prod(numbers)
    if divisor is not None and divisor.op == "num":
        factor, divisor = factor / divisor.number, None
    return factor, divisor
