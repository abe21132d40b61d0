"""Products of bytes with a weight of bytes, MatMulInteger of ONNX, as linear sites: sums are whole numbers, which a Cast makes
f32.

IREE widens both sides to 32 bits and sums in 64, many times slower than floats; where no kernel takes a product whose sums become
floats anyway, floats are multiplied instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of, named_dims
from onnx_fa.kernels.row_sites import kept_why
from onnx_fa.spec.linear import ByteType, LinearSpec
from onnx_fa.spec.terms import GRIDS

BYTES: dict[int, ByteType] = {TensorProto.UINT8: "u8", TensorProto.INT8: "i8"}
RANGES = {kind: GRIDS[name] for kind, name in BYTES.items()}
"""The least and the largest byte of a type."""
_RANGE = GRIDS["i8"]


@dataclass(frozen=True)
class IntegerProduct:
    """The site that a product is, and what of its weight is to be taken away so that no zero point is left."""

    spec: LinearSpec
    weight_zero: int


def integer_product(
    g: GraphWriter, x: str, w: str, x_zero: str, w_zero: str, *, transposed: bool = False
) -> IntegerProduct | None:
    """x (*lead, K), less one zero point, times a constant w (K, N), or (N, K) if `transposed`, less a constant one; what x's last
    dim is may not be known yet. None where shapes or types are others, or a weight less its zero point is no i8."""
    shape, weight, dtype = g.shape(x), g.shape(w), BYTES.get(g.kind(x))
    if shape is None or len(shape) < 2 or 0 in shape or dtype is None or weight is None or len(weight) != 2:
        return None
    K, N = weight[::-1] if transposed else weight
    if not g.is_constant(w) or not isinstance(K, int) or not isinstance(N, int) or min(K, N) < 1:
        return None
    if isinstance(shape[-1], int) and shape[-1] != K:
        return None
    if x_zero and not g.is_one_number(x_zero):
        return None
    zero = weight_zero(g, w, w_zero)
    if zero is None:
        return None
    spec = LinearSpec(named_dims(shape[:-1]), K, N, dtype, transposed, zero=bool(x_zero) or dtype == "i8")
    return IntegerProduct(spec, zero)


def turned(g: GraphWriter, w: str) -> tuple[str, bool]:
    """The constant that a weight is, and whether it is that turned round."""
    node = g.maker(w)
    if node is None or op_of(node) != "Transpose" or list(attr_of(node, "perm", [1, 0])) != [1, 0]:
        return w, False
    return node.input[0], True


def is_taken(g: GraphWriter, product: IntegerProduct | None) -> bool:
    """Whether a kernel takes a product with whatever may follow it."""
    return product is not None and g.target is not None and not kept_why(product.spec, g.target)


def cast_of(g: GraphWriter, node: onnx.NodeProto) -> int | None:
    """The place of the Cast to f32 that alone reads what a node makes."""
    value = node.output[0]
    readers = g.readers(value)
    if g.is_output(value) or len(readers) != 1:
        return None
    cast = g.graph.node[readers[0]]
    return readers[0] if op_of(cast) == "Cast" and attr_of(cast, "to", 0) == TensorProto.FLOAT else None


def centred_weight(g: GraphWriter, w: str, zero: int, hint: str) -> str:
    """A constant weight less its zero point, as i8."""
    if not zero and g.kind(w) == TensorProto.INT8:
        return w
    shape = _known(g.shape(w))
    number = g.typed(g.add("Cast", [w], hint, to=TensorProto.FLOAT), TensorProto.FLOAT, shape)
    less = g.add("Sub", [number, g.const(np.array(zero, np.float32), hint)], hint)
    less = g.typed(less, TensorProto.FLOAT, shape)
    return g.typed(g.add("Cast", [less], hint, to=TensorProto.INT8), TensorProto.INT8, shape)


def column_sums(g: GraphWriter, w: str, hint: str, *, transposed: bool) -> str:
    """The sums (N,) of the columns of a weight (K, N) of i8, or (N, K) if `transposed`, as i32."""
    shape, kind, axis = _known(g.shape(w)), TensorProto.INT32, int(transposed)
    left = (shape[1 - axis],)
    wide = g.typed(g.add("Cast", [w], hint, to=kind), kind, shape)
    if g.opset < 13:
        return g.typed(g.add("ReduceSum", [wide], hint, axes=[axis], keepdims=0), kind, left)
    return g.typed(g.add("ReduceSum", [wide, g.ints([axis], hint)], hint, keepdims=0), kind, left)


def zero_number(g: GraphWriter, zero: str, hint: str) -> str:
    """A zero point, or 0 where there is none, as an i32 of no dims."""
    if not zero:
        return g.const(np.array(0, np.int32), hint)
    return g.typed(g.add("Cast", [no_dims(g, zero, hint)], hint, to=TensorProto.INT32), TensorProto.INT32, ())


def no_dims(g: GraphWriter, number: str, hint: str) -> str:
    """One number without its dims."""
    if not g.shape(number):
        return number
    return g.typed(g.reshape(number, [], hint), g.kind(number), ())


def _known(shape: list[int | str | None] | None) -> tuple[int, ...]:
    """A weight's shape."""
    return tuple(d for d in shape or () if isinstance(d, int))


def weight_zero(g: GraphWriter, w: str, zero: str) -> int | None:
    """The one zero point of a weight, which may be taken away from it; None where that is no i8, or nobody knows."""
    kind, numbers = g.kind(w), g.array(zero) if zero else np.zeros((), np.int8)
    if kind not in BYTES or numbers is None or np.unique(numbers).size != 1:
        return None
    found = int(numbers.flat[0])
    least, most = RANGES[kind]
    if least - found < _RANGE[0] or most - found > _RANGE[1]:
        data = g.array(w)  # it may not have all the numbers that its type has
        if data is None or int(data.min()) - found < _RANGE[0] or int(data.max()) - found > _RANGE[1]:
            return None
    return found
