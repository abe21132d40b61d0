"""Floats of eight bits: QuantizeLinear, DequantizeLinear and Cast of them.

IREE takes a QuantizeLinear by one scale for all, from f32 alone, and makes infinity or NaN of what is beyond the largest number,
where the operators give that number, and 0 of what rounds up to the least normal one; scales for channels, other types, and every
Cast it refuses (docs/developer/iree-bugs.md). A zero may lose its sign.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.iree.legalise.casts import add_cast
from onnx_fa.iree.legalise.dequantize import axis_spread, block_spread
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

_NUMPY: dict[int, Any] = {
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    TensorProto.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2: ml_dtypes.float8_e5m2,
    TensorProto.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
}
_WIDE = TensorProto.FLOAT
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def quantize_float8(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """x / scale in f32, kept in range, and then rounded by a QuantizeLinear that IREE takes. False where types or sizes are not
    known, and for other types."""
    x, scale, zero = (*node.input, "")[:3]
    to = g.kind(zero) if zero else attr_of(node, "output_dtype", 0)
    shape, block = g.shape(x), attr_of(node, "block_size", 0)
    if to not in _NUMPY or shape is None or g.kind(x) not in _FLOATS or g.kind(scale) not in _FLOATS:
        return False
    hint = node.name or "QuantizeLinear"
    along = block_spread(g, node, shape, block, hint) if block else axis_spread(g, node, shape, hint)
    if along is None:
        return False
    steps = along(g.cast(scale, g.kind(scale), _WIDE, hint))
    number = g.add("Div", [g.cast(x, g.kind(x), _WIDE, hint), steps], hint)
    _round(g, number, to, attr_of(node, "saturate", 1), hint, node.output[0])
    return True


def dequantize_float8(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """x * scale, which rounds once, of x as f32. False where types or sizes are not known, and for other types."""
    x, scale = node.input[:2]
    shape, block, kind = g.shape(x), attr_of(node, "block_size", 0), g.kind(scale)
    if g.kind(x) not in _NUMPY or shape is None or kind not in _FLOATS:
        return False
    hint = node.name or "DequantizeLinear"
    along = block_spread(g, node, shape, block, hint) if block else axis_spread(g, node, shape, hint)
    if along is None:
        return False
    product = g.add("Mul", [_widened(g, x, hint), along(g.cast(scale, kind, _WIDE, hint))], hint)
    to = attr_of(node, "output_dtype", 0) or kind
    if to == _WIDE:
        g.add("Identity", [product], hint, out=node.output[0])
    else:
        add_cast(g, product, _WIDE, to, hint, out=node.output[0])
    return True


def cast_float8(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A Cast to or from them, by way of f32. False for other types, and for integers, which f32 may round first."""
    x, to, hint = node.input[0], attr_of(node, "to", 0), node.name or "Cast"
    kind = g.kind(x)
    if kind in _NUMPY and to in _FLOATS:
        wide = _widened(g, x, hint)
        if to == _WIDE:
            g.add("Identity", [wide], hint, out=node.output[0])
        else:
            add_cast(g, wide, _WIDE, to, hint, out=node.output[0])
        return True
    if to in _NUMPY and kind in _FLOATS:
        _round(g, g.cast(x, kind, _WIDE, hint), to, attr_of(node, "saturate", 1), hint, node.output[0])
        return True
    return False


def _round(g: GraphWriter, number: str, to: int, saturate: int, hint: str, out: str) -> None:
    """Numbers of f32 in eight bits, with `saturate` those beyond the largest as the largest. NaN stays NaN."""
    info = ml_dtypes.finfo(_NUMPY[to])  # type: ignore[no-untyped-call]
    if saturate:
        most, missing = float(info.max), g.add("IsNaN", [number], hint)
        kept = g.add("Max", [number, g.scalar(-most, _WIDE, hint)], hint)
        kept = g.add("Min", [kept, g.scalar(most, _WIDE, hint)], hint)
        number = g.add("Where", [missing, number, kept], hint)
    # IREE makes zero of what rounds up to the least normal number: the numbers below that are rounded here, to whole steps.
    step = float(info.smallest_subnormal)
    small = g.add("Less", [g.add("Abs", [number], hint), g.scalar(float(info.tiny), _WIDE, hint)], hint)
    steps = g.add("Round", [g.add("Mul", [number, g.scalar(1 / step, _WIDE, hint)], hint)], hint)
    whole = g.add("Mul", [steps, g.scalar(step, _WIDE, hint)], hint)
    number = g.add("Where", [small, whole, number], hint)
    one, zero = g.scalar(1.0, _WIDE, hint), g.const(np.zeros((), _NUMPY[to]), hint)
    g.add("QuantizeLinear", [number, one, zero], hint, out=out)


def _widened(g: GraphWriter, x: str, hint: str) -> str:
    """Every number of eight bits is one of f32."""
    return g.add("DequantizeLinear", [x, g.scalar(1.0, _WIDE, hint)], hint)
