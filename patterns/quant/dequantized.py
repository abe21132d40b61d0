"""How K and V are kept as integers. A rounded Q needs no rule of its own: DequantizeLinear makes an operand like any other op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.ops import DEQUANTIZE, attr_int, op_of
from onnx_fa.graph.view import DTYPES, GraphView
from onnx_fa.match import Call, Const, Expr, known_array
from onnx_fa.spec.dtypes import ONNX
from onnx_fa.spec.terms import Dim, DType, IntegerType

_INTEGERS: dict[ir.DataType | None, IntegerType] = {ir.DataType(ONNX[name]): name for name in get_args(IntegerType)}


@dataclass(frozen=True)
class Dequantized:
    """(`source` - `zero`) * `scale`, rounded once. `shape` is that of scale and zero point, which broadcasts to the source, but
    along axis `grouped`, where a number serves several neighbours. Zero points have 8 bits."""

    source: ir.Value
    dtype: IntegerType
    shape: tuple[Dim, ...]
    scale: Expr
    zero: Expr | None
    number: DType
    grouped: int | None = None


def read_dequantized(view: GraphView, value: ir.Value) -> Dequantized | None:
    """How a value is made of integers of at most 8 bits: by DequantizeLinear, or as Mul(Sub(Cast(x), zero), scale). None where it
    is not, or scale and result differ in type."""
    node = value.producer()
    if node is not None and op_of(node) in DEQUANTIZE:
        return _by_op(view, node)
    return _by_hand(view, value)


def _by_op(view: GraphView, node: ir.Node) -> Dequantized | None:
    source, scale, zero = (*node.inputs, None)[:3]
    if source is None or scale is None or source.dtype not in _INTEGERS:
        return None
    dims, shape = view.shape(source), view.shape(scale)
    if dims is None or shape is None or scale.dtype not in DTYPES or scale.dtype != node.outputs[0].dtype:
        return None
    if zero is not None and _differs(shape, view.shape(zero)):
        return None  # the op would fail
    number = DTYPES[scale.dtype]
    axis = attr_int(node, "axis", 1)
    block = attr_int(node, "block_size", 0)
    scale_of: Expr = scale
    zero_of = _zero_point(view, zero)
    if all(d == 1 for d in shape):
        return Dequantized(
            source, _INTEGERS[source.dtype], (), _flat(view, scale), zero_of and _flat(view, zero_of), number
        )
    if not -len(dims) <= axis < len(dims):
        return None
    axis %= len(dims)
    if len(shape) == len(dims) and block:
        known = [1 if d == 1 else x for d, x in zip(shape, dims, strict=True)]  # the op makes the others equal
        groups, width = shape[axis], dims[axis]
        if not isinstance(groups, int) or not isinstance(width, int) or groups * block != width or None in known:
            return None
        known[axis] = groups
        grouped = axis if groups not in (1, width) else None
        return Dequantized(
            source,
            _INTEGERS[source.dtype],
            tuple(d for d in known if d is not None),
            scale_of,
            zero_of,
            number,
            grouped,
        )
    size = dims[axis]
    if len(shape) != 1 or block or size is None:
        return None
    behind = len(dims) - 1 - axis
    full = (size, *[1] * behind)
    return Dequantized(
        source,
        _INTEGERS[source.dtype],
        full,
        _with_units(view, scale, behind),
        zero_of and _with_units(view, zero_of, behind),
        number,
    )


def _by_hand(view: GraphView, value: ir.Value) -> Dequantized | None:
    product = view.producer(value, "Mul")
    if product is None or value.dtype not in DTYPES:
        return None
    for side in (0, 1):
        number, scale = product.inputs[side], product.inputs[1 - side]
        zero: ir.Value | None = None
        minus = view.producer(number, "Sub")
        if minus is not None:
            number, zero = minus.inputs
        cast = view.producer(number, "Cast")
        source = cast.inputs[0] if cast is not None else None
        if source is None or scale is None or source.dtype not in _INTEGERS or scale.dtype != value.dtype:
            continue
        dims, shape = view.shape(source), view.shape(scale)
        if dims is None or shape is None or not _broadcasts(shape, dims):
            continue
        known = tuple(d for d in shape if d is not None)
        scale_of: Expr = scale
        zero_of: Expr | None = None
        if zero is not None:
            zero_of = _zero_point(view, zero, source.dtype)
            if zero_of is None or view.shape(zero) != shape:
                continue
        if all(d == 1 for d in known):
            known, scale_of, zero_of = (), _flat(view, scale), zero_of and _flat(view, zero_of)
        return Dequantized(source, _INTEGERS[source.dtype], known, scale_of, zero_of, DTYPES[value.dtype])
    return None


def _differs(shape: Sequence[Dim | None], other: Sequence[Dim | None] | None) -> bool:
    """Whether a scale and a zero point provably are of other shapes. A single number has any rank in onnxruntime."""
    if other is None or all(d == 1 for d in (*shape, *other)):
        return False
    pairs = zip(shape, other, strict=False)
    return len(shape) != len(other) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)


def _broadcasts(shape: Sequence[Dim | None], dims: Sequence[Dim | None]) -> bool:
    """Whether a shape provably broadcasts to dims without changing them."""
    if len(shape) > len(dims):
        return False
    pairs = zip(reversed(shape), reversed(dims), strict=False)
    return all(have == 1 or (have is not None and have == want) for have, want in pairs)


def _zero_point(view: GraphView, zero: ir.Value | None, of: ir.DataType | None = None) -> Expr | None:
    """A zero point in 8 bits; None where there is none, or it is zero, or not an integer of the type `of`."""
    if zero is None:
        return None
    known = view.const(zero)
    if of is not None:  # subtracted as a float
        cast = view.producer(zero, "Cast")
        if cast is None or cast.inputs[0] is None or cast.inputs[0].dtype != of:
            return None
        zero = cast.inputs[0]
        known = view.const(zero)
    unsigned = zero.dtype in (ir.DataType.UINT8, ir.DataType.UINT4)
    if known is not None:
        array = known.astype(np.uint8 if unsigned else np.int8)
        return Const(array) if array.any() or of is not None else None
    if zero.dtype in (ir.DataType.INT4, ir.DataType.UINT4):
        wide = ir.DataType.UINT8 if unsigned else ir.DataType.INT8
        return Call("Cast", (zero,), (("to", int(wide)),))
    return zero


def _flat(view: GraphView, value: Expr) -> Expr:
    """A single number as a scalar."""
    known = known_array(view, value)
    if known is not None:
        return value if isinstance(value, ir.Value) and not known.shape else Const(known.reshape(()))
    if isinstance(value, ir.Value) and view.shape(value) == ():
        return value
    return Call("Reshape", (value, Const(np.zeros(0, np.int64))))


def _with_units(view: GraphView, value: Expr, behind: int) -> Expr:
    """A vector with so many unit axes behind it."""
    if not behind:
        return value
    known = known_array(view, value)
    if known is not None:
        return Const(known.reshape(-1, *[1] * behind))
    return Call("Unsqueeze", (value, Const(np.arange(1, behind + 1, dtype=np.int64))))
