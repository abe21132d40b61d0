"""A model of bf16 as one of f32, which onnxruntime runs: the same numbers, without the roundings of its arithmetic.

f32 has every number of bf16, so weights, constants and inputs stay what they are. Results of arithmetic are no longer rounded, but
for those that decide what the model means (bf16_roundings.py), which are rounded to bf16 and back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import InlinePass

from onnx_fa.errors import UnsupportedError, one_line
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.ops import CONTRIB, STANDARD, op_of
from onnx_fa.verifier.bf16_roundings import all_roundings, deciding_roundings

NARROW, WIDE = ir.DataType.BFLOAT16, ir.DataType.FLOAT
TYPE_ATTRIBUTES = frozenset(
    ["to", "dtype", "output_dtype", "output_datatype", "precision", "softmax_precision", "stash_type"]
)
"""Attributes of ONNX's operators that hold a type's number."""


def holds_bf16(model: ir.Model) -> bool:
    """Whether a value, a tensor or a type in the model, or in one of its functions, is bf16."""
    return any(_is_narrow(v.type) for v in _values(model)) or any(
        _names_bf16(node, attr) for node in _nodes(model) for attr in node.attributes.values()
    )


def widened(model: ir.Model, *, rounded: bool = False) -> ir.Model:
    """A copy in f32, with functions inlined, whose inputs and outputs of bf16 are f32 too. `rounded`: one in which the result of
    every operator in bf16 is rounded to bf16 and back, as a runtime that computes each in f32 gives it.

    Raises UnsupportedError for a model that reads bits of bf16 as another type, and where a function cannot be inlined.
    """
    copy = model.clone()
    try:
        InlinePass()(copy)
    except Exception as e:  # onnx_ir raises classes of many kinds
        raise UnsupportedError(f"its functions cannot be inlined: {one_line(e)}") from e
    copy.functions.clear()  # those that nobody calls
    kept = _kept(copy, rounded)
    for node in _nodes(copy):
        read_or_made = (*node.inputs, *node.outputs)
        if op_of(node) == "BitCast" and any(_is_narrow(v.type) for v in read_or_made if v is not None):
            raise UnsupportedError(
                f"node {node.name or node.op_type!r} takes bits of bfloat16 for those of another type"
            )
        for name, attr in list(node.attributes.items()):
            if _names_bf16(node, attr):
                node.attributes[name] = _wide_attribute(attr)
    for value in _values(copy):
        value.type = _wide_type(value.type)
        if value.const_value is not None and value.const_value.dtype == NARROW:
            value.const_value = _wide_tensor(value.const_value)
    for value in kept:
        _round(value)
    return copy


def _kept(model: ir.Model, rounded: bool) -> list[ir.Value]:
    """What is rounded, by the types that are inferred. The values keep those that they had: onnx_ir makes tensors of sequences."""
    given = [(v, v.type, v.shape) for v in _values(model)]
    infer_shapes(model)
    kept = all_roundings(model) if rounded else deciding_roundings(model)
    for value, kind, shape in given:
        value.type, value.shape = kind, shape
    return kept


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from (*graph.inputs, *graph.outputs, *graph.initializers.values())
    for node in _nodes(model):
        yield from node.outputs


def _nodes(model: ir.Model) -> Iterable[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _is_narrow(kind: ir.TypeProtocol | None) -> bool:
    while isinstance(kind, ir.SequenceType | ir.OptionalType):
        kind = kind.elem_type
    return kind is not None and kind.dtype == NARROW


def _wide_type(kind: ir.TypeProtocol | None) -> ir.TypeProtocol | None:
    if isinstance(kind, ir.SequenceType | ir.OptionalType):
        inner = _wide_type(kind.elem_type)
        assert inner is not None
        return type(kind)(inner, denotation=kind.denotation)
    if kind is None or kind.dtype != NARROW:
        return kind
    return type(kind)(WIDE, denotation=kind.denotation)  # type: ignore[call-arg]


def _wide_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Read when the model is written, so that weights on disk are not all in memory at once."""
    return ir.LazyTensor(
        lambda: ir.tensor(tensor.numpy().astype(np.float32)),
        dtype=WIDE,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name,
    )


def _names_bf16(node: ir.Node, attr: ir.Attr) -> bool:
    """Whether an attribute is a type or a tensor of bf16. Numbers are types where an operator that onnxruntime knows says so."""
    if attr.is_ref():
        return False
    if attr.type == ir.AttributeType.INT:
        known = node.domain in STANDARD or node.domain == CONTRIB
        return known and attr.name in TYPE_ATTRIBUTES and attr.as_int() == NARROW
    if attr.type == ir.AttributeType.TENSOR:
        return attr.as_tensor().dtype == NARROW
    return attr.type == ir.AttributeType.TYPE_PROTO and _is_narrow(attr.value.type)


def _wide_attribute(attr: ir.Attr) -> ir.Attr:
    if attr.type == ir.AttributeType.INT:
        return ir.AttrInt64(attr.name, int(WIDE))
    if attr.type == ir.AttributeType.TENSOR:
        return ir.AttrTensor(attr.name, _wide_tensor(attr.as_tensor()))
    wide = _wide_type(attr.value.type)
    assert wide is not None
    return ir.AttrTypeProto(attr.name, ir.TypeAndShape(wide, attr.value.shape))


def _round(value: ir.Value) -> None:
    """Rounds a value of f32 to bf16 and back; what comes of it has the value's name. (What is cast to bf16 from f64 is rounded to
    f32 first, which matters where it lies midway between two numbers of bf16 to 24 bits.)"""
    node = value.producer()
    if node is None or node.graph is None or not (value.uses() or value.is_graph_output()):
        return
    down = ir.node("Cast", [value], {"to": int(NARROW)})
    up = ir.node("Cast", [down.outputs[0]], {"to": int(WIDE)})
    result = up.outputs[0]
    ir.convenience.replace_all_uses_with(value, result, replace_graph_outputs=True)
    down.replace_input_with(0, value)
    name = str(value.name)
    value.name, down.outputs[0].name, result.name = f"{name}/unrounded", f"{name}/rounded", name
    result.type, result.shape = ir.TensorType(WIDE), value.shape
    node.graph.insert_after(node, [down, up])
