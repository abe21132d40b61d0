"""DequantizeLinear of 4-bit integers and of uint16, or with one scale for every block of neighbours, which IREE refuses
(docs/developer/iree-bugs.md); and 4-bit constants that are too small for IREE."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.iree.legalise.casts import add_cast
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

Spread = Callable[[str], str]

_BYTES: dict[int, type[np.int8] | type[np.uint8]] = {TensorProto.INT4: np.int8, TensorProto.UINT4: np.uint8}
_EXACT = (TensorProto.INT8, TensorProto.UINT8)
"""Integers that bf16 holds, as it does their differences."""
_SMALL = 1024
"""Elements. IREE writes constants of up to 256 bytes into a dispatch, where it cannot lower those of 4 bits."""


def dequantize(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """(x - zero point) * scale as Cast, Sub and Mul: only the product rounds, as in the op. Without blocks, x has 4 bits, is
    uint16, or becomes bf16, which IREE does by a function that is not linked."""
    x, scale = node.input[:2]
    zero = node.input[2] if len(node.input) > 2 else ""
    block, shape, kind = attr_of(node, "block_size", 0), g.shape(x), g.kind(scale)
    to_bf16 = kind == TensorProto.BFLOAT16 and g.kind(x) in _EXACT
    to_f32 = kind == TensorProto.FLOAT and g.kind(x) == TensorProto.UINT16
    if (
        not (block or g.kind(x) in _BYTES or to_bf16 or to_f32)
        or shape is None
        or not kind
        or attr_of(node, "output_dtype", 0)
    ):
        return False
    hint = node.name or "DequantizeLinear"
    along = block_spread(g, node, shape, block, hint) if block else axis_spread(g, node, shape, hint)
    if along is None:
        return False
    number = add_cast(g, _bytes_if_small(g, x, hint), g.kind(x), kind, hint)
    if zero:
        subtrahend = along(_bytes_if_small(g, zero, hint))
        number = g.add("Sub", [number, add_cast(g, subtrahend, g.kind(x), kind, f"{hint}/zero")], hint)
    g.add("Mul", [number, along(scale)], hint, out=node.output[0])
    return True


def cast_nibbles(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A Cast of a small constant of 4 bits, from bytes."""
    wide = _bytes_if_small(g, node.input[0], node.name or "Cast")
    if wide == node.input[0]:
        return False
    add_cast(g, wide, g.kind(node.input[0]), attr_of(node, "to", 0), node.name or "Cast", out=node.output[0])
    return True


def _bytes_if_small(g: GraphWriter, x: str, hint: str) -> str:
    """x, or a constant of 8 bits instead of a small one of 4."""
    wide, shape = _BYTES.get(g.kind(x)), g.shape(x)
    if wide is None or shape is None or any(not isinstance(d, int) for d in shape) or _count(shape) > _SMALL:
        return x
    array = g.array(x)
    return x if array is None else g.const(array.astype(wide), f"{hint}/bytes")


def _count(shape: list[int | str | None]) -> int:
    return int(np.prod([d for d in shape if isinstance(d, int)], dtype=np.int64))


def block_spread(
    g: GraphWriter, node: onnx.NodeProto, shape: list[int | str | None], block: int, hint: str
) -> Spread | None:
    """How a number for each block is given to each element; None where sizes are not known or a block is cut off."""
    axis = attr_of(node, "axis", 1) % len(shape)
    width = shape[axis]
    if not isinstance(width, int) or width % block or g.shape(node.input[1]) is None:
        return None
    if not 1 < block < width:
        return lambda x: x
    indices = g.const(np.repeat(np.arange(width // block), block), hint)
    return lambda x: g.add("Gather", [x, indices], f"{hint}/each", axis=axis)


def axis_spread(g: GraphWriter, node: onnx.NodeProto, shape: list[int | str | None], hint: str) -> Spread | None:
    """How a number for each index of an axis, or one for all, is given to each element; None where the scale's rank is unknown."""
    scale = g.shape(node.input[1])
    if scale is None or len(scale) > 1:
        return None
    behind = len(shape) - 1 - attr_of(node, "axis", 1) % len(shape) if scale and shape else 0
    if not behind:
        return lambda x: x
    target = g.const(np.array([-1] + [1] * behind, np.int64), hint)
    return lambda x: g.add("Reshape", [x, target], f"{hint}/each")
