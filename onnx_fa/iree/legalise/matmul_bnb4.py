"""MatMulBnb4 of onnxruntime's own domain: a product with a weight in the 4-bit floats of bitsandbytes, in smaller operators
(ContribOperators.md of onnxruntime).

As in MatMulNBits the weight stays packed: one product of the even columns of A with the numbers in the upper halves of the bytes,
and one of the odd columns with those in the lower halves.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.matmul_nbits import bits_at, every_column
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

_POSITIVE = (0.0, 0.0052083333, 0.6666666667, 1.0, 0.3333333333, 0.5, 0.1666666667, 0.25)
_FP4 = (*_POSITIVE, *(-x for x in _POSITIVE))
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""The numbers that four bits stand for (Dettmers et al., QLoRA, 2023, appendix E; bitsandbytes)."""


def matmul_bnb4(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A times dequantised(B)^T. Raises ModelError for blocks that run over the end of a row, and for a turned A or B."""
    a, packed, largest = node.input[:3]
    name, hint, kind = f"node {node.name!r}: MatMulBnb4", node.name or node.op_type, g.kind(a) or g.kind(largest)
    width, rows, size = (attr_of(node, key, 0) for key in ("K", "N", "block_size"))
    if not kind:
        return False
    if width % size:
        raise ModelError(f"{name} with blocks of {size} that run over the end of a row of {width} is not supported")
    if not attr_of(node, "transB", 1):
        raise ModelError(f"{name} with transB = 0 is not supported")
    table = g.const(np.array(_NF4 if attr_of(node, "quant_type", 1) else _FP4, np.float32), hint)

    def reshape(x: str, *dims: int) -> str:
        return g.add("Reshape", [x, g.const(np.array(dims, np.int64), hint)], hint)

    data = reshape(packed, rows, width // size, size // 2)
    scale = reshape(g.cast(largest, kind, TensorProto.FLOAT, hint), rows, width // size, 1)
    wide = g.cast(a, kind, TensorProto.FLOAT, hint)
    products = []
    for column, place in ((0, 1), (1, 0)):
        index = g.cast(bits_at(g, data, place, 4, hint), TensorProto.FLOAT, TensorProto.INT64, hint)
        weight = g.add("Mul", [g.add("Gather", [table, index], hint, axis=0), scale], hint)
        turned = g.add("Transpose", [reshape(weight, rows, width // 2)], hint, perm=[1, 0])
        products.append(g.add("MatMul", [every_column(g, wide, column, 2, hint), turned], hint))
    g.cast(g.add("Add", products, hint), TensorProto.FLOAT, kind, hint, out=node.output[0])
    return True
