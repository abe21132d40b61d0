"""Sizes given to free dims."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from onnx_fa.graph.free_dims import fix_dims, rename_dim, symbols
from onnx_fa.graph.io import load
from onnx_fa.graph.view import GraphView


def joined() -> onnx.ModelProto:
    """Keys behind a past are called "seq" in this file, like the queries."""

    def value(name: str, length: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, length, 4])

    nodes = [helper.make_node("Concat", ["past", "new"], ["keys"], axis=1), helper.make_node("Tanh", ["keys"], ["out"])]
    inputs = [value("past", "p"), value("new", "seq")]
    graph = helper.make_graph(nodes, "g", inputs, [value("out", "seq")], value_info=[value("keys", "seq")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def test_a_size_follows_the_graph_and_not_what_the_file_calls_a_length() -> None:
    fixed = fix_dims(joined(), {"seq": 1})
    view = GraphView(fixed)
    assert view.shape(fixed.graph.node(0).outputs[0]) == (1, "1 + p", 4)
    assert view.shape(fixed.graph.outputs[0]) == (1, "1 + p", 4)
    assert symbols(fixed) == ("p",)


def test_a_dim_is_called_otherwise_everywhere() -> None:
    model = load(joined())
    rename_dim(model, "seq", "total")
    assert symbols(model) == ("p", "total")
    assert [str(d) for d in model.graph.outputs[0].shape or ()] == ["1", "total", "4"]
