"""Elements that a file keeps as numbers of a wider type, as converters to float16 leave them: IREE's importer takes bytes."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import TensorProto, helper, numpy_helper

from onnx_fa.iree.legalise.writer import all_nodes

_IMPORTED = frozenset(
    getattr(TensorProto, kind) for kind in "FLOAT DOUBLE BOOL INT8 UINT8 INT16 INT32 INT64 UINT32 UINT64 STRING".split()
)
"""Types of which the importer takes the numbers, too."""


def write_raw(model: onnx.ModelProto) -> None:
    """Writes the elements of such tensors as bytes, in place."""
    for tensor in _tensors(model):
        kept = helper.tensor_dtype_to_field(tensor.data_type) if tensor.data_type else ""
        if tensor.data_type in _IMPORTED or not kept or not getattr(tensor, kept):
            continue
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))


def _tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    yield from model.graph.initializer
    for node in (*all_nodes(model.graph), *(n for f in model.functions for n in f.node)):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == onnx.AttributeProto.GRAPH:
                yield from attribute.g.initializer
