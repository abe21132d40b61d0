"""What is computed while a model is read is bounded before it is computed: a few bytes can ask for 2^60 numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from onnx_fa.forms.rewrite import explain
from onnx_fa.graph import normalise as normalize
from onnx_fa.graph import view as graph_view
from onnx_fa.graph.bounded import infer_followed, result_elements
from onnx_fa.graph.view import GraphView
from onnx_fa.passes.axis_probe import Operand, ProbeError, runner

HUGE = 1 << 40
Content = np.ndarray[Any, Any]

GROWING: dict[str, tuple[str, tuple[Content, ...], dict[str, Any]]] = {
    "Range": ("Range", (np.int64(0), np.int64(1 << 31), np.int64(1)), {}),
    "ConstantOfShape": ("ConstantOfShape", (np.array([HUGE]),), {}),
    "Expand": ("Expand", (np.ones(1), np.array([HUGE, 1])), {}),
    "Tile": ("Tile", (np.ones(2), np.array([HUGE])), {}),
    "a broadcast": ("Add", (np.ones((1 << 14, 1)), np.ones((1, 1 << 14))), {}),
    "many indices": ("GatherND", (np.ones(1), np.zeros(((1 << 20) + 1, 1), np.int64)), {}),
    "Gather": ("Gather", (np.ones((1 << 14, 1)), np.zeros((1, 1 << 13), np.int64)), {"axis": 1}),
}


def _alone(op: str, contents: tuple[Content, ...], attributes: dict[str, Any]) -> ir.Model:
    """A graph of one node, whose result has no recorded shape."""
    inputs = [ir.Value(name=f"i{n}", const_value=ir.tensor(np.asarray(a))) for n, a in enumerate(contents)]
    out = ir.Value(name="o")
    node = ir.node(op, inputs, attributes=attributes, outputs=[out])
    graph = ir.Graph([], [out], nodes=[node], initializers=inputs, opset_imports={"": 18}, name="g")
    return ir.Model(graph, ir_version=10)


@pytest.mark.parametrize("name", GROWING)
def test_a_constant_that_would_be_too_large_is_not_computed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _alone(*GROWING[name])
    monkeypatch.setattr(graph_view, "ReferenceEvaluator", lambda *_: pytest.fail("it is computed"))
    assert GraphView(model).const(model.graph.outputs[0]) is None


def test_a_long_constant_is_no_shape() -> None:
    """Reading millions of numbers one by one as dims takes seconds."""
    model = _alone("Identity", (np.arange(5000),), {})
    view = GraphView(model)
    assert view.const(model.graph.outputs[0]) is not None
    assert view.dims(model.graph.outputs[0]) is None


def test_a_small_constant_is_computed() -> None:
    model = _alone("Expand", (np.ones(1), np.array([3, 2])), {})
    found = GraphView(model).const(model.graph.outputs[0])
    assert found is not None and found.shape == (3, 2)


def test_a_result_of_unknown_size_is_said_to_be_unknown() -> None:
    node = h.make_node("Reshape", ["x", "to"], ["y"])
    assert result_elements(node, [np.ones(6), np.array([2, 3])], 18) == 6
    assert result_elements(node, [np.ones(6), np.array([4, -1])], 18) is None
    assert result_elements(h.make_node("NoOp", ["x"], ["y"]), [np.ones(6)], 18) is None


def test_an_op_whose_result_would_be_too_large_is_not_asked_about_axes() -> None:
    shape = np.array([2, HUGE])
    operands = [Operand((1, 1), np.dtype(np.float32)), Operand((2,), np.dtype(np.int64), shape)]
    run = runner(h.make_node("Expand", ["x", "shape"], ["y"]), operands, 18)
    with pytest.raises(ProbeError, match="too large"):
        run([np.ones((1, 1), np.float32), shape])
    assert run([np.ones((1, 1), np.float32), np.array([2, 3])])[0].shape == (2, 3)


def _long_vector(length: int) -> onnx.ModelProto:
    """A vector of that many numbers, a Sub that reads it, and zeros whose shape only those find who follow numbers."""
    nodes = [
        h.make_node("ConstantOfShape", ["length"], ["v"], value=h.make_tensor("one", T.INT64, [1], [1])),
        h.make_node("Sub", ["v", "one"], ["o"]),
        h.make_node("Sub", ["five", "one"], ["four"]),
        h.make_node("ConstantOfShape", ["four"], ["zeros"]),
    ]
    numbers = [h.make_tensor(name, T.INT64, [1], [n]) for name, n in (("length", length), ("one", 1), ("five", 5))]
    outputs = [h.make_tensor_value_info("o", T.INT64, None), h.make_tensor_value_info("zeros", T.FLOAT, [None])]
    graph = h.make_graph(nodes, "g", [], outputs, numbers)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize(("length", "followed"), [(16, True), (1 << 21, False)])
def test_numbers_of_a_long_vector_are_not_followed(
    length: int, followed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX's inference writes out every element of a vector that an Add, Sub or Mul reads, where it follows numbers."""
    infer, asked = normalize.infer_by_onnx, []

    def recorded(model: ir.Model, *, data_prop: bool) -> None:
        asked.append(data_prop)
        infer(model, data_prop=data_prop)

    monkeypatch.setattr(normalize, "infer_by_onnx", recorded)
    assert not explain(_long_vector(length)).sites
    assert asked and any(asked) is followed


@pytest.mark.parametrize(("length", "followed"), [(16, True), (1 << 21, False)])
def test_followed_inference_looks_at_lengths_first(
    length: int, followed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    infer, asked = onnx.shape_inference.infer_shapes, []

    def recorded(model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
        asked.append(options.get("data_prop", False))
        return infer(model, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", recorded)
    model = _long_vector(length)
    infer_followed(model)
    assert any(asked) is followed
    asked.clear()
    del model.graph.node[0]
    elsewhere = onnx.TensorProto.EXTERNAL
    model.graph.initializer.add(name="v", data_type=T.INT64, dims=[length], data_location=elsewhere)
    infer_followed(model)
    assert any(asked) is followed
