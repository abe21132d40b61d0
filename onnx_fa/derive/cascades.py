"""Reduction programs that are no attention, derived by the same rules. Keys are x, a row of numbers; w, weights of them (a column
of a matrix); target, 1 at one key and 0 elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from onnx_fa.derive.search import Program
from onnx_fa.derive.terms import across, apply, exp, key, log, peak, total

_X, _W, _TARGET, _COUNT = key("x"), key("w"), key("target"), total(key("1"))
_MEAN = total(_X) / _COUNT
_VARIANCE = total((_X - _MEAN) * (_X - _MEAN)) / _COUNT
_TOP = peak(_X)
_MASS = total(exp(_X - _TOP))


@dataclass(frozen=True)
class Cascade:
    """A program with a name and a word on it."""

    name: str
    program: Program
    about: str


CASCADES: tuple[Cascade, ...] = (
    Cascade("log-sum-exp", Program((("out", log(_MASS) + _TOP),)), "the logarithm of a sum of exponentials"),
    Cascade("cross-entropy", Program((("out", log(_MASS) + _TOP - total(_X * _TARGET)),)), "over a vocabulary"),
    Cascade(
        "variance",
        Program((("mean", _MEAN), ("out", _VARIANCE))),
        "sums of numbers and squares, which lose digits where the mean is far from 0",
    ),
    Cascade(
        "layer-norm-product",
        Program((("out", total((_X - _MEAN) / apply("Sqrt", _VARIANCE) * _W)),), wide=("w",)),
        "layer norm, then a product with a matrix: the norm leaves the product",
    ),
    Cascade("weighted-mean", Program((("out", total(_X * _W) / total(_W)),)), "two sums side by side"),
)
REFUSED: tuple[Cascade, ...] = (
    Cascade("top-k", Program((("out", total(across("top_k", _X) * _W)),)), "a key's rank needs all keys"),
    Cascade("prefix-sums", Program((("out", total(across("prefix_sum", _X) * _W)),)), "a scan is no reduction"),
)
"""What no loop that carries a few numbers computes."""
