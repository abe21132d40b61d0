"""Operators that IREE refuses for some of their operands, in others that it does not."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.non_zero import add_non_zero
from onnx_fa.iree.legalise.writer import NARROW, GraphWriter, attr_of

_MOST = 128
_SIGNS = (
    {TensorProto.INT8, TensorProto.UINT8},
    {TensorProto.INT32, TensorProto.UINT32},
    {TensorProto.INT64, TensorProto.UINT64},
)
"""Types of the same bits, among which IREE's Cast changes none; it takes no uint16."""
_SIGNED = (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64)


def compress(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A Gather of the rows whose condition is true, found by NonZero where only a run knows them."""
    x, condition = node.input
    hint, axis, shape = node.name or "Compress", attr_of(node, "axis", None), g.shape(x)
    if shape is None:
        return False
    if axis is None:
        x, axis = g.reshape(x, [-1], hint), 0
    given = g.array(condition)
    if given is not None and not given.any():
        return False
    if given is not None:
        places = g.ints(np.flatnonzero(given).tolist(), hint)
    else:
        places = g.reshape(add_non_zero(g, condition, [None], hint), [-1], hint)
    axis %= len(shape) if attr_of(node, "axis", None) is not None else 1
    said = g.shape(node.output[0])
    if given is None and said is not None and isinstance(said[axis], int):  # the model says how many there are
        found = g.add("Gather", [x, places], hint, axis=axis)
        g.reshape(
            found, [d if i == axis and isinstance(d, int) else 0 for i, d in enumerate(said)], hint, out=node.output[0]
        )
        return True
    g.add("Gather", [x, places], hint, out=node.output[0], axis=axis)
    return True


def negative(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Of integers by a subtraction: IREE negates them as floats of 32 bits, silently, which know 24 bits of a number."""
    kind = g.kind(node.input[0])
    if kind not in _SIGNED:
        return False
    g.add("Sub", [g.scalar(0, kind, "zero"), node.input[0]], node.name or "Neg", out=node.output[0])
    return True


def cumulative_product(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Row by row, in order. Raises ModelError for an axis that only a run knows, or of more than 128 elements."""
    x, axis_input = node.input
    hint, given, shape, kind = node.name or "CumProd", g.array(axis_input), g.shape(x), g.kind(x)
    axis = None if given is None or shape is None else int(given.reshape(-1)[0]) % len(shape)
    count = None if axis is None or shape is None else shape[axis]
    if axis is None or not isinstance(count, int) or not 0 < count <= _MOST:
        raise ModelError(
            f"node {hint!r}: CumProd over an axis of more than {_MOST} elements, or of which only a run knows how many"
        )
    wide = TensorProto.FLOAT if kind in NARROW else kind
    x = g.cast(x, kind, wide, hint)
    order = list(range(count))[:: -1 if attr_of(node, "reverse", 0) else 1]
    rows = [g.add("Slice", [x, *(g.ints([n], hint) for n in (i, i + 1, axis))], hint) for i in order]
    one = g.scalar(1, wide, hint)
    total = rows[0]
    made = [total]
    for row in rows[1:]:
        total = g.add("Mul", [total, row], hint)
        made.append(total)
    if attr_of(node, "exclusive", 0):
        made = [g.add("Expand", [one, g.add("Shape", [rows[0]], hint)], hint), *made[:-1]]
    made = made[:: -1 if attr_of(node, "reverse", 0) else 1]
    g.cast(g.add("Concat", made, hint, axis=axis), wide, kind, hint, out=node.output[0])
    return True


def bit_cast(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A Cast between integers of one width, or of booleans to bytes. Raises ModelError for floats and uint16, whose
    bits no operator of IREE reads."""
    kind, to, hint = g.kind(node.input[0]), attr_of(node, "to", 0), node.name or "BitCast"
    bytes_of_bool = kind == TensorProto.BOOL and to in (TensorProto.UINT8, TensorProto.INT8)
    if kind != to and not bytes_of_bool and not any({kind, to} <= same for same in _SIGNS):
        raise ModelError(
            f"node {hint!r}: BitCast of a float, to one or of uint16, whose bits IREE's operators do not give"
        )
    g.cast(node.input[0], kind, to, hint, out=node.output[0])
    return True


def narrow_range(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Range of f16 and bf16 in f32, each number rounded once."""
    kind, hint = g.kind(node.input[0]), node.name or "Range"
    if kind not in NARROW:
        return False
    made = g.add("Range", [g.cast(x, kind, TensorProto.FLOAT, hint) for x in node.input], hint)
    g.cast(made, TensorProto.FLOAT, kind, hint, out=node.output[0])
    return True


def reverse_sequence(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """That of a matrix along its first axis as one along its second: IREE makes code of the first that it cannot translate."""
    shape, hint = g.shape(node.input[0]), node.name or "ReverseSequence"
    if shape is None or len(shape) != 2 or attr_of(node, "time_axis", 0) != 0 or attr_of(node, "batch_axis", 1) != 1:
        return False
    x = g.add("Transpose", [node.input[0]], hint, perm=[1, 0])
    x = g.add(op_of(node), [x, node.input[1]], hint, time_axis=1, batch_axis=0)
    g.add("Transpose", [x], hint, out=node.output[0], perm=[1, 0])
    return True


def squeeze(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Raises ModelError for one without axes of which nothing says how many dims are left: those that are 1 in a run."""
    shape = g.shape(node.input[0])
    free = shape is not None and any(not isinstance(d, int) for d in shape)
    if free and not any(node.input[1:]) and g.shape(node.output[0]) is None:
        raise ModelError(
            f"node {node.name!r}: Squeeze without axes of a value of free sizes, of which only a run knows what is left (--dim)"
        )
    return False


def n_grams(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Raises ModelError for a TfIdfVectorizer over a free size, of which IREE counts some n-grams alone."""
    shape = g.shape(node.input[0])
    if shape is not None and all(isinstance(d, int) for d in shape):
        return False
    raise ModelError(
        f"node {node.name!r}: TfIdfVectorizer over a size that is not static, which IREE computes wrongly (--dim)"
    )
