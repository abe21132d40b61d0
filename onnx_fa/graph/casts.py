"""What onnxruntime's optimiser takes out or moves: casts to a wider type and back, and what a DequantizeLinear is moved through."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.ops import DEQUANTIZE, op_of
from onnx_fa.graph.view import FLOATS

MOVED_THROUGH = ("Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze", "Expand", "Tile", "Gather")
"""The ops that onnxruntime's optimiser moves a DequantizeLinear through, the one it removes first, and those that repeat or choose
what may have been moved before. Others that move elements, as Flatten (moves.py), it leaves where they are."""


def without_round_trip(value: ir.Value) -> ir.Value:
    """What a value is behind casts to a wider type and back. onnxruntime takes such casts out, and does not see that a Loop reads
    what they make."""
    while True:
        node = _behind_idle(value).producer()
        source = node.inputs[0] if node is not None and op_of(node) == "Cast" else None
        if source is None or source.dtype is None or value.dtype is None:  # a node just made has no type yet
            return value
        if source.dtype != value.dtype:
            node = _behind_idle(source).producer()
            inner = node.inputs[0] if node is not None and op_of(node) == "Cast" else None
            if inner is None or inner.dtype != value.dtype or not _holds(source.dtype, inner.dtype):
                return value
            source = inner
        value = source


def is_dropout_at_rest(node: ir.Node) -> bool:
    """Whether a node is a Dropout that drops nothing: the optimiser removes it before it looks any further."""
    return op_of(node) == "Dropout" and all(i is None for i in node.inputs[2:])


def _behind_idle(value: ir.Value) -> ir.Value:
    """What a value is behind nodes that the optimiser removes before it looks at casts."""
    while (node := value.producer()) is not None and (op_of(node) == "Identity" or is_dropout_at_rest(node)):
        if value is not node.outputs[0] or node.inputs[0] is None:
            break
        value = node.inputs[0]
    return value


_MAX_EXACT_INTEGER = {
    ir.DataType.BFLOAT16: 2**8,
    ir.DataType.FLOAT16: 2**11,
    ir.DataType.FLOAT: 2**24,
    ir.DataType.DOUBLE: 2**53,
}
"""Up to here a float type has every whole number."""


def _holds(wide: ir.DataType | None, narrow: ir.DataType | None) -> bool:
    """Whether a type has every value of another one."""
    if wide is None or narrow is None:
        return False
    if narrow in FLOATS:
        return wide == ir.DataType.DOUBLE or (wide == ir.DataType.FLOAT and narrow != ir.DataType.DOUBLE)
    ranges = []
    for dtype in (wide, narrow):
        if dtype in _MAX_EXACT_INTEGER:
            ranges.append((-_MAX_EXACT_INTEGER[dtype], _MAX_EXACT_INTEGER[dtype]))
            continue
        kind = None if dtype in FLOATS or dtype == ir.DataType.STRING else dtype.numpy()
        if kind is None or kind.kind not in "iub":
            return False
        ranges.append((0, 1) if kind.kind == "b" else (int(np.iinfo(kind).min), int(np.iinfo(kind).max)))
    return ranges[0][0] <= ranges[1][0] and ranges[1][1] <= ranges[0][1]


def dequantized_by(value: ir.Value) -> list[ir.Node]:
    """The nodes from a DequantizeLinear to the value, where `written_out` may follow them once no function hides one."""
    nodes: list[ir.Node] = []
    while (node := value.producer()) is not None and node.inputs and (source := node.inputs[0]) is not None:
        nodes.append(node)
        if op_of(node) in DEQUANTIZE:
            return nodes
        if not is_looked_through(node):
            break
        value = source
    return []


def is_looked_through(node: ir.Node) -> bool:
    """Whether the optimiser may move a DequantizeLinear through the node, or takes it out first."""
    return op_of(node) in (*MOVED_THROUGH, "Cast") or is_dropout_at_rest(node)
