"""The terms of a derivation as Triton source: expressions in text, of tiles and columns, with scores in units of log2 where the
loop takes exponentials of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from onnx_fa.derive.attention import STEPS, function_of
from onnx_fa.derive.loop import MASS, MAXIMUM, OLD_MAXIMUM, Loop
from onnx_fa.derive.terms import Term
from onnx_fa.derive.writer import write
from onnx_fa.kernels.plan.score import LN2, LOG2E, MAX_START
from onnx_fa.kernels.triton import reciprocals
from onnx_fa.kernels.triton.expressions import Expressions, float_text
from onnx_fa.kernels.triton.places import Places
from onnx_fa.spec.attention import LOWEST_STAT, Stat
from onnx_fa.spec.dtypes import F32_MAX
from onnx_fa.spec.expr import SCORE as ARGUMENT
from onnx_fa.spec.expr import SKV, SQ, Apply, ScoreExpr
from onnx_fa.spec.terms import Rounding

_SUMS = ("+", "-")


def _enclosed(x: str, *, also_products: bool = False) -> str:
    """The text of an operand, in brackets where it is a sum (or a product)."""
    depth = 0
    for i, c in enumerate(x):
        depth += (c in "([") - (c in ")]")
        if depth == 0 and c == " " and (also_products or x[i + 1] in _SUMS):
            return f"({x})"
    return x


@dataclass(frozen=True)
class TritonLanguage:
    """The ops of terms as text. Functions are written into the kernel's block first. `unmasked`: in a block whose
    scores no mask makes -inf, and a loop that divides by nothing, the scores as a tile and a number that multiplies it, by text."""

    places: Places
    unmasked: Mapping[str, tuple[str, float]] | None = None

    def add(self, a: str, b: str) -> str:
        return f"{a} + {b}"

    def sub(self, a: str, b: str) -> str:
        return f"{a} - {_enclosed(b)}"

    def mul(self, a: str, b: str) -> str:
        return f"{_enclosed(a)} * {_enclosed(b)}"

    def div(self, a: str, b: str) -> str:
        return f"{_enclosed(a)} / {_enclosed(b, also_products=True)}"

    def max(self, a: str, b: str) -> str:
        return f"tl.maximum({a}, {b})"

    def exp(self, x: str) -> str:
        return f"tl.exp2({x})"

    def log(self, x: str) -> str:
        return f"tl.log2({x})"

    def num(self, value: float) -> str:
        return float_text(value)

    def map(self, name: str, x: str) -> str:
        spec, places = self.places.spec, self.places
        argument, factor = (self.unmasked or {}).get(x) or (places.t.let(x), 1.0)
        if self.unmasked is not None and spec.dtype != "f32" and function_of(spec, name) == Apply("Sigmoid", ARGUMENT):
            return reciprocals.shared_sigmoid(places.t.let, argument, factor, places.dp)
        argument = argument if factor == 1.0 else places.t.let(x)
        if name == STEPS and spec.rounding is not None:
            return self._steps(spec.rounding, argument)
        if name == "Reciprocal":  # 0 in rows without a key, whose probabilities are 0 or NaN, which both become 0
            return f"tl.where({argument} > 0.0, 1.0 / {argument}, 0.0)"
        function = function_of(spec, name)
        if function == Apply("Sigmoid", ARGUMENT):
            # A root's reciprocal, squared, takes two instructions, a division ten. Where 2^-x overflows the result is 0.
            root = places.t.let(f"tl.rsqrt(1.0 + tl.exp2({argument} * {-LOG2E!r}))")
            return f"{root} * {root}"
        writer = self._writer()
        lengths: dict[ScoreExpr, str] = {ARGUMENT: argument, SQ: places.sq, SKV: places.skv}
        return writer.emit(function, lengths.get)

    def _writer(self) -> Expressions:
        spec = self.places.spec
        return Expressions(self.places.t, spec.Sq, spec.Skv, (), spec.dtype == "f32")

    def _steps(self, rounding: Rounding, p: str) -> str:
        """A probability in whole steps, in the order of a graph, which divides by the step; NaN becomes 0."""
        if rounding.before is not None:
            p = self.places.t.let(f"{self._steps(rounding.before, p)} * {rounding.before.scale!r}")
        steps = self.places.t.let(f"tl.div_rn({p}, {rounding.scale!r})")
        steps = self._writer().emit(Apply("Round", ARGUMENT), lambda e: steps if e == ARGUMENT else None)
        return f"tl.minimum(tl.maximum({steps}, 0.0), {float(rounding.most)!r})"


def correction_of(places: Places, correction: Term, new: str, old: str = "m") -> str:
    """What sums so far are multiplied by, as their rows' maxima grow from `old` to `new`; those of a part of the keys, too, to
    be joined with others."""
    return write(correction, TritonLanguage(places), {OLD_MAXIMUM: old, MAXIMUM: new})


def statistic_of(places: Places, which: Stat, term: Term, known: Mapping[Term, str]) -> str:
    """A row statistic in natural units. Of rows that saw only numbers of masks it is the lowest f32, without a key -inf; a sum has
    no units."""
    t, m, total = places.t, known[MAXIMUM], known[MASS]
    if which == "sum":
        return write(term, TritonLanguage(places), known)
    x = t.let(f"({write(term, TritonLanguage(places), known)}) * {LN2!r}")
    x = t.let(f"tl.where({x} <= {LOWEST_STAT * 0.999!r}, {-F32_MAX!r}, {x})")
    infinite, nothing = float_text(math.inf), float_text(-math.inf)
    x = t.let(f"tl.where({m} == {infinite}, {infinite}, tl.where({total} != {total}, {total}, {x}))")
    return t.let(f"tl.where(({m} <= {MAX_START!r}) & ({total} == 0.0), {nothing}, {x})")


def output_of(places: Places, loop: Loop, acc: str, total: str) -> str:
    """The output: what was added up, divided as the loop says. Rows without a key have a sum of 0: they are NaN (0 / 0), or 0 if
    the spec says so, or if there are no keys at all."""
    t, spec, skv = places.t, places.spec, places.skv
    if loop.factor != 1.0:
        acc = t.let(f"{acc} * {float_text(loop.factor)}")
    if loop.divisor is None:
        return acc
    divisor = write(loop.divisor, TritonLanguage(places), {MASS: total})
    result = t.let(f"{acc} / {_enclosed(divisor, also_products=True)}")
    if isinstance(spec.Skv, str) and spec.empty_row in ("nan", "mean"):
        return t.let(f"tl.where({skv} == 0, 0.0, {result})")
    if spec.empty_row == "zero":
        return t.let(f"tl.where({total} == 0.0, 0.0, {result})")
    return t.let(f"tl.where({total} > 0.0, {result}, 0.0)") if spec.empty_row == "guarded" else result
