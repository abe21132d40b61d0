"""QuantizeLinear to uint16, or with a scale for every block of neighbours, both of which IREE refuses."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.iree.legalise.casts import add_cast
from onnx_fa.iree.legalise.dequantize import axis_spread, block_spread
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

_INTEGERS: dict[int, type[np.int8] | type[np.uint8] | type[np.int16] | type[np.uint16]] = {
    TensorProto.INT8: np.int8,
    TensorProto.UINT8: np.uint8,
    TensorProto.INT16: np.int16,
    TensorProto.UINT16: np.uint16,
}


def quantize(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Written out in f32, as onnxruntime computes it. False for what IREE takes, for other types, and where sizes are not known."""
    x, scale, zero = (*node.input, "")[:3]
    to = g.kind(zero) if zero else attr_of(node, "output_dtype", 0) or TensorProto.UINT8
    shape, block = g.shape(x), attr_of(node, "block_size", 0)
    if to not in _INTEGERS or shape is None or not (block or to == TensorProto.UINT16) or not g.kind(scale):
        return False
    hint, limits = node.name or "QuantizeLinear", np.iinfo(_INTEGERS[to])
    along = block_spread(g, node, shape, block, hint) if block else axis_spread(g, node, shape, hint)
    if along is None:
        return False
    wide = TensorProto.FLOAT
    parts = [g.cast(x, g.kind(x), wide, hint), along(g.cast(scale, g.kind(scale), wide, hint))]
    number = g.add("Round", [g.add("Div", parts, hint)], hint)
    if zero:
        number = g.add("Add", [number, along(g.cast(zero, to, wide, hint))], hint)
    number = g.add("Max", [number, g.scalar(limits.min, wide, hint)], hint)
    number = g.add("Min", [number, g.scalar(limits.max, wide, hint)], hint)
    add_cast(g, number, wide, to, hint, out=node.output[0])
    return True
