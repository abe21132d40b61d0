"""Casts that IREE refuses or gets wrong (docs/developer/iree-bugs.md), in steps that it does not."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from onnx_fa.graph.moves import MOVES
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.words import WORDS, cast_to_word
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter, attr_of

_INTEGERS = {
    TensorProto.BOOL,
    *(TensorProto.INT4, TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.UINT4, TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
}


def cast(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A Cast in steps, where it has to be."""
    x, to, hint = node.input[0], attr_of(node, "to", 0), node.name or "Cast"
    kind = g.kind(x)
    if to == TensorProto.BFLOAT16 and _are_whole(g, x):
        x = _kept_apart(g, x, hint)
    elif not kind or kind == to or not (_by(kind, to) or to in WORDS):
        return False
    add_cast(g, x, kind, to, hint, out=node.output[0])
    return True


def cast_like(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A CastLike as a Cast, where the other's type is known."""
    x, other = node.input
    kind = g.kind(other)
    if not (kind and g.kind(x)) or attr_of(node, "saturate", 1) != 1:
        return False
    add_cast(g, x, g.kind(x), kind, node.name or "CastLike", out=node.output[0])
    return True


def add_cast(g: GraphWriter, x: str, kind: int, to: int, hint: str, *, out: str | None = None) -> str:
    """x of type `kind` as type `to`, in steps where one is wrong."""
    if to in WORDS and kind != to:
        return cast_to_word(g, x, kind, to, hint, out=out)
    between = _by(kind, to)
    if between:
        x = g.add("Cast", [x], hint, to=between)
    if to == TensorProto.BFLOAT16 and between:
        x = _kept_apart(g, x, hint)
    return g.add("Cast", [x], hint, out=out, to=to)


def _are_whole(g: GraphWriter, x: str) -> bool:
    """Whether x are floats that a Cast made of integers, and that were but moved since."""
    node = g.maker(x)
    while node is not None and op_of(node) in MOVES:
        node = g.maker(node.input[0])
    return node is not None and op_of(node) == "Cast" and g.kind(x) in FLOATS and g.kind(node.input[0]) in _INTEGERS


def _kept_apart(g: GraphWriter, x: str, hint: str) -> str:
    """Whole numbers as they are, from an op without which the compiler would take the Casts before and behind for one."""
    return g.add("Floor", [x], hint)


def _by(kind: int, to: int) -> int:
    """The type by way of which numbers of one type become those of another; 0 where nothing is in the way."""
    # Without AVX-512, IREE makes 127 of all above it.
    if to == TensorProto.UINT8 and kind in (*FLOATS, TensorProto.DOUBLE):
        return TensorProto.INT32
    # IREE rounds what an integer becomes by a function of the C library, which it does not link, on processors without AVX512_BF16;
    # and for f16 by one that makes zeros of small doubles. By way of f32 onnxruntime does both.
    if to == TensorProto.BFLOAT16 and kind in _INTEGERS:
        return TensorProto.FLOAT
    if to == TensorProto.FLOAT16 and kind == TensorProto.DOUBLE:
        return TensorProto.FLOAT
    return 0
