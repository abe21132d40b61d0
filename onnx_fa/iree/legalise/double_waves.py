"""Sin and Cos of f64 in sums and products: for CPUs IREE calls the C library's functions for them, which it does not link.

x = n pi/2 + r, where n is whole and r at most pi/4. r is found by taking n times three parts of pi/2 off x, of which the first two
have 33 bits, so that their products with n up to 2^20 are exact (Cody and Waite, "Software Manual for the Elementary Functions",
1980). The sine and the cosine of r are Taylor's series, whose next terms are below half a unit in the last place. Of larger x the
result is that of x moved by a unit in its last place.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import GraphWriter

_HALF_PI = Fraction("1.57079632679489661923132169163975144209858469968755291")
_BITS = 33
_SINE = [Fraction((-1) ** k, math.factorial(2 * k + 1)) for k in range(9)]
_COSINE = [Fraction((-1) ** k, math.factorial(2 * k)) for k in range(10)]
"""Taylor's coefficients of r^1, r^3, ..., r^17 and of 1, r^2, ..., r^18."""


def parts_of_half_pi() -> tuple[float, float, float]:
    """Three numbers whose sum is pi / 2, the first two of 33 bits."""
    found, rest = [], _HALF_PI
    for _ in range(2):
        exponent = math.frexp(float(rest))[1]
        unit = Fraction(2) ** (exponent - _BITS)
        part = math.floor(rest / unit) * unit
        found.append(float(part))
        rest -= part
    return found[0], found[1], float(rest)


def wave(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Sin or Cos of f64."""
    x, hint = node.input[0], node.name or op_of(node)
    if g.kind(x) != TensorProto.DOUBLE:
        return False

    def number(value: float) -> str:
        return g.const(np.array(value, np.float64), hint)

    def add(op: str, *inputs: str, out: str | None = None) -> str:
        return g.add(op, inputs, hint, out=out)

    def series(z: str, coefficients: list[Fraction]) -> str:
        total = number(float(coefficients[-1]))
        for c in reversed(coefficients[:-1]):
            total = add("Add", add("Mul", total, z), number(float(c)))
        return total

    turns = add("Round", add("Mul", x, number(2 / math.pi)))
    r = x
    for part in parts_of_half_pi():
        r = add("Sub", r, add("Mul", turns, number(part)))
    z = add("Mul", r, r)
    sine, cosine = add("Mul", r, series(z, _SINE)), series(z, _COSINE)
    # A cosine is the sine a quarter of a turn on. Of four quarters each other one is a cosine, and the last two are negative.
    quarter = add("Add", turns, number(1.0)) if op_of(node) == "Cos" else turns
    half = add("Floor", add("Mul", quarter, number(0.5)))
    odd = add("Sub", quarter, add("Mul", half, number(2.0)))
    negative = add("Sub", half, add("Mul", add("Floor", add("Mul", half, number(0.5))), number(2.0)))
    size = add("Where", add("Greater", odd, number(0.5)), cosine, sine)
    sign = add("Sub", number(1.0), add("Mul", negative, number(2.0)))
    add("Mul", size, sign, out=node.output[0])
    return True
