"""Products of integers with scales, of onnxruntime's own domain, in smaller operators (ContribOperators.md of onnxruntime).

Where no kernel multiplies bytes, both sides are floats that hold integers of 9 bits: sums below 2^24 are exact, longer ones as good
as any in f32. No byte is divided or compared on the way, which IREE would do as if it had a sign.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.casts import add_cast
from onnx_fa.iree.legalise.integer_products import cast_of, integer_product, is_taken
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of, is_layers_gemm

_LARGEST = 255.0
_BYTES: dict[int, type[np.generic]] = {TensorProto.INT8: np.int8, TensorProto.UINT8: np.uint8}


def dynamic_quantize_matmul(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """DynamicQuantizeMatMul: A rounded to uint8 by DynamicQuantizeLinear, times (B - zero point) * scale, plus a bias."""
    hint = node.name or node.op_type
    a, b, scale, zero, bias = (*node.input, "", "")[:5]
    rounded, a_zero = g.fresh(f"{hint}/rounded"), g.fresh(f"{hint}/zero")
    g.types |= {rounded: (TensorProto.UINT8, g.shape(a)), a_zero: (TensorProto.UINT8, [])}
    if is_taken(g, integer_product(g, rounded, b, a_zero, zero)):
        a_scale = _write_rounding(g, a, hint, rounded, a_zero)
        product = product_of_bytes(g, rounded, b, a_zero, zero, hint)
    else:
        number, start, a_scale = _rounded(g, a, hint)
        product = g.add("MatMul", [g.add("Sub", [number, start], hint), centred(g, node, b, zero, hint)], hint)
    _scaled(g, product, a_scale, scale, bias, hint, node.output[0])
    return True


def dynamic_quantize_linear(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """DynamicQuantizeLinear in smaller operators: IREE's own divides zeros by a scale of zero."""
    y, scale, zero = node.output
    _write_rounding(g, node.input[0], node.name or node.op_type, y, zero, scale)
    return True


def dequantized_product(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """MatMul of two DequantizeLinear, of which the right is a constant's, or a Gemm as layers have it, as a product of their bytes
    and one scale, where a kernel takes that: (x - zero) sx times (w - zero) sw, with one rounding in the place of many."""
    if not is_layers_gemm(node):
        return False
    transposed, bias = bool(attr_of(node, "transB", 0)), (*node.input, "")[2]
    makers = [g.maker(value) for value in node.input[:2]]
    if any(m is None or op_of(m) != "DequantizeLinear" or attr_of(m, "block_size", 0) for m in makers):
        return False
    (x, x_scale, x_zero), (w, w_scale, w_zero) = ((*m.input, "")[:3] for m in makers if m is not None)
    shape, along = g.shape(w), int(not transposed)
    if g.kind(x_scale) != TensorProto.FLOAT or g.kind(w_scale) != TensorProto.FLOAT or shape is None or len(shape) != 2:
        return False
    by_column = attr_of(makers[1], "axis", 1) % 2 == along and g.shape(w_scale) == [shape[along]]  # type: ignore[arg-type]
    if not g.is_one_number(x_scale) or not (by_column or g.is_one_number(w_scale)):
        return False
    if not is_taken(g, integer_product(g, x, w, x_zero, w_zero, transposed=transposed)):
        return False
    hint = node.name or node.op_type
    weight = g.add("Transpose", [w], hint, perm=[1, 0]) if transposed else w
    _scaled(g, product_of_bytes(g, x, weight, x_zero, w_zero, hint), x_scale, w_scale, bias, hint, node.output[0])
    return True


def matmul_integer_to_float(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """MatMulIntegerToFloat: (A - zero point) (B - zero point) times both scales, plus a bias. Raises ModelError for an A of more
    scales than one."""
    hint = node.name or node.op_type
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (*node.input, *[""] * 3)[:7]
    dims = g.shape(a_scale)
    if dims is None or any(d != 1 for d in dims):
        raise ModelError(f"node {node.name!r}: MatMulIntegerToFloat with a scale for each row of A is not supported")
    if is_taken(g, integer_product(g, a, b, a_zero, b_zero)):
        product = product_of_bytes(g, a, b, a_zero, b_zero, hint)
    else:
        product = _product_of_floats(g, node, (a, b), (a_zero, b_zero), hint)
    _scaled(g, product, a_scale, b_scale, bias, hint, node.output[0])
    return True


def matmul_integer(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """MatMulInteger that no kernel takes becomes a product of floats where its sums become floats. Another without any zero point
    gets one of 0: otherwise IREE multiplies bytes as if they had a sign, silently, and refuses those of which one side has a sign
    (docs/developer/iree-bugs.md)."""
    x, w, x_zero, w_zero = (*node.input, "", "")[:4]
    if is_taken(g, integer_product(g, x, w, x_zero, w_zero)):
        return cast_of(g, node) is None and _with_zero(g, node)
    if cast_of(g, node) is not None and all(g.kind(v) in _BYTES for v in (x, w)) and _are_single(g, x_zero, w_zero):
        hint = node.name or node.op_type
        product = _product_of_floats(g, node, (x, w), (x_zero, w_zero), hint)
        g.add("Cast", [product], hint, out=node.output[0], to=TensorProto.INT32)
        return True
    return _with_zero(g, node)


def _are_single(g: GraphWriter, x_zero: str, w_zero: str) -> bool:
    """Whether zero points are one number each, or of the weight one for each column."""
    shape = g.shape(w_zero) if w_zero else []
    return (not x_zero or g.is_one_number(x_zero)) and shape is not None and len(shape) < 2


def _with_zero(g: GraphWriter, node: onnx.NodeProto) -> bool:
    kinds = [g.kind(x) for x in node.input[:2]]
    if any(node.input[2:]) or kinds == [TensorProto.INT8] * 2 or kinds[0] not in _BYTES:
        return False
    hint = node.name or node.op_type
    zero = g.const(np.array(0, _BYTES[kinds[0]]), hint)
    g.add("MatMulInteger", [*node.input[:2], zero], hint, out=node.output[0])
    return True


def product_of_bytes(g: GraphWriter, x: str, w: str, x_zero: str, w_zero: str, hint: str) -> str:
    """Their MatMulInteger as floats."""
    inputs = [x, w, x_zero, w_zero]
    while not inputs[-1]:  # what is left out at the end has no name
        inputs.pop()
    return g.add("Cast", [g.add("MatMulInteger", inputs, hint)], hint, to=TensorProto.FLOAT)


def _product_of_floats(
    g: GraphWriter, node: onnx.NodeProto, sides: tuple[str, str], zeros: tuple[str, str], hint: str
) -> str:
    """The MatMul of integers less their zero points, as floats."""
    return g.add("MatMul", [centred(g, node, x, zero, hint) for x, zero in zip(sides, zeros, strict=True)], hint)


def _scaled(g: GraphWriter, product: str, a_scale: str, b_scale: str, bias: str, hint: str, out: str) -> None:
    scale = g.add("Mul", [a_scale, b_scale], hint)
    if bias:
        g.add("Add", [g.add("Mul", [product, scale], hint), bias], hint, out=out)
    else:
        g.add("Mul", [product, scale], hint, out=out)


def centred(g: GraphWriter, node: onnx.NodeProto, x: str, zero: str, hint: str) -> str:
    """Integers less their zero point, as floats. Raises ModelError for integers whose type nobody knows."""
    kind = g.kind(x)
    if kind not in _BYTES:
        raise ModelError(f"node {node.name!r}: {node.op_type} of {x!r}, which is not known to be int8 or uint8")
    number = g.cast(x, kind, TensorProto.FLOAT, hint)
    return g.add("Sub", [number, g.cast(zero, kind, TensorProto.FLOAT, hint)], hint) if zero else number


def _rounded(g: GraphWriter, x: str, hint: str, scale: str | None = None) -> tuple[str, str, str]:
    """DynamicQuantizeLinear of ONNX: the rounded numbers, their zero point, and their scale, all floats. `scale`: the last one's
    name."""

    def number(value: float) -> str:
        return g.const(np.array(value, np.float32), hint)

    zero, largest = number(0.0), number(_LARGEST)
    top = g.add("Max", [g.add("ReduceMax", [x], hint, keepdims=0), zero], hint)
    low = g.add("Min", [g.add("ReduceMin", [x], hint, keepdims=0), zero], hint)
    span = g.add("Sub", [top, low], hint)
    # onnxruntime has a scale of 1 for zeros only.
    flat = g.add("Equal", [span, zero], hint)
    scale = g.add("Where", [flat, number(1.0), g.add("Div", [span, largest], hint)], hint, out=scale)
    start = g.add("Round", [g.add("Neg", [g.add("Div", [low, scale], hint)], hint)], hint)
    step = g.add("Add", [g.add("Round", [g.add("Div", [x, scale], hint)], hint), start], hint)
    return g.add("Clip", [step, zero, largest], hint), start, scale


def _write_rounding(g: GraphWriter, x: str, hint: str, y: str, zero: str, scale: str | None = None) -> str:
    """DynamicQuantizeLinear as it is, of which y and the zero point are bytes. Returns the scale."""
    number, start, scale = _rounded(g, x, hint, scale)
    for whole, out in ((number, y), (start, zero)):
        add_cast(g, whole, TensorProto.FLOAT, TensorProto.UINT8, hint, out=out)
    return scale
