"""ReduceMax and ReduceMin of integers on GPUs, in 64 bits (docs/developer/iree-bugs.md): where a tile reaches beyond the axis, the
compiler compares signed ones of 32 and fewer bits with the least and the largest unsigned number."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import GraphWriter

_NARROW = (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.UINT8)


def compare_wide(g: GraphWriter, node: onnx.NodeProto) -> bool:
    kind = g.kind(node.input[0])
    if g.target is None or not g.target.is_gpu or kind not in _NARROW:
        return False
    hint, wide = node.name or op_of(node), g.fresh(node.output[0])
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.input[0], made.output[0] = widened(g, node.input[0], hint), wide
    g.nodes.append(made)
    g.cast(wide, TensorProto.INT64, kind, hint, out=node.output[0])
    return True


def widened(g: GraphWriter, x: str, hint: str) -> str:
    """Integers of fewer bits as int64 on GPUs; others as they are."""
    if g.target is None or not g.target.is_gpu or g.kind(x) not in _NARROW:
        return x
    return g.cast(x, g.kind(x), TensorProto.INT64, hint)
