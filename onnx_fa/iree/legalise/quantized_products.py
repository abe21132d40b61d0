"""Products of integers with scales, of onnxruntime's own domain, in smaller operators (ContribOperators.md of onnxruntime).

Both sides are multiplied as floats that hold integers of 9 bits: sums below 2^24 are exact, longer ones as good as any in f32. No
byte is divided or compared on the way, which IREE would do as if it had a sign.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.writer import GraphWriter

_LARGEST = 255.0
_BYTES: dict[int, type[np.generic]] = {TensorProto.INT8: np.int8, TensorProto.UINT8: np.uint8}


def dynamic_quantize_matmul(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """DynamicQuantizeMatMul: A rounded to uint8 by DynamicQuantizeLinear, times (B - zero point) * scale, plus a bias."""
    hint = node.name or node.op_type
    a, b, scale, zero, bias = (*node.input, "", "")[:5]
    rounded, a_scale = _round_to_bytes(g, a, hint)
    product = g.add("MatMul", [rounded, _centred(g, node, b, zero, hint)], hint)
    _scaled(g, product, a_scale, scale, bias, hint, node.output[0])
    return True


def matmul_integer_to_float(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """MatMulIntegerToFloat: (A - zero point) (B - zero point) times both scales, plus a bias. Raises ModelError for an A of more
    scales than one."""
    hint = node.name or node.op_type
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (*node.input, *[""] * 3)[:7]
    dims = g.shape(a_scale)
    if dims is None or any(d != 1 for d in dims):
        raise ModelError(f"node {node.name!r}: MatMulIntegerToFloat with a scale for each row of A is not supported")
    left, right = _centred(g, node, a, a_zero, hint), _centred(g, node, b, b_zero, hint)
    _scaled(g, g.add("MatMul", [left, right], hint), a_scale, b_scale, bias, hint, node.output[0])
    return True


def matmul_integer(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """MatMulInteger without any zero point gets one of 0. Otherwise IREE multiplies bytes as if they had a sign, silently, and
    refuses those of which one side has a sign (docs/developer/iree-bugs.md)."""
    kinds = [g.kind(x) for x in node.input[:2]]
    if any(node.input[2:]) or kinds == [TensorProto.INT8] * 2 or kinds[0] not in _BYTES:
        return False
    hint = node.name or node.op_type
    zero = g.const(np.array(0, _BYTES[kinds[0]]), hint)
    g.add("MatMulInteger", [*node.input[:2], zero], hint, out=node.output[0])
    return True


def _scaled(g: GraphWriter, product: str, a_scale: str, b_scale: str, bias: str, hint: str, out: str) -> None:
    scale = g.add("Mul", [a_scale, b_scale], hint)
    if bias:
        g.add("Add", [g.add("Mul", [product, scale], hint), bias], hint, out=out)
    else:
        g.add("Mul", [product, scale], hint, out=out)


def _centred(g: GraphWriter, node: onnx.NodeProto, x: str, zero: str, hint: str) -> str:
    """Integers less their zero point, as floats. Raises ModelError for integers whose type nobody knows."""
    kind = g.kind(x)
    if kind not in _BYTES:
        raise ModelError(f"node {node.name!r}: {node.op_type} of {x!r}, which is not known to be int8 or uint8")
    number = g.cast(x, kind, TensorProto.FLOAT, hint)
    return g.add("Sub", [number, g.cast(zero, kind, TensorProto.FLOAT, hint)], hint) if zero else number


def _round_to_bytes(g: GraphWriter, x: str, hint: str) -> tuple[str, str]:
    """DynamicQuantizeLinear of ONNX: the rounded numbers less their zero point, and their scale, both floats."""

    def number(value: float) -> str:
        return g.const(np.array(value, np.float32), hint)

    zero, largest = number(0.0), number(_LARGEST)
    top = g.add("Max", [g.add("ReduceMax", [x], hint, keepdims=0), zero], hint)
    low = g.add("Min", [g.add("ReduceMin", [x], hint, keepdims=0), zero], hint)
    span = g.add("Sub", [top, low], hint)
    # onnxruntime has a scale of 1 for zeros only.
    flat = g.add("Equal", [span, zero], hint)
    scale = g.add("Where", [flat, number(1.0), g.add("Div", [span, largest], hint)], hint)
    start = g.add("Round", [g.add("Neg", [g.add("Div", [low, scale], hint)], hint)], hint)
    step = g.add("Add", [g.add("Round", [g.add("Div", [x, scale], hint)], hint), start], hint)
    return g.add("Sub", [g.add("Clip", [step, zero, largest], hint), start], hint), scale
