"""Pow as IREE has it: small powers of integers as products, others by the logarithm of a base that is above 0."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.iree.legalise.writer import GraphWriter

_INTEGERS = (TensorProto.INT32, TensorProto.INT64)
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_MOST_TIMES = 8


def power(g: GraphWriter, node: onnx.NodeProto) -> bool:
    return _small_power(g, node) or _any_power(g, node)


def _small_power(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A small power of integers as products, as of lengths that a model squares: IREE refuses it."""
    times, shape = g.array(node.input[1]), g.shape(node.input[0])
    if g.kind(node.input[0]) not in _INTEGERS or times is None or times.size != 1:
        return False
    if shape is None or times.ndim > len(shape):
        return False
    count = float(times.reshape(()))
    if count not in range(1, _MOST_TIMES + 1):
        return False
    hint = node.name or "Pow"
    made = node.input[0]
    for _ in range(int(count) - 1):
        made = g.add("Mul", [made, node.input[0]], hint)
    g.add("Identity", [made], hint, out=node.output[0])
    return True


def _any_power(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A power by an exponent that is no number of the model: exp(y * log(x)) is NaN for a base below 0 and for 0 to the power 0.
    So it is that of |x|, which is 1 where y is 0 or |x| is 1, with the sign that odd exponents leave; NaN where y is no whole
    number. Integers are computed as floats."""
    base, exponent = node.input
    kind = g.kind(base)
    bases, one_number = g.array(base), g.array(exponent)
    if (one_number is not None and one_number.size == 1) or (
        bases is not None and (np.asarray(bases, float) > 0).all()
    ):
        return False
    if kind not in (*_FLOATS, *_INTEGERS):
        return False
    hint = node.name or "Pow"
    real = kind if kind in _FLOATS else TensorProto.DOUBLE
    x, y = g.cast(base, kind, real, hint), g.cast(exponent, g.kind(exponent), real, hint)
    zero, half, one, two, none = (g.scalar(n, real, hint) for n in (0, 0.5, 1, 2, np.nan))
    size = g.add("Abs", [x], hint)
    unit = g.add("Or", [g.add("Equal", [y, zero], hint), g.add("Equal", [size, one], hint)], hint)
    found = g.add("Where", [unit, one, g.add("Pow", [size, y], hint)], hint)
    even_below = g.add("Mul", [g.add("Floor", [g.add("Mul", [y, half], hint)], hint), two], hint)
    odd = g.add("Equal", [g.add("Sub", [y, even_below], hint), one], hint)
    whole = g.add("Equal", [g.add("Floor", [y], hint), y], hint)
    signed = g.add("Where", [odd, g.add("Neg", [found], hint), g.add("Where", [whole, found, none], hint)], hint)
    below = g.add("Less", [x, zero], hint)
    made = g.add("Where", [below, signed, found], hint)
    made = g.add("Round", [made], hint) if real != kind else made
    g.cast(made, real, kind, hint, out=node.output[0])
    return True
