"""Bounds on what is computed while reading a model: a few bytes of a file can ask for 2^60 numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Array = npt.NDArray[np.generic]

MAX_FOLDED_ELEMENTS = 1 << 26
"""Elements of a value that is computed before run time."""
MAX_FOLLOWED_ELEMENTS = 1 << 20
"""Elements of a vector that ONNX's inference may write out, which takes it a second and 200 MB."""
_MAX_SHAPE_ELEMENTS = 4096
"""Elements of an operand that may say a shape: ends, axes, repeats, pads."""


def result_elements(node: onnx.NodeProto, arrays: Sequence[Array | None], opset: int) -> int | None:
    """How many elements the largest result of `node` has for these operands (None: left out), before anything is computed. None
    where ONNX's definition does not tell."""
    given = {name: a for name, a in zip(node.input, arrays, strict=True) if name and a is not None}
    try:
        types = {
            name: helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for name, a in given.items()
        }
        said = {name: numpy_helper.from_array(a, name) for name, a in given.items() if a.size <= _MAX_SHAPE_ELEMENTS}
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
        opsets = [helper.make_opsetid("", opset)]
        found = onnx.shape_inference.infer_node_outputs(schema, node, types, said, opset_imports=opsets)
    except Exception:  # ONNX shares no base class for a type, an attribute or an operand that the op does not take
        return None
    sizes = [_elements(found[name]) for name in node.output if name in found]
    known = [size for size in sizes if size is not None]
    return max(known) if known and len(known) == sum(map(bool, node.output)) else None


def _elements(kind: onnx.TypeProto) -> int | None:
    tensor = kind.tensor_type
    if not tensor.HasField("shape") or not all(d.HasField("dim_value") for d in tensor.shape.dim):
        return None
    return math.prod(int(d.dim_value) for d in tensor.shape.dim)


def may_follow(shapes: Iterable[Sequence[object]]) -> bool:
    """Whether ONNX's inference may follow numbers through a graph whose values have these shapes (its `data_prop`): it then writes
    out every element of the vectors that it meets, so none may be longer than a shape ever is. A dim that is no int is unknown."""
    vectors = (shape[0] for shape in shapes if len(shape) == 1)
    return all(length <= MAX_FOLLOWED_ELEMENTS for length in vectors if isinstance(length, int))


def infer_followed(model: onnx.ModelProto) -> onnx.ModelProto:
    """ONNX's shape inference, which follows numbers through the graph where it may."""
    plain = onnx.shape_inference.infer_shapes(model)
    values = (*plain.graph.input, *plain.graph.value_info, *plain.graph.output)
    shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in values]
    shapes += [list(tensor.dims) for tensor in plain.graph.initializer]
    if not may_follow(shapes):
        return plain
    return onnx.shape_inference.infer_shapes(model, data_prop=True)
