"""MatMulNBits of onnxruntime's own domain: a product with a weight of 2, 4 or 8 bits, in smaller operators (ContribOperators.md of
onnxruntime).

The weight lies there as (N, blocks, bytes), where the lowest bits of a byte are the first number. It stays so: with P numbers in
a byte the product becomes P products, of every P-th column of A with the numbers at one place of the bytes, which become floats
where they are multiplied. Nothing holds the weight as floats.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.bits_product import Weight, bits_product
from onnx_fa.iree.legalise.linear_sites import linear_bits
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

_ROUNDED = 4
"""The accuracy_level that allows integers of 8 bits on either side."""


def matmul_nbits(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A dequantised(B)^T + bias, summed in f32. Raises ModelError for columns in another order (g_idx), for weights that a GPU has
    packed, and for other bits."""
    a, packed, scales, zeros, order, bias = (*node.input, *[""] * 6)[:6]
    kind, hint = g.kind(a) or g.kind(scales), node.name or node.op_type
    bits, size = attr_of(node, "bits", 4), attr_of(node, "block_size", 0)
    width, rows = attr_of(node, "K", 0), attr_of(node, "N", 0)
    if not kind:
        return False
    _check(g, node, bits, order)
    blocks = math.ceil(width / size)
    per_byte = 8 // bits
    kept = Weight(packed, scales, zeros, rows, blocks, size, bits, attr_of(node, "accuracy_level", 0) == _ROUNDED)
    if linear_bits(g, node, a, kept, bias):
        return True
    wide, shape = g.cast(a, kind, TensorProto.FLOAT, hint), g.shape(a)
    if blocks * size != width:
        wide = _pad_columns(g, wide, blocks * size - width, len(shape or ()), hint)
    if whole := bits_product(g, wide, shape, kept, hint):
        return _finish(g, whole, bias, kind, hint, node.output[0])
    scale = _column(g, g.cast(scales, kind, TensorProto.FLOAT, hint), rows, blocks, hint)
    zero = _zero_points(g, zeros, bits, rows, blocks, hint)
    data = g.add("Reshape", [packed, g.const(np.array([rows, blocks, -1], np.int64), hint)], hint)
    total = ""
    for place in range(per_byte):
        number = bits_at(g, data, place, bits, hint)
        weight = g.add("Mul", [g.add("Sub", [number, zero], hint), scale], hint)
        flat = g.add("Reshape", [weight, g.const(np.array([rows, -1], np.int64), hint)], hint)
        columns = every_column(g, wide, place, per_byte, hint)
        product = g.add("MatMul", [columns, g.add("Transpose", [flat], hint, perm=[1, 0])], hint)
        total = g.add("Add", [total, product], hint) if total else product
    return _finish(g, total, bias, kind, hint, node.output[0])


def _finish(g: GraphWriter, total: str, bias: str, kind: int, hint: str, out: str) -> bool:
    """The sum and the bias in the type of the node's result."""
    if bias:
        total = g.add("Add", [total, g.cast(bias, kind, TensorProto.FLOAT, hint)], hint)
    g.cast(total, TensorProto.FLOAT, kind, hint, out=out)
    return True


def _check(g: GraphWriter, node: onnx.NodeProto, bits: int, order: str) -> None:
    name = f"node {node.name!r}: MatMulNBits"
    if bits not in (2, 4, 8):
        raise ModelError(f"{name} of {bits} bits is not supported")
    if attr_of(node, "weight_prepacked", 0):
        raise ModelError(f"{name} has a weight in a layout of a GPU (weight_prepacked); build the model for CPUs")
    if order:
        at, size = g.array(order), attr_of(node, "block_size", 1)
        plain = at is not None and bool((at == np.arange(at.size).reshape(at.shape) // size).all())
        if not plain:
            raise ModelError(f"{name} with columns in an order of its own (g_idx) is not supported")


def bits_at(g: GraphWriter, data: str, place: int, bits: int, hint: str) -> str:
    """The numbers of so many bits at a place of each byte, as floats. They are divided as int32: IREE takes bytes to be signed."""
    if bits == 8:
        return g.cast(data, TensorProto.UINT8, TensorProto.FLOAT, hint)

    def number(value: int) -> str:
        return g.const(np.array(value, np.int32), hint)

    found = g.cast(data, TensorProto.UINT8, TensorProto.INT32, hint)
    if place:
        found = g.add("Div", [found, number(1 << (bits * place))], hint)
    if bits * (place + 1) < 8:
        found = g.add("Mod", [found, number(1 << bits)], hint)
    return g.cast(found, TensorProto.INT32, TensorProto.FLOAT, hint)


def _zero_points(g: GraphWriter, zeros: str, bits: int, rows: int, blocks: int, hint: str) -> str:
    """(N, blocks, 1) floats, or one for all of them."""
    if not zeros:
        return g.const(np.array(1 << (bits - 1), np.float32), hint)
    kind = g.kind(zeros)
    if kind != TensorProto.UINT8:
        return _column(g, g.cast(zeros, kind, TensorProto.FLOAT, hint), rows, blocks, hint)
    data = g.add("Reshape", [zeros, g.const(np.array([rows, -1, 1], np.int64), hint)], hint)
    parts = [bits_at(g, data, place, bits, hint) for place in range(8 // bits)]
    numbers = parts[0] if len(parts) == 1 else g.add("Concat", parts, hint, axis=2)
    flat = g.add("Reshape", [numbers, g.const(np.array([rows, -1], np.int64), hint)], hint)
    if blocks % len(parts):
        flat = g.add("Gather", [flat, g.const(np.arange(blocks), hint)], hint, axis=1)
    return _column(g, flat, rows, blocks, hint)


def _column(g: GraphWriter, x: str, rows: int, blocks: int, hint: str) -> str:
    return g.add("Reshape", [x, g.const(np.array([rows, blocks, 1], np.int64), hint)], hint)


def every_column(g: GraphWriter, a: str, place: int, step: int, hint: str) -> str:
    """Columns `place`, `place + step`, ... of a."""
    if step == 1:
        return a

    def ints(*numbers: int) -> str:
        return g.const(np.array(numbers, np.int64), hint)

    return g.add("Slice", [a, ints(place), ints((1 << 31) - 1), ints(-1), ints(step)], hint)


def _pad_columns(g: GraphWriter, a: str, count: int, rank: int, hint: str) -> str:
    """a with `count` columns of zeros behind. Raises ModelError where nobody knows how many dims it has."""
    if not rank:
        raise ModelError(f"{hint}: MatMulNBits with a last block that is not whole, of an input of unknown rank")
    return g.add("Pad", [a, g.const(np.array([0] * (2 * rank - 1) + [count], np.int64), hint)], hint)
