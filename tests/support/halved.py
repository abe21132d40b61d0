"""Models whose numbers are f16 in the place of f32."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph with weights and inputs of f16; types of values in between are inferred anew."""
    made = _with_weights(model, np.float16)
    for value in (*made.graph.input, *made.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    del made.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(made, strict_mode=True)


def rounded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph, in f32, whose weights are those of f16."""
    return _with_weights(model, np.float32)


def _with_weights(model: onnx.ModelProto, kind: type[np.floating]) -> onnx.ModelProto:
    """The same graph whose weights are rounded to f16, as numbers of that kind."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for tensor in made.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(np.float16).astype(kind)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return made
