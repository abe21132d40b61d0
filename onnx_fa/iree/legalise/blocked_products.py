"""A MatMul by a constant that DequantizeLinear makes of blocks of integers, as a product with a weight of a few bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.bits_product import Weight, bits_product, takes
from onnx_fa.iree.legalise.integer_products import turned
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

_BITS: dict[int, int] = {TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.INT8: 8, TensorProto.UINT8: 8}
_SIGNED: tuple[int, ...] = (TensorProto.INT4, TensorProto.INT8)
Bytes = npt.NDArray[np.uint8]


def blocked_product(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """The MatMul as a call of a kernel for CPUs, which reads the integers. False where the weight is none of blocks along K, or no
    kernel takes it: (x - zero point) * scale has the same numbers there, rounded once."""
    if g.cpu is None or g.cpu.kernels != "auto":
        return False
    x, (value, is_turned) = node.input[0], turned(g, node.input[1])
    maker = g.maker(value)
    if maker is None or op_of(maker) != "DequantizeLinear" or attr_of(maker, "output_dtype", 0):
        return False
    w, scale, zero = (*maker.input, "")[:3]
    block, bits = attr_of(maker, "block_size", 0), _BITS.get(g.kind(w), 0)
    shape, rows = g.shape(w), g.shape(x)
    along = attr_of(maker, "axis", 1) % 2 == int(is_turned)
    if not bits or not along or block < 2 or shape is None or len(shape) != 2 or not rows or len(rows) < 2:
        return False
    K, N = shape[::-1] if is_turned else shape
    if not isinstance(K, int) or not isinstance(N, int) or K % block or rows[-1] != K:
        return False
    if g.kind(x) != TensorProto.FLOAT or g.kind(scale) != TensorProto.FLOAT:
        return False
    if not all(g.has_data(v) for v in (w, scale, zero) if v) or not takes(g, x, N, K, block, bits):
        return False
    hint, signed, blocks = node.name or "MatMul", g.kind(w) in _SIGNED, K // block
    zero_shape = (N, -(-blocks * bits // 8))

    def pack(name: str, shape: tuple[int, ...]) -> str:
        """A constant of integers, with a row for each step or block of K unless the weight is turned, as bytes."""

        def made() -> Bytes:
            numbers = g.array(name)
            assert numbers is not None
            return _packed(numbers if is_turned else numbers.T, bits, signed=signed).reshape(shape)

        return g.computed(made, TensorProto.UINT8, shape, hint)

    packed = pack(w, (N, blocks, block * bits // 8))
    zeros = pack(zero, zero_shape) if zero else ""
    if not zero and not signed:  # without one the kernel's zero point is the middle of the range
        zeros = g.computed(lambda: np.zeros(zero_shape, np.uint8), TensorProto.UINT8, zero_shape, hint)
    if not is_turned:
        scale = g.typed(g.add("Transpose", [scale], hint, perm=[1, 0]), TensorProto.FLOAT, [N, blocks])
    y = bits_product(g, x, rows[:-1], Weight(packed, scale, zeros, N, blocks, block, bits), hint)
    assert y, f"{hint}: a kernel was to take it"
    g.add("Identity", [y], hint, out=node.output[0])
    return True


def _packed(numbers: npt.NDArray[Any], bits: int, *, signed: bool) -> Bytes:
    """Rows of integers as bytes, the first number of a byte in its lowest bits; signed ones from 0 on."""
    whole: Bytes = (numbers.astype(np.int16) + ((1 << (bits - 1)) if signed else 0)).astype(np.uint8)
    if bits == 8:
        return np.ascontiguousarray(whole)
    whole = np.pad(whole, ((0, 0), (0, whole.shape[1] % 2)))
    return (whole[:, ::2] | whole[:, 1::2] << 4).astype(np.uint8)
