"""GatherBlockQuantized of onnxruntime's own domain: rows of a table of 2, 4 or 8 bits, in smaller operators (ContribOperators.md of
onnxruntime). Only the rows that are asked for become floats."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.matmul_nbits import bits_at
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of


def gather_block_quantized(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Raises ModelError for a table that is gathered along another axis than its first, whose blocks do not lie along its last, or
    that is not of bytes."""
    data, indices, scales, zeros = (*node.input, "")[:4]
    hint, name = node.name or node.op_type, f"node {node.name!r}: GatherBlockQuantized"
    bits, size = attr_of(node, "bits", 4), attr_of(node, "block_size", 128)
    shape, kind = g.shape(data), g.kind(scales)
    last = -1 if shape is None else len(shape) - 1
    if g.kind(data) != TensorProto.UINT8 or shape is None or not isinstance(shape[-1], int) or bits not in (2, 4, 8):
        raise ModelError(f"{name} of a table that is not of 2, 4 or 8 bits in bytes is not supported")
    if attr_of(node, "gather_axis", 0) % len(shape) != 0 or attr_of(node, "quantize_axis", 1) % len(shape) != last:
        raise ModelError(f"{name} is supported along the first axis, with blocks along the last one")
    if not kind:
        return False
    width = shape[-1] * (8 // bits)

    def rows(table: str) -> str:
        return g.add("Gather", [table, indices], hint, axis=0)

    def repeated(x: str) -> str:
        """Each number as often as its block has elements."""
        return g.add("Gather", [x, g.const(np.arange(width) // size, hint)], hint, axis=-1)

    number = _unpack(g, rows(data), bits, width, hint)
    zero = g.const(np.array(1 << (bits - 1), np.float32), hint)
    if zeros:
        zero = repeated(_unpack(g, rows(zeros), bits, -(-width // size), hint))
    scale = repeated(g.cast(rows(scales), kind, TensorProto.FLOAT, hint))
    wide = g.add("Mul", [g.add("Sub", [number, zero], hint), scale], hint)
    g.cast(wide, TensorProto.FLOAT, kind, hint, out=node.output[0])
    return True


def _unpack(g: GraphWriter, packed: str, bits: int, width: int, hint: str) -> str:
    """The first `width` numbers along the last axis of bytes, as floats. The lowest bits of a byte are the first number."""
    parts = [bits_at(g, packed, place, bits, hint) for place in range(8 // bits)]
    if len(parts) == 1:
        return parts[0]
    end = g.const(np.array([-1], np.int64), hint)
    columns = g.add("Concat", [g.add("Unsqueeze", [p, end], hint) for p in parts], hint, axis=-1)
    lead = g.add(
        "Slice", [g.add("Shape", [packed], hint), *(g.const(np.array([i], np.int64), hint) for i in (0, -1))], hint
    )
    flat = g.add("Reshape", [columns, g.add("Concat", [lead, end], hint, axis=0)], hint)
    return g.add("Slice", [flat, *(g.const(np.array([i], np.int64), hint) for i in (0, width, -1))], hint)
