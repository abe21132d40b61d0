"""Unsigned integers where IREE takes them for signed ones, silently (docs/developer/iree-bugs.md)."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.casts import add_cast
from onnx_fa.iree.legalise.writer import GraphWriter

_WIDER: dict[int, int] = {
    TensorProto.UINT8: TensorProto.INT32,
    TensorProto.UINT16: TensorProto.INT32,
    TensorProto.UINT32: TensorProto.INT64,
}
_UNSIGNED = (*_WIDER, TensorProto.UINT64)


def divide_signed(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Div and Mod: the quotient or remainder of wider, signed integers, cast back. Raises ModelError for uint64, which nothing is
    wider than."""
    kind, hint = g.kind(node.input[0]), node.name or node.op_type
    wide = widened(g, node)
    if wide is None:
        return False
    found = g.add(op_of(node), [g.cast(x, kind, wide, hint) for x in node.input], hint)
    add_cast(g, found, wide, kind, hint, out=node.output[0])
    return True


def widened(g: GraphWriter, node: onnx.NodeProto) -> int | None:
    """The signed type that holds the unsigned integers which a node reads; None where they are none. Raises ModelError for uint64,
    which none holds."""
    kind = g.kind(node.input[0])
    if kind == TensorProto.UINT64:
        raise ModelError(
            f"node {node.name!r}: IREE computes {node.op_type} of uint64 as of int64, which is another number"
        )
    return _WIDER.get(kind)


def clip(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Clip as Max and Min, which IREE compares as they are."""
    if g.kind(node.input[0]) not in _UNSIGNED:
        return False
    x, least, most = (*node.input, "", "")[:3]
    hint = node.name or "Clip"
    if least:
        x = g.add("Max", [x, least], hint)
    if most:
        x = g.add("Min", [x, most], hint)
    g.add("Identity", [x], hint, out=node.output[0])
    return True


def absolute(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Abs of what is not negative."""
    if g.kind(node.input[0]) not in _UNSIGNED:
        return False
    g.add("Identity", [node.input[0]], node.name or "Abs", out=node.output[0])
    return True


def sign(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Sign of what is not negative: no more than one."""
    kind, hint = g.kind(node.input[0]), node.name or "Sign"
    if kind not in _UNSIGNED:
        return False
    g.add("Min", [node.input[0], g.scalar(1, kind, hint)], hint, out=node.output[0])
    return True
