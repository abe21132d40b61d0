"""Convolutions of bytes on CPUs: as a product of bytes where windows lie side by side, else as a Conv of floats that hold the same
integers. IREE compiles them into loops over integers of 32 bits, which take many times as long.

Every sum of some of the products of a window is at most max |x - zero| times the sum of |w - zero| of a column. Where that is below
2^24, f32 holds every one of them, in whatever order it is summed: the floats are the integers. A column whose sums may be larger is
cut into parts of its channels, whose sums are added as integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.conv_forms import write_conv
from onnx_fa.iree.legalise.conv_shapes import SLICE_OPSET
from onnx_fa.iree.legalise.integer_products import BYTES, RANGES, cast_of, weight_zero
from onnx_fa.iree.legalise.patches import Patches, patches_of, write_image, write_rows
from onnx_fa.iree.legalise.quantized_products import product_of_bytes
from onnx_fa.iree.legalise.windows import window
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of
from onnx_fa.kernels.row_sites import kept_why
from onnx_fa.spec.linear import LinearSpec

EXACT = 1 << 24
"""Whole numbers below are f32."""
_ROUND_OPSET = 11
"""The first opset with a Round."""
_LEAST_K = 16


@dataclass(frozen=True)
class _Bytes:
    """A convolution of bytes, with `node`'s attributes: x less a number `x_zero` by the constant w less `w_zero`, one number or one
    for each column. `weight`: that difference. `most`: the largest |x - x_zero|."""

    node: onnx.NodeProto
    x: str
    w: str
    x_zero: str
    w_zero: str
    weight: npt.NDArray[np.int32]
    most: int

    @property
    def columns(self) -> int:
        return len(self.weight)

    def sums(self, first: int = 0, last: int | None = None) -> int:
        """The largest sum that some of the products of these channels may have, in size."""
        part = np.abs(self.weight[:, first:last].astype(np.int64)).reshape(self.columns, -1)
        largest: int = max(map(int, part.sum(axis=1)))
        return self.most * largest


def conv_integer(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A ConvInteger on a CPU whose weight is a constant."""
    x, w, x_zero, w_zero = (*node.input, "", "")[:4]
    found, hint = _bytes(g, node, x, w, x_zero, w_zero), node.name or "ConvInteger"
    alone = cast_of(g, node) is not None
    made = None if found is None else _write_sums(g, found, hint, rounded=alone)
    if made is None:
        return window(g, node)
    if alone:  # the Cast that reads it has nothing to do
        g.floats[node.output[0]] = g.cast(made, g.kind(made), TensorProto.FLOAT, hint)
    else:
        g.cast(made, g.kind(made), TensorProto.INT32, hint, out=node.output[0])
    return True


def qlinear_conv(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A QLinearConv on a CPU whose weight is a constant: whole sums with the bias, times x's scale and the weight's over y's,
    rounded to the nearest even one and saturated, as onnxruntime does it."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (*node.input, "")[:9]
    found, hint, kind = _bytes(g, node, x, w, x_zero, w_zero), node.name or "QLinearConv", g.kind(y_zero)
    if found is None or g.opset < _ROUND_OPSET or kind not in RANGES:
        return window(g, node)
    ones = [1] * (found.weight.ndim - 2)
    scale_shape = g.shape(w_scale)
    known = all(g.is_one_number(v) for v in (x_scale, y_scale, y_zero)) and scale_shape is not None
    made = _write_sums(g, found, hint, rounded=False) if known else None
    if made is None or scale_shape is None:
        return window(g, node)
    if bias:
        whole = g.cast(made, g.kind(made), TensorProto.INT32, hint)
        made = g.add("Add", [whole, g.reshape(bias, [-1, *ones], hint)], hint)
        g.types[made] = (TensorProto.INT32, None)
    number = g.cast(made, g.kind(made), TensorProto.FLOAT, hint)
    scale = g.add("Div", [g.add("Mul", [x_scale, w_scale], hint), y_scale], hint)
    if not all(d == 1 for d in scale_shape):
        scale = g.reshape(scale, [-1, *ones], hint)
    steps = g.add("Round", [g.add("Mul", [number, scale], hint)], hint)
    steps = g.add("Add", [steps, g.cast(y_zero, kind, TensorProto.FLOAT, hint)], hint)
    ends = [g.const(np.array(end, np.float32), hint) for end in RANGES[kind]]
    whole = g.add("Cast", [g.add("Clip", [steps, *ends], hint)], hint, to=TensorProto.INT32)
    g.add("Cast", [whole], hint, out=node.output[0], to=kind)
    return True


def dequantized_conv(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A Conv on a CPU whose weight is a DequantizeLinear of a constant: as a product of bytes and their scales where x is one of
    bytes, too, and windows lie side by side, else with a weight of floats, which is what kernels read."""
    weight = dequantized_constant(g, node.input[1])
    if g.cpu is None or weight is None or _slices_free_batch(g, node, node.input[0], weight.shape):
        return False
    hint, bias = node.name or "Conv", (*node.input, "")[2]
    numbers = dequantized_constant(g, bias) if bias else None
    if numbers is not None:
        bias = g.const(numbers, hint)
        g.types[bias] = (TensorProto.FLOAT, list(numbers.shape))
    if _dequantized_patches(g, node, bias, hint):
        return True
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.input[1] = g.const(weight, hint)
    g.types[made.input[1]] = (TensorProto.FLOAT, list(weight.shape))
    if bias:
        made.input[2] = bias
    write_conv(g, made)
    return True


def dequantized_constant(g: GraphWriter, value: str) -> npt.NDArray[np.float32] | None:
    """The numbers of a DequantizeLinear to f32 of constants that has no blocks; None where a value is another."""
    node = g.maker(value)
    if (
        node is None
        or op_of(node) != "DequantizeLinear"
        or attr_of(node, "block_size", 0)
        or g.kind(value) not in (0, 1)
    ):
        return None
    whole, scale, zero = (g.array(name) if name else None for name in (*node.input, "")[:3])
    if whole is None or scale is None or scale.dtype != np.float32 or (zero is None and (*node.input, "")[2]):
        return None
    if whole.dtype not in (np.int8, np.uint8, np.int16, np.uint16, np.int32):
        return None
    shape = [1] * whole.ndim
    if scale.size > 1:
        axis = attr_of(node, "axis", 1)
        if not -whole.ndim <= axis < whole.ndim or scale.shape != (whole.shape[axis],):
            return None
        shape[axis % whole.ndim] = scale.size
    less = whole.astype(np.int64) if zero is None else whole.astype(np.int64) - zero.astype(np.int64).reshape(shape)
    made: npt.NDArray[np.float32] = less.astype(np.float32) * scale.reshape(shape if whole.ndim else ())
    return made


def _dequantized_patches(g: GraphWriter, node: onnx.NodeProto, bias: str, hint: str) -> bool:
    makers = [g.maker(value) for value in node.input[:2]]
    if any(m is None or op_of(m) != "DequantizeLinear" or attr_of(m, "block_size", 0) for m in makers):
        return False
    (x, x_scale, x_zero), (w, w_scale, w_zero) = ((*m.input, "")[:3] for m in makers if m is not None)
    found = _bytes(g, node, x, w, x_zero, w_zero)
    p = None if found is None else _patches_of(g, found)
    if found is None or p is None or not g.is_one_number(x_scale) or g.kind(x_scale) != TensorProto.FLOAT:
        return False
    by_column = attr_of(makers[1], "axis", 1) == 0 and g.shape(w_scale) == [found.columns]  # type: ignore[arg-type]
    if not (by_column or g.is_one_number(w_scale)):
        return False
    scale = g.add("Mul", [x_scale, w_scale], hint)
    result = g.add("Mul", [_write_product(g, found, p, hint), scale], hint)
    if bias:
        result = g.add("Add", [result, bias], hint)
    write_image(g, result, p, found.columns, hint, out=node.output[0])
    return True


def _bytes(g: GraphWriter, node: onnx.NodeProto, x: str, w: str, x_zero: str, w_zero: str) -> _Bytes | None:
    """None where no CPU computes it, and where weights or zero points are others."""
    weight, kind = g.array(w), g.kind(x)
    zero = np.zeros((), np.int32) if not w_zero else g.array(w_zero)
    if g.cpu is None or kind not in BYTES or g.kind(w) not in BYTES or weight is None or zero is None:
        return None
    if weight.ndim < 3 or not weight.size or zero.size not in (1, weight.shape[0]):
        return None
    if x_zero and not g.is_one_number(x_zero):
        return None
    low, high = RANGES[kind]
    start = np.zeros((), np.int32) if not x_zero else g.array(x_zero)
    most = high - low if start is None else max(high - int(start.reshape(())), int(start.reshape(())) - low)
    centred = weight.astype(np.int32) - zero.astype(np.int32).reshape(-1, *[1] * (weight.ndim - 1))
    return _Bytes(node, x, w, x_zero, w_zero, centred, most)


def _write_sums(g: GraphWriter, c: _Bytes, hint: str, *, rounded: bool) -> str | None:
    """The sums, of floats where all of them are whole or may be `rounded` to f32, else of integers of 32 bits; None where neither
    can be."""
    exact = c.sums() < EXACT
    p = _patches_of(g, c) if rounded or exact else None
    if p is not None:
        return _float(g, write_image(g, _write_product(g, c, p, hint), p, c.columns, hint))
    if _slices_free_batch(g, c.node, c.x, c.weight.shape):
        return None
    number = g.cast(c.x, g.kind(c.x), TensorProto.FLOAT, hint)
    if c.x_zero:
        number = g.add("Sub", [number, g.cast(c.x_zero, g.kind(c.x), TensorProto.FLOAT, hint)], hint)
    g.types[number] = (TensorProto.FLOAT, g.shape(c.x))
    if exact:
        return _write_part(g, c, number, 0, c.weight.shape[1], hint)
    parts = _parts(c) if attr_of(c.node, "group", 1) == 1 and g.opset >= SLICE_OPSET else None
    total = ""
    for first, last in parts or ():
        ends = [g.ints([n], hint) for n in (first, last, 1)]
        part = g.add("Slice", [number, *ends], hint)
        shape = list(g.shape(c.x) or [])
        g.types[part] = (TensorProto.FLOAT, [shape[0], last - first, *shape[2:]] if shape else None)
        made = _write_part(g, c, part, first, last, hint)
        whole = g.add("Cast", [made], hint, to=TensorProto.INT32)
        total = g.add("Add", [total, whole], hint) if total else whole
        g.types[total] = (TensorProto.INT32, None)
    return total or None


def _slices_free_batch(g: GraphWriter, node: onnx.NodeProto, x: str, weight: tuple[int, ...]) -> bool:
    """Whether IREE would read slices of bytes that become floats in the same dispatch, where only the run knows the batch. It does
    not compile that: their memory on the stack has no bound. Each tap of a depthwise window is such a slice, and so are the places
    that groups read of an image, where these are every other one."""
    shape, strides = g.shape(x), attr_of(node, "strides", [1])
    known = shape is not None and isinstance(shape[0], int)
    strided = max(strides) > 1 and all(k == 1 for k in weight[2:])
    return not known and attr_of(node, "group", 1) > 1 and (weight[1] == 1 or strided)


def _write_part(g: GraphWriter, c: _Bytes, x: str, first: int, last: int, hint: str) -> str:
    """The sums of some channels as floats."""
    numbers = c.weight[:, first:last].astype(np.float32)
    weight = g.const(numbers, hint)
    g.types[weight] = (TensorProto.FLOAT, list(numbers.shape))
    made = g.fresh(hint)
    node = helper.make_node("Conv", [x, weight], [made], g.fresh(f"{hint}/Conv"))
    node.attribute.extend(c.node.attribute)
    write_conv(g, node)
    return _float(g, made)


def _parts(c: _Bytes) -> list[tuple[int, int]] | None:
    """Channels that follow each other, whose sums are whole; None where those of a single one may not be."""
    found, first = [], 0
    channels = c.weight.shape[1]
    for last in range(1, channels + 1):
        if c.sums(last - 1, last) >= EXACT:
            return None
        if c.sums(first, last) >= EXACT:
            found.append((first, last - 1))
            first = last - 1
    return [*found, (first, channels)]


def _patches_of(g: GraphWriter, c: _Bytes) -> Patches | None:
    """Where windows lie side by side and a kernel takes the product of their bytes."""
    p, zero, dtype = patches_of(g, c.node, c.x, c.weight.shape), weight_zero(g, c.w, c.w_zero), BYTES[g.kind(c.x)]
    if p is None or zero is None or g.target is None or p.K < _LEAST_K:
        return None
    spec = LinearSpec((p.batch, p.rows), p.K, c.columns, dtype, zero=bool(c.x_zero) or dtype == "i8")
    return None if kept_why(spec, g.target) else p


def _write_product(g: GraphWriter, c: _Bytes, p: Patches, hint: str) -> str:
    """The product of patches, as floats (batch, rows, columns)."""
    data: Any = g.array(c.w)
    matrix = g.const(np.ascontiguousarray(data.reshape(c.columns, -1).T), hint)
    return product_of_bytes(g, write_rows(g, c.x, p, hint), matrix, c.x_zero, c.w_zero, hint)


def _float(g: GraphWriter, value: str) -> str:
    g.types[value] = (TensorProto.FLOAT, None)
    return value
