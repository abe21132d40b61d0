"""ArgMax and ArgMin along an axis of free size (docs/developer/iree-bugs.md). IREE counts the last place of equal numbers wrongly,
silently, and for GPUs refuses both."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

_INTEGERS = (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64)


def arg_reduce(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """For GPUs the least or the largest place of those with the largest number, of integers: among floats may be NaN, whose place
    onnxruntime's order of comparing decides. Else, of the last place, the first one in reverse, counted from the end."""
    shape = g.shape(node.input[0])
    if not shape or isinstance(shape[attr_of(node, "axis", 0) % len(shape)], int):
        return False
    if g.target is not None and g.target.is_gpu and g.kind(node.input[0]) in _INTEGERS:
        _place_of_equal(g, node, len(shape))
        return True
    if not attr_of(node, "select_last_index", 0):
        return False
    _last_place(g, node, list(shape))
    return True


def _place_of_equal(g: GraphWriter, node: onnx.NodeProto, rank: int) -> None:
    hint, x, axis = node.name or op_of(node), node.input[0], attr_of(node, "axis", 0) % rank
    last, zero, one = attr_of(node, "select_last_index", 0), *(g.const(np.array(n, np.int64), hint) for n in (0, 1))
    size = g.size(x, axis, hint)
    best = g.reduce("ReduceMax" if op_of(node) == "ArgMax" else "ReduceMin", x, [axis], hint)
    places = g.add("Range", [zero, size, one], hint)
    if axis < rank - 1:
        places = g.add("Unsqueeze", [places, g.ints(range(1, rank - axis), hint)], hint)
    found = g.add("Where", [g.add("Equal", [x, best], hint), places, zero if last else size], hint)
    kept = attr_of(node, "keepdims", 1)
    g.reduce("ReduceMax" if last else "ReduceMin", found, [axis], hint, keepdims=kept, out=node.output[0])


def _last_place(g: GraphWriter, node: onnx.NodeProto, shape: list[int | str | None]) -> None:
    hint, axis = node.name or op_of(node), attr_of(node, "axis", 0) % len(shape)
    zero, one = (g.const(np.array(n, np.int64), hint) for n in (0, 1))
    size = g.size(node.input[0], axis, hint)
    last = g.add("Sub", [size, one], hint)
    backwards = g.add("Sub", [last, g.add("Range", [zero, size, one], hint)], hint)
    turned = g.typed(g.add("Gather", [node.input[0], backwards], hint, axis=axis), g.kind(node.input[0]), shape)
    first = g.add(op_of(node), [turned], hint, axis=axis, keepdims=attr_of(node, "keepdims", 1))
    g.add("Sub", [last, first], hint, out=node.output[0])
