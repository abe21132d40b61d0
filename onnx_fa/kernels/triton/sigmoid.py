"""Sigmoids on NVIDIA GPUs, where reciprocals are what they cost: exponentials and reciprocals share one unit, which makes sixteen
numbers in the time of 128 multiplications, and a softmax needs it once per score.

    1 / d0 = d1 / (d0 d1),  1 / d1 = d0 / (d0 d1):  one reciprocal for two scores.

With narrow heads the products leave so little time that every other such reciprocal is made without that unit, from its bits: a
float's bits are about its logarithm, so that a constant less the bits is about those of the reciprocal, within 5% (Schraudolph
1999, "A fast, compact approximation of the exponential function"). With e = 1 - d y, y (1 + e + e^2) is off by e^3 (Newton's
series).
"""

from __future__ import annotations

from onnx_fa.kernels.plan.score import LOG2E
from onnx_fa.kernels.triton.expressions import Block

LEAST = 62.0
"""Of two scores that share a reciprocal, none weighs less than 2^-62: the reciprocal of their product of divisors is a normal
number."""
NARROW = 64
"""Up to this head dim the unit for exponentials is what the others wait for."""
_GUESS = "0x7EF311C7"
"""Less a float's bits: those of about its reciprocal."""
_SHARED = "mul.f32 p, {a}, {b}; {inverse} mul.f32 {x}, y, {b}; mul.f32 {y}, y, {a};"
_BY_UNIT = "rcp.approx.ftz.f32 y, p;"
_BY_BITS = (
    f"mov.b32 i, p; sub.s32 i, {_GUESS}, i; mov.b32 y, i; neg.f32 n, p; "
    "fma.rn.f32 e, n, y, 0f3F800000; fma.rn.f32 e, e, e, e; fma.rn.f32 y, y, e, y;"
)


def shared_sigmoid(t: Block, score: str, factor: float, width: int) -> str:
    """The sigmoid of score * factor within 2e-4 of itself, or of 2^-62 where it is less: for scores that no mask made -inf, and
    weights that are rounded to halves and not divided by their own sum. `width`: the head dim."""
    nan = "propagate_nan=triton.language.PropagateNan.ALL"
    power = t.let(f"tl.exp2(tl.minimum({score} * {-factor * LOG2E!r}, {LEAST}, {nan}))")
    inverses = [_BY_BITS, _BY_UNIT] if width <= NARROW else [_BY_UNIT]
    count = 2 * len(inverses)
    lines = []
    for i, inverse in enumerate(inverses):
        x, y, a, b = (f"${n}" for n in (2 * i, 2 * i + 1, count + 2 * i, count + 2 * i + 1))
        lines.append(_SHARED.format(x=x, y=y, a=a, b=b, inverse=inverse))
    registers = ",".join(["=f"] * count + ["f"] * count)
    text = f"{{ .reg .f32 p, y, e, n; .reg .s32 i; {' '.join(lines)} }}"
    divisor = t.let(f"1.0 + {power}")
    return (
        f'tl.inline_asm_elementwise("{text}", "{registers}", [{divisor}], dtype=tl.float32, is_pure=True, pack={count})'
    )
