"""Shapes that a graph computes from what is known become constants, and no others."""

from __future__ import annotations

import onnx_ir as ir
from onnx import TensorProto, helper

from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.iree.legalise.known_shapes import settle_shapes


def reshaped(length: int | str) -> ir.Model:
    """PyTorch's unflatten as the TorchScript exporter writes it: (S, 6) to (S, 2, 3), S taken from the shape."""
    begin, end = (
        helper.make_tensor("begin", TensorProto.INT64, [1], [0]),
        helper.make_tensor("end", TensorProto.INT64, [1], [1]),
    )
    tail = helper.make_tensor("tail", TensorProto.INT64, [2], [2, 3])
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Mod", ["begin", "end"], ["first"]),
        helper.make_node("Slice", ["shape", "first", "end"], ["lead"]),
        helper.make_node("Concat", ["lead", "tail"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [length, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], [begin, end, tail])
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    infer_shapes(model)
    model.graph.outputs[0].shape = None
    return model


def test_a_known_shape_becomes_a_constant() -> None:
    model = reshaped(5)
    settle_shapes(model)
    (node,) = [n for n in model.graph if n.op_type == "Reshape"]
    shape = node.inputs[1]
    assert shape is not None and shape.const_value is not None and shape.const_value.numpy().tolist() == [5, 2, 3]


def test_one_that_is_known_at_run_time_stays() -> None:
    model = reshaped("S")
    settle_shapes(model)
    (node,) = [n for n in model.graph if n.op_type == "Reshape"]
    assert node.inputs[1] is not None and node.inputs[1].name == "wanted"
