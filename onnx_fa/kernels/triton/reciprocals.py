"""Sigmoids and hyperbolic tangents on NVIDIA GPUs, where reciprocals are what they cost: exponentials and reciprocals share one
unit, which makes sixteen numbers in the time of 128 multiplications, and a softmax needs it once per score.

    1 / d0 = d1 / (d0 d1),  1 / d1 = d0 / (d0 d1):  one reciprocal for two scores.

With narrow heads the products leave so little time that every other such reciprocal of a sigmoid is made without that unit, from
its bits: a float's bits are about its logarithm, so that a constant less the bits is about those of the reciprocal, within 5%
(Schraudolph 1999, "A fast, compact approximation of the exponential function"). With e = 1 - d y, y (1 + e + e^2) is off by e^3
(Newton's series).
"""

from __future__ import annotations

from collections.abc import Callable

from onnx_fa.kernels.plan.score import LOG2E

MOST = 62.0
"""Divisors are 1 + 2^x with x up to this: the reciprocal of a product of two is a normal number."""
NARROW = 64
"""Up to this head dim the unit for exponentials is what the others wait for."""
_GUESS = "0x7EF311C7"
"""Less a float's bits: those of about its reciprocal."""
_SHARED = "mul.f32 p, {a}, {b}; {inverse} mul.f32 {x}, y, {b}; mul.f32 {y}, y, {a};"
BY_UNIT = "rcp.approx.ftz.f32 y, p;"
BY_BITS = (
    f"mov.b32 i, p; sub.s32 i, {_GUESS}, i; mov.b32 y, i; neg.f32 n, p; "
    "fma.rn.f32 e, n, y, 0f3F800000; fma.rn.f32 e, e, e, e; fma.rn.f32 y, y, e, y;"
)


def shared_reciprocal(divisor: str, inverses: list[str]) -> str:
    """The reciprocals of a tile, each pair of which shares one that is made in the next of these ways."""
    count = 2 * len(inverses)
    lines = []
    for i, inverse in enumerate(inverses):
        x, y, a, b = (f"${n}" for n in (2 * i, 2 * i + 1, count + 2 * i, count + 2 * i + 1))
        lines.append(_SHARED.format(x=x, y=y, a=a, b=b, inverse=inverse))
    registers = ",".join(["=f"] * count + ["f"] * count)
    text = f"{{ .reg .f32 p, y, e, n; .reg .s32 i; {' '.join(lines)} }}"
    return (
        f'tl.inline_asm_elementwise("{text}", "{registers}", [{divisor}], dtype=tl.float32, is_pure=True, pack={count})'
    )


def _one_more(let: Callable[[str], str], x: str, factor: float) -> str:
    """1 + 2^(x * factor), up to MOST; NaN stays."""
    power = let(f"tl.minimum({x} * {factor!r}, {MOST}, propagate_nan=triton.language.PropagateNan.ALL)")
    return let(f"1.0 + tl.exp2({power})")


def shared_sigmoid(let: Callable[[str], str], x: str, factor: float, width: int) -> str:
    """The sigmoid of x * factor within 2e-4 of itself, or of 2^-62 where it is less: for scores that no mask made -inf, and weights
    that are rounded to halves and not divided by their own sum. `width`: the head dim."""
    return shared_reciprocal(_one_more(let, x, -factor * LOG2E), [BY_BITS, BY_UNIT] if width <= NARROW else [BY_UNIT])


def shared_tanh(let: Callable[[str], str], x: str) -> str:
    """1 - 2 / (1 + e^2x), which is 1 in f32 from x = 10 on; near 0 it has few digits."""
    return f"1.0 - 2.0 * {let(shared_reciprocal(_one_more(let, x, 2 * LOG2E), [BY_UNIT]))}"
