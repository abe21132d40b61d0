"""ArgMax and ArgMin along an axis of free size (docs/developer/iree-bugs.md). IREE counts the last place of equal numbers wrongly,
silently, for GPUs refuses both, and for CPUs those of numbers that a Cast made wider, and of four axes along any."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.wide_integers import widened
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
_ORDERED = (*_FLOATS, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT8)
_MANY = 4
"""Axes, any of them free, of which the compiler takes tiles that fit no stack: classes of pixels in a free batch."""


def arg_reduce(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """The least or the largest place of those with the largest number, for GPUs, of numbers that a Cast made wider, and of many
    axes. Else, of the last place, the first one in reverse, counted from the end."""
    shape, is_gpu = g.shape(node.input[0]), g.target is not None and g.target.is_gpu
    if not shape:
        return False
    many = not is_gpu and sum(d != 1 for d in shape) >= _MANY and not all(isinstance(d, int) for d in shape)
    if isinstance(shape[attr_of(node, "axis", 0) % len(shape)], int) and not many:
        return False
    refused = many or is_gpu or _is_widened(g, node.input[0])
    if refused and g.kind(node.input[0]) in _ORDERED:
        _place_of_equal(g, node, len(shape))
        return True
    if not attr_of(node, "select_last_index", 0):
        return False
    _last_place(g, node, list(shape))
    return True


def _is_widened(g: GraphWriter, x: str) -> bool:
    """Whether a Cast makes x of numbers that have fewer bits."""
    cast = g.maker(x)
    if cast is None or op_of(cast) != "Cast" or not (kind := g.kind(cast.input[0])):
        return False
    return ir.DataType(kind).bitwidth < ir.DataType(g.kind(x)).bitwidth


def _place_of_equal(g: GraphWriter, node: onnx.NodeProto, rank: int) -> None:
    hint, x, axis = node.name or op_of(node), node.input[0], attr_of(node, "axis", 0) % rank
    last, zero, one = attr_of(node, "select_last_index", 0), *(g.const(np.array(n, np.int64), hint) for n in (0, 1))
    size, kind, is_max = g.size(x, axis, hint), g.kind(x), op_of(node) == "ArgMax"
    if kind in _FLOATS:
        least = g.const(np.array(-np.inf if is_max else np.inf, np.float32), hint)
        numbers = g.add("Where", [g.add("IsNaN", [x], hint), g.cast(least, TensorProto.FLOAT, kind, hint), x], hint)
    else:
        numbers = x = widened(g, x, hint)
    best = g.reduce("ReduceMax" if is_max else "ReduceMin", numbers, [axis], hint)
    places = g.add("Range", [zero, size, one], hint)
    if axis < rank - 1:
        places = g.add("Unsqueeze", [places, g.ints(range(1, rank - axis), hint)], hint)
    found = g.add("Where", [g.add("Equal", [x, best], hint), places, zero if last else size], hint)
    kept, pick = attr_of(node, "keepdims", 1), "ReduceMax" if last else "ReduceMin"
    if kind not in _FLOATS:
        g.reduce(pick, found, [axis], hint, keepdims=kept, out=node.output[0])
        return
    place = g.reduce(pick, found, [axis], hint, keepdims=kept)
    # onnxruntime compares with the best so far, beginning with the first: a NaN there stays the best, and none behind it is better.
    index = g.ints([0], hint) if kept else zero
    first = g.add("IsNaN", [g.add("Gather", [x, index], hint, axis=axis)], hint)
    g.add("Where", [first, zero, place], hint, out=node.output[0])


def _last_place(g: GraphWriter, node: onnx.NodeProto, shape: list[int | str | None]) -> None:
    hint, axis = node.name or op_of(node), attr_of(node, "axis", 0) % len(shape)
    zero, one = (g.const(np.array(n, np.int64), hint) for n in (0, 1))
    size = g.size(node.input[0], axis, hint)
    last = g.add("Sub", [size, one], hint)
    backwards = g.add("Sub", [last, g.add("Range", [zero, size, one], hint)], hint)
    turned = g.typed(g.add("Gather", [node.input[0], backwards], hint, axis=axis), g.kind(node.input[0]), shape)
    first = g.add(op_of(node), [turned], hint, axis=axis, keepdims=attr_of(node, "keepdims", 1))
    g.add("Sub", [last, first], hint, out=node.output[0])
