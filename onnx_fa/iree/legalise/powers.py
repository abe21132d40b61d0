"""Pow of integers, which IREE refuses: lengths that a model squares."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from onnx_fa.iree.legalise.writer import GraphWriter

_INTEGERS = (TensorProto.INT32, TensorProto.INT64)
_MOST_TIMES = 8


def power(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A small power of integers as products."""
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
