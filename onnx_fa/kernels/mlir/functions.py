"""Functions of f32 vectors that take the compiler longer: it chooses among several polynomials, or bounds what needs no bounds.

sigmoid(x) is 1 / (1 + e^-x), and y sigmoid(x) = y / (1 + e^-x) one quotient as well."""

from __future__ import annotations

import math

from onnx_fa.kernels.mlir.vectors import NEAREST_INT, Lanes
from onnx_fa.spec.expr import Apply, ScoreExpr

ERF_TOP = (
    1.1283791521131254,
    0.18730616975006642,
    0.05241819920954013,
    0.0036526475218134615,
    0.0002859382886223228,
    2.123114802191025e-06,
)
ERF_BELOW = (
    1.0,
    0.4993286758672466,
    0.11289956487960905,
    0.01474228825949122,
    0.001141676667121838,
    3.889784517181885e-05,
)
ERF_IS_ONE = 3.8325069
"""erf(x) / x is the quotient of these sums of powers of x^2, the lowest first, up to where f32 has no number between erf(x) and 1:
a fit by least squares with Lawson's weights, whose relative error is 1.4e-8, and 3.5e-7 in f32 arithmetic."""

EXP_MINUS_POWERS = (
    1.000000000556383,
    -1.000000036431297,
    0.4999999203605663,
    -0.16666419679224534,
    0.041668228690457124,
    -0.00837485717786358,
    0.001383679396260792,
)
"""e^-r for |r| <= log(2) / 2, lowest power first: a fit by least squares with Lawson's weights, whose relative error is 1.9e-9."""
_LN2_TOP = 0.693359375
"""log(2) in few bits, so that its product with a whole number below 2^14 is exact."""
_LOWEST, _HIGHEST = -88.8, 87.0
"""Below, e^-x is beyond f32: there its power of two becomes infinite. Above, it is next to nothing beside 1."""


def one_plus_exp_of_minus(t: Lanes, x: str) -> str:
    """1 + e^-x of f32 vectors within 2e-7 of itself; infinite below -88.4, 1 at infinity, NaN of NaN.

    -x = n log(2) - r with n a whole number, which adding 1.5 * 2^23 leaves in the low bits of the sum. It is multiplied by as
    a float 2^n, not added to an exponent: so NaN stays, whatever its bits."""
    # In both comparisons x is what remains where it is NaN.
    low, high = t.splat(_LOWEST), t.splat(_HIGHEST)
    x = t.minimum(high, t.maximum(low, x))
    rounded = t.vop(t.fma, x, t.splat(-1 / math.log(2)), t.splat(NEAREST_INT))
    n = t.vop("arith.subf", rounded, t.splat(NEAREST_INT))
    r = t.vop(t.fma, n, t.splat(_LN2_TOP), x)
    r = t.vop(t.fma, n, t.splat(math.log(2) - _LN2_TOP), r)
    bits = t.let(f"arith.bitcast {rounded} : {t.vec} to {t.ivec}")
    bits = t.arith("shli", bits, t.dense("23", "i32"), t.ivec)
    bits = t.arith("addi", bits, t.dense(str(127 << 23), "i32"), t.ivec)
    scale = t.let(f"arith.bitcast {bits} : {t.ivec} to {t.vec}")
    return t.vop(t.fma, t.polynomial(r, EXP_MINUS_POWERS), scale, t.splat(1.0))


def sigmoid_factor(expr: ScoreExpr) -> tuple[ScoreExpr, ScoreExpr] | None:
    """(y, x) of y * sigmoid(x); None for anything else."""
    match expr:
        case Apply("Mul", (y, Apply("Sigmoid", (x,)))) | Apply("Mul", (Apply("Sigmoid", (x,)), y)):
            return y, x
    return None


def erf(t: Lanes, x: str) -> str:
    """x P(x^2) / Q(x^2), and +-1 where no float lies between erf and that. NaN stays NaN."""
    square = t.vop("arith.mulf", x, x)
    top, below = (t.polynomial(square, factors, "math.fma") for factors in (ERF_TOP, ERF_BELOW))
    found = t.vop("arith.divf", t.vop("arith.mulf", x, top), below)
    end = t.vop("math.copysign", t.splat(1.0), x)
    return t.select(t.compare("oge", t.vop("math.absf", x), t.splat(ERF_IS_ONE)), end, found)
