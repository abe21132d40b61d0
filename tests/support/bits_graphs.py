"""Graphs of products with weights of a few bits, as files have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper


def complete(made: onnx.ModelProto, arrays: Mapping[str, np.ndarray[Any, Any]]) -> onnx.ModelProto:
    """The model with those of the arrays that it reads, and with the types that files declare of what onnxruntime's own operators
    make, as ONNX infers nothing of these: the first input's."""
    for node in made.graph.node:
        if node.op_type in ("MatMulNBits", "SimplifiedLayerNormalization") and node.output[0] != "y":
            value = onnx.ValueInfoProto.FromString(made.graph.input[0].SerializeToString())
            value.name = node.output[0]
            made.graph.value_info.append(value)
    read = {name for node in made.graph.node for name in node.input}
    made.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in arrays.items() if name in read)
    return made
