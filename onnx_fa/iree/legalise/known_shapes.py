"""Shapes that a graph computes although they are known, for IREE's importer: it takes a rank from constants alone."""

from __future__ import annotations

import onnx_ir as ir

from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView


def settle_shapes(model: ir.Model) -> None:
    """Where the rank of a Reshape's result is not known and its shape operand can be computed now, a constant takes its place."""
    view = GraphView(model)
    changed = False
    for node in model.graph:
        if op_of(node) != "Reshape" or node.outputs[0].shape is not None:
            continue
        shape = node.inputs[1]
        array = view.const(shape)
        if shape is None or array is None or shape.const_value is not None:
            continue
        known = ir.Value(name=f"{shape.name}_known", const_value=ir.tensor(array))
        known.shape, known.type = ir.Shape(array.shape), ir.TensorType(ir.DataType.INT64)
        if known.name not in model.graph.initializers:
            model.graph.register_initializer(known)
        node.replace_input_with(1, model.graph.initializers[str(known.name)])
        changed = True
    if changed:
        infer_shapes(model)
