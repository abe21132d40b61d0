"""Div and Mod of unsigned integers, which IREE divides as signed ones (docs/developer/iree-bugs.md), in signed integers that hold
them."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import GraphWriter

_WIDER: dict[int, int] = {
    TensorProto.UINT8: TensorProto.INT32,
    TensorProto.UINT16: TensorProto.INT32,
    TensorProto.UINT32: TensorProto.INT64,
}


def divide_signed(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """The quotient or remainder of wider, signed integers, cast back. Raises ModelError for uint64, which nothing is wider than."""
    kind, hint = g.kind(node.input[0]), node.name or node.op_type
    if kind == TensorProto.UINT64:
        raise ModelError(
            f"node {node.name!r}: IREE computes {node.op_type} of uint64 as of int64, which is another number"
        )
    wide = _WIDER.get(kind)
    if wide is None:
        return False
    found = g.add(op_of(node), [g.cast(x, kind, wide, hint) for x in node.input], hint)
    g.cast(found, wide, kind, hint, out=node.output[0])
    return True
