"""1 + erf(x) and 1 + tanh(x), the factors of GELUs, as one function each: of large negative x the sum leaves no digits of what was
added up, and makes up a good part of what a product's epilogue takes.

1 + erf(x) = erfc(-x) = 2^p(|x|) for x < 0, and 2 less that for the others
1 + tanh(x) = 2 / (1 + e^-2x)
"""

from __future__ import annotations

from collections.abc import Callable

from onnx_fa.kernels.plan.score import LOG2E

_LOG2_ERFC = (
    -1.6280632019042969,
    -0.9170815348625183,
    -0.15242993831634521,
    0.03391042724251747,
    -0.0052236830815672874,
    0.00048610044177621603,
    -2.0318300812505186e-05,
)
"""Of x to the first, the second and so on: log2 erfc(x) from 0 to 4.5 within 9e-6, so erfc within 6.1e-6 of itself (least largest
distance, found by reweighted least squares). Beyond it falls ever faster, as erfc does, which is below 2^-29 there."""


def one_and_erf(let: Callable[[str], str], x: str) -> str:
    """1 + erf(x) within 6.1e-6 of itself where it is 2^-29 or more: for results that are rounded to halves."""
    a = let(f"tl.abs({x})")
    series = repr(_LOG2_ERFC[-1])
    for factor in reversed(_LOG2_ERFC[:-1]):
        series = f"({series} * {a} + {factor!r})"
    rest = let(f"tl.exp2({series} * {a})")
    return f"tl.where({x} < 0.0, {rest}, 2.0 - {rest})"


def one_and_tanh(let: Callable[[str], str], x: str) -> str:
    """1 + tanh(x), with all digits of f32."""
    return f"2.0 / (1.0 + {let(f'tl.exp2({x} * {-2 * LOG2E!r})')})"
