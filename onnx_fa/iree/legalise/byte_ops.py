"""onnxruntime's operators on bytes with scales and zero points, in smaller ones that round as its kernels do.

IREE's compiler refuses a QLinearMatMul whose first factor has three dims and whose second, a weight, has two. Where no kernel
multiplies bytes, they are widened to floats, whose sums below 2^24 are exact. QLinearMatMul rounds before it adds the zero point,
QLinearAdd and QLinearMul behind.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.casts import add_cast
from onnx_fa.iree.legalise.integer_products import BYTES, RANGES, integer_product, is_taken
from onnx_fa.iree.legalise.quantized_products import centred, product_of_bytes
from onnx_fa.iree.legalise.writer import GraphWriter

_ROUND_OPSET = 11


def qlinear_matmul(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """QLinearMatMul: whole sums, times a's scale and b's over y's, rounded to the nearest even one and saturated."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.input
    shape = g.shape(b_scale)
    if not _is_known(g, node) or shape is None or not all(map(g.is_one_number, (a_scale, a_zero))):
        return False
    if not g.is_one_number(b_scale) and (len(shape) != 1 or g.shape(b_zero) != shape):
        return False  # scales of batches
    hint = node.name or node.op_type
    if is_taken(g, integer_product(g, a, b, a_zero, b_zero)):
        sums = product_of_bytes(g, a, b, a_zero, b_zero, hint)
    else:
        sums = g.add("MatMul", [centred(g, node, a, a_zero, hint), centred(g, node, b, b_zero, hint)], hint)
    scale = g.add("Div", [g.add("Mul", [a_scale, b_scale], hint), y_scale], hint)
    steps = g.add("Round", [g.add("Mul", [sums, scale], hint)], hint)
    zero = g.cast(y_zero, g.kind(y_zero), TensorProto.FLOAT, hint)
    _saturate(g, node, g.add("Add", [steps, zero], hint), hint)
    return True


def qlinear_sum_or_product(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """QLinearAdd and QLinearMul: of floats, over y's scale, with the zero point, rounded to the nearest even one and saturated."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (*node.input, "")[:8]
    if not _is_known(g, node) or not all(map(g.is_one_number, (a_scale, b_scale, *filter(None, (a_zero, b_zero))))):
        return False
    hint = node.name or node.op_type
    numbers = [
        g.add("Mul", [centred(g, node, x, zero, hint), scale], hint)
        for x, zero, scale in ((a, a_zero, a_scale), (b, b_zero, b_scale))
    ]
    op = "Add" if op_of(node).endswith("Add") else "Mul"
    steps = g.add("Div", [g.add(op, numbers, hint), y_scale], hint)
    steps = g.add("Add", [steps, g.cast(y_zero, g.kind(y_zero), TensorProto.FLOAT, hint)], hint)
    _saturate(g, node, g.add("Round", [steps], hint), hint)
    return True


def _is_known(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Whether both operands and the result are bytes, and the result has one scale and a zero point."""
    y = (*node.input, "")[6:8]
    kinds = [g.kind(node.input[0]), g.kind(node.input[3]), g.kind(y[1]) if y[1] else 0]
    return g.opset >= _ROUND_OPSET and all(kind in BYTES for kind in kinds) and all(map(g.is_one_number, y))


def _saturate(g: GraphWriter, node: onnx.NodeProto, steps: str, hint: str) -> None:
    """Whole numbers as the bytes of the node's result."""
    kind = g.kind(node.input[7])
    ends = [g.const(np.array(end, np.float32), hint) for end in RANGES[kind]]
    add_cast(g, g.add("Clip", [steps, *ends], hint), TensorProto.FLOAT, kind, hint, out=node.output[0])
