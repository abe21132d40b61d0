"""A MatMul, or a Gemm as layers have it, by a constant that is kept as integers, as a product with a weight of a few bits.

The graph makes floats of such a weight by DequantizeLinear, or by a Cast, a Sub and a Mul, in blocks along K, for each column or
for all of it: (q - zero point) * scale. The compiler would do so in every call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.bits_product import Weight, bits_product, takes
from onnx_fa.iree.legalise.integer_products import turned
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of, is_layers_gemm

_BITS: dict[int, int] = {TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.INT8: 8, TensorProto.UINT8: 8}
_SIGNED: tuple[int, ...] = (TensorProto.INT4, TensorProto.INT8)
_LEAST, _MOST = 16, 256
"""Numbers of a block where scales do not change along K: as many as divide it, and a power of two."""
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Integers:
    """A constant (K, N), or (N, K) where it is turned, and what makes floats of it: names of constants, `zero` "" for none. They
    have numbers for each block of so many steps of K, or, where `block` is 0, for each column or one for all."""

    value: str
    scale: str
    zero: str
    block: int


def integer_weight_product(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """The product as a call of a kernel for CPUs, which reads the integers. False where the weight is none that this reads, or no
    kernel takes it: (q - zero point) * scale has the same numbers there, rounded once."""
    if g.cpu is None or g.cpu.kernels != "auto" or (op_of(node) == "Gemm" and not is_layers_gemm(node)):
        return False
    x, (value, is_turned) = node.input[0], turned(g, node.input[1])
    is_turned ^= bool(attr_of(node, "transB", 0))
    found = _dequantized(g, value, is_turned=is_turned) or _multiplied(g, value, is_turned=is_turned)
    rows = g.shape(x)
    if found is None or not rows or len(rows) < 2 or g.kind(x) != TensorProto.FLOAT:
        return False
    shape, bits, signed = g.shape(found.value), _BITS[g.kind(found.value)], g.kind(found.value) in _SIGNED
    K, N = (shape or [None, None])[:: -1 if is_turned else 1]
    if not isinstance(K, int) or not isinstance(N, int) or rows[-1] != K:
        return False
    block = found.block or min(K & -K, _MOST)
    if K % block or (not found.block and block < _LEAST) or not takes(g, x, N, K, block, bits):
        return False
    hint, blocks = node.name or node.op_type, K // block
    zero_shape = (N, -(-blocks * bits // 8))

    def whole(name: str) -> Array:
        """Numbers of each row of the weight and block."""
        numbers = g.array(name)
        assert numbers is not None
        if found.block:
            return numbers if is_turned else numbers.T
        return np.broadcast_to(numbers.reshape(-1, 1), (N, blocks))

    def integers() -> Array:
        numbers = g.array(found.value)
        assert numbers is not None
        return _packed_rows(numbers if is_turned else numbers.T, bits, signed=signed).reshape(packed_shape)

    def bytes_of(make: Callable[[], Array], dims: tuple[int, ...]) -> str:
        return g.computed(make, TensorProto.UINT8, dims, hint)

    packed_shape = (N, blocks, block * bits // 8)
    packed, zeros = bytes_of(integers, packed_shape), ""
    if found.zero:
        zeros = bytes_of(lambda: _packed_rows(whole(found.zero), bits, signed=signed), zero_shape)
    elif not signed:  # without one the kernel's zero point is the middle of the range
        zeros = bytes_of(lambda: np.zeros(zero_shape, np.uint8), zero_shape)
    scale = g.computed(
        lambda: np.ascontiguousarray(whole(found.scale), np.float32), TensorProto.FLOAT, (N, blocks), hint
    )
    y = bits_product(g, x, rows, Weight(packed, scale, zeros, N, blocks, block, bits), hint)
    assert y, f"{hint}: a kernel was to take it"
    biased = [y, *node.input[2:3]] if op_of(node) == "Gemm" else [y]
    g.add("Add" if len(biased) > 1 and biased[1] else "Identity", [v for v in biased if v], hint, out=node.output[0])
    return True


def _dequantized(g: GraphWriter, value: str, *, is_turned: bool) -> _Integers | None:
    """What DequantizeLinear makes a weight of."""
    node = g.maker(value)
    if node is None or op_of(node) != "DequantizeLinear" or attr_of(node, "output_dtype", 0):
        return None
    w, scale, zero = (*node.input, "")[:3]
    block, along_k = attr_of(node, "block_size", 0), attr_of(node, "axis", 1) % 2 == int(is_turned)
    shape = g.shape(w)
    if shape is None or len(shape) != 2 or not _are_read(g, w, scale, zero):
        return None
    if block:
        return _Integers(w, scale, zero, block) if along_k and block > 1 else None
    one = g.is_one_number(scale)
    return _Integers(w, scale, zero, 0) if one or not along_k else None


def _multiplied(g: GraphWriter, value: str, *, is_turned: bool) -> _Integers | None:
    """What a Mul by a scale, behind a Cast and perhaps a Sub of a zero point that is an integer of the type, makes a weight of."""
    node = g.maker(value)
    if node is None or op_of(node) != "Mul":
        return None
    for made, scale in (tuple(node.input), tuple(node.input)[::-1]):
        zero, cast = "", g.maker(made)
        if cast is not None and op_of(cast) == "Sub":
            before, cast = g.maker(cast.input[1]), g.maker(cast.input[0])
            if before is None or op_of(before) != "Cast" or cast is None:
                continue
            zero = before.input[0]
        if cast is None or op_of(cast) != "Cast" or attr_of(cast, "to", 0) != TensorProto.FLOAT:
            continue
        w = cast.input[0]
        shape = g.shape(w)
        if shape is None or len(shape) != 2 or not _are_read(g, w, scale, zero):
            continue
        width = shape[0] if is_turned else shape[1]
        of_columns = ([width, 1],) if is_turned else ([width], [1, width])
        if all(g.shape(v) in ([], [1], [1, 1], *of_columns) for v in (scale, zero) if v):
            return _Integers(w, scale, zero, 0)
    return None


def _are_read(g: GraphWriter, w: str, scale: str, zero: str) -> bool:
    """Whether a kernel has these types, and the elements are there."""
    if g.kind(w) not in _BITS or g.kind(scale) != TensorProto.FLOAT or (zero and g.kind(zero) != g.kind(w)):
        return False
    return all(g.has_data(v) for v in (w, scale, zero) if v)


def _packed_rows(numbers: Array, bits: int, *, signed: bool) -> npt.NDArray[np.uint8]:
    """Rows of integers as bytes, the first number of a byte in its lowest bits; signed ones from 0 on."""
    whole = (numbers.astype(np.int16) + ((1 << (bits - 1)) if signed else 0)).astype(np.uint8)
    if bits == 8:
        return np.ascontiguousarray(whole)
    whole = np.pad(whole, ((0, 0), (0, whole.shape[1] % 2)))
    return (whole[:, ::2] | whole[:, 1::2] << 4).astype(np.uint8)
