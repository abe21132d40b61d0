"""A model whose products of bytes are exact in onnxruntime on any processor: weights of i8 behind an x of u8 are u8, 128 more, as
are their zero points.

onnxruntime cuts off sums of u8 by i8 on some processors (machine.saturates_bytes), which ONNX does not say. Its own option against
that (`session.x64quantprecision`) is its optimiser's alone, and takes from some models kernels that they have without it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.ops import CONTRIB, constant_tensor, op_of
from onnx_fa.machine import saturates_bytes

_MORE = 128


class _Places(NamedTuple):
    """Where an operator has its inputs: x's zero point (-1: it rounds x to u8 itself), the weight and its zero point."""

    x_zero: int
    weight: int
    zero: int


_OPS = {
    "MatMulInteger": _Places(2, 1, 3),
    "ConvInteger": _Places(2, 1, 3),
    "QLinearMatMul": _Places(2, 3, 5),
    "QLinearConv": _Places(2, 3, 5),
    f"{CONTRIB}.QGemm": _Places(2, 3, 5),
    f"{CONTRIB}.MatMulIntegerToFloat": _Places(4, 1, 5),
    f"{CONTRIB}.DynamicQuantizeMatMul": _Places(-1, 1, 3),
    f"{CONTRIB}.QAttention": _Places(6, 1, 7),
}
PRODUCTS_OF_BYTES = tuple(op.rpartition(".")[2] for op in _OPS)
"""The op_types of operators that multiply bytes without onnxruntime's optimiser."""


def made_exact(model: ir.Model) -> ir.Model:
    """The model, or a copy with unsigned weights where onnxruntime may cut off sums of its products of bytes on this processor."""
    return with_unsigned_weights(model) if saturates_bytes() and has_products_of_bytes(model) else model


def has_products_of_bytes(model: ir.Model) -> bool:
    """Whether an operator multiplies bytes without onnxruntime's optimiser."""
    return any(op_of(node) in _OPS for node in model.graph.all_nodes())


def with_unsigned_weights(model: ir.Model) -> ir.Model:
    """A copy that computes the same numbers with no product of u8 by i8, of those operators that onnxruntime has kernels for."""
    copy = model.clone()
    infer_shapes(copy)
    for node in list(copy.graph.all_nodes()):
        places = _OPS.get(op_of(node))
        if places is not None and _is_unsigned(node, places):
            _turn(node, places)
    return copy


def _is_unsigned(node: ir.Node, places: _Places) -> bool:
    """Whether x is u8, and the weight i8."""
    weight = node.inputs[places.weight] if places.weight < len(node.inputs) else None
    if weight is None or weight.dtype != ir.DataType.INT8:
        return False
    if places.x_zero < 0:
        return True
    x = node.inputs[0]
    zero = node.inputs[places.x_zero] if places.x_zero < len(node.inputs) else None
    return ir.DataType.UINT8 in [v.dtype for v in (x, zero) if v is not None]


def _turn(node: ir.Node, places: _Places) -> None:
    weight = node.inputs[places.weight]
    assert weight is not None
    zero = node.inputs[places.zero] if places.zero < len(node.inputs) else None
    if len(node.inputs) <= places.zero:
        node.resize_inputs(places.zero + 1)
    node.replace_input_with(places.weight, _moved(node, weight))
    node.replace_input_with(
        places.zero, _constant(node, np.array(_MORE, np.uint8)) if zero is None else _moved(node, zero)
    )


def _moved(node: ir.Node, value: ir.Value) -> ir.Value:
    """The value as u8, 128 more."""
    tensor = constant_tensor(value)
    if tensor is not None:
        return _constant(node, (tensor.numpy().astype(np.int32) + _MORE).astype(np.uint8))
    wide = _append(node, "Cast", [value], to=ir.DataType.INT32)
    more = _append(node, "Add", [wide, _constant(node, np.array(_MORE, np.int32))])
    return _append(node, "Cast", [more], to=ir.DataType.UINT8)


def _constant(node: ir.Node, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> ir.Value:
    return _append(node, "Constant", [], value=ir.tensor(array))


def _append(before: ir.Node, op_type: str, inputs: list[ir.Value], **attributes: ir.TensorProtocol | int) -> ir.Value:
    """The value of a new node in front of another."""
    made = ir.node(op_type, inputs, attributes)
    assert before.graph is not None
    before.graph.insert_before(before, made)
    return made.outputs[0]
