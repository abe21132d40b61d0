"""Constants as IREE's importer takes them: elements as bytes, which converters to float16 keep as numbers of a wider type, and
tensors where a Constant has a list of numbers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import all_nodes

_IMPORTED = frozenset(
    getattr(TensorProto, kind) for kind in "FLOAT DOUBLE BOOL INT8 UINT8 INT16 INT32 INT64 UINT32 UINT64 STRING".split()
)
"""Types of which the importer takes the numbers, too."""


_LISTS = frozenset(["value_float", "value_floats", "value_int", "value_ints"])


def write_raw(model: onnx.ModelProto) -> None:
    """Writes the elements of such tensors as bytes, in place."""
    for tensor in _tensors(model):
        kept = helper.tensor_dtype_to_field(tensor.data_type) if tensor.data_type else ""
        if tensor.data_type in _IMPORTED or not kept or not getattr(tensor, kept):
            continue
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))


def write_tensors(model: onnx.ModelProto) -> None:
    """Writes a tensor in the place of each Constant's number or list of numbers, in place: IREE refuses lists of floats, and rules
    read tensors alone."""
    for node in (*all_nodes(model.graph), *(n for f in model.functions for n in f.node)):
        if op_of(node) != "Constant" or len(node.attribute) != 1 or (said := node.attribute[0]).name not in _LISTS:
            continue
        kind = np.float32 if "float" in said.name else np.int64
        tensor = numpy_helper.from_array(np.array(helper.get_attribute_value(said), kind))
        node.attribute[0].CopyFrom(helper.make_attribute("value", tensor))


def _tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    yield from model.graph.initializer
    for node in (*all_nodes(model.graph), *(n for f in model.functions for n in f.node)):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == onnx.AttributeProto.GRAPH:
                yield from attribute.g.initializer
