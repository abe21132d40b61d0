"""ArgMax and ArgMin that give the last place of equal numbers: IREE counts it wrongly along an axis of free size, silently
(docs/developer/iree-bugs.md)."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of


def last_place(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """The first place among the numbers in reverse, counted from the end."""
    shape = g.shape(node.input[0])
    if not attr_of(node, "select_last_index", 0) or not shape:
        return False
    axis = attr_of(node, "axis", 0) % len(shape)
    if isinstance(shape[axis], int):
        return False
    hint = node.name or op_of(node)
    zero, one = (g.const(np.array(n, np.int64), hint) for n in (0, 1))
    sizes = g.typed(g.add("Shape", [node.input[0]], hint), TensorProto.INT64, [len(shape)])
    size = g.add("Gather", [sizes, g.const(np.array(axis, np.int64), hint)], hint, axis=0)
    last = g.add("Sub", [size, one], hint)
    backwards = g.add("Sub", [last, g.add("Range", [zero, size, one], hint)], hint)
    turned = g.typed(g.add("Gather", [node.input[0], backwards], hint, axis=axis), g.kind(node.input[0]), shape)
    first = g.add(op_of(node), [turned], hint, axis=axis, keepdims=attr_of(node, "keepdims", 1))
    g.add("Sub", [last, first], hint, out=node.output[0])
    return True
