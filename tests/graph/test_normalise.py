"""What is filled in before matching, where a file says something else than its nodes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from onnx_fa.graph.normalise import infer_shapes


def vector(name: str, *numbers: int) -> onnx.NodeProto:
    return h.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(numbers, np.int64)))


def test_a_constant_has_the_shape_of_its_tensor() -> None:
    graph = h.make_graph(
        [vector("axis", 1), h.make_node("ReduceSum", ["x", "axis"], ["s"]), h.make_node("Relu", ["s"], ["y"])],
        "g",
        [h.make_tensor_value_info("x", T.FLOAT, [2, 3])],
        [h.make_tensor_value_info("y", T.FLOAT, None)],
        value_info=[h.make_tensor_value_info("axis", T.INT64, [])],
    )
    model = ir.from_proto(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10))
    infer_shapes(model)
    axis, total, _ = (node.outputs[0] for node in model.graph)
    assert axis.shape == ir.Shape([1])
    assert total.shape == ir.Shape([2, 1])


def _expanded(asked: tuple[int, ...], declared: tuple[int | str, ...]) -> list[ir.Shape | None]:
    """The shapes behind an Expand to numbers that Where and Equal make of constants, of which a file says `declared`."""
    nodes = [
        vector("dims", *asked),
        vector("kept", *[-1] * len(asked)),
        vector("own", *[1] * len(asked)),
        h.make_node("Equal", ["dims", "kept"], ["same"]),
        h.make_node("Where", ["same", "own", "dims"], ["to"]),
        h.make_node("Expand", ["x", "to"], ["big"]),
        h.make_node("Relu", ["big"], ["y"]),
    ]
    graph = h.make_graph(
        nodes,
        "g",
        [h.make_tensor_value_info("x", T.FLOAT, [1, 4])],
        [h.make_tensor_value_info("z", T.FLOAT, None)],
        value_info=[h.make_tensor_value_info(name, T.FLOAT, declared) for name in ("big", "y")],
    )
    graph.node.append(h.make_node("Abs", ["y"], ["z"]))
    model = ir.from_proto(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9))
    infer_shapes(model)
    return [node.outputs[0].shape for node in model.graph if node.op_type in ("Expand", "Relu")]


def test_expands_to_constants_that_are_computed() -> None:
    """PyTorch's older exporter writes -1, for a dim that stays, so; a file's made-up names do not stand in the way."""
    for declared in (("unk__3", "unk__4"), ("unk__3", 4)):
        assert _expanded((-1, 4), declared) == [ir.Shape([1, 4])] * 2
    assert _expanded((5, -1), ("unk__0", 4)) == [ir.Shape([5, 4])] * 2


def test_numbers_that_inference_does_not_find_stay() -> None:
    """Nobody knows the shape that is asked for, but the file knows a part of it."""
    graph = h.make_graph(
        [h.make_node("Reshape", ["x", "to"], ["made"]), h.make_node("Relu", ["made"], ["y"])],
        "g",
        [h.make_tensor_value_info("x", T.FLOAT, [2, 12]), h.make_tensor_value_info("to", T.INT64, [2])],
        [h.make_tensor_value_info("y", T.FLOAT, None)],
        value_info=[h.make_tensor_value_info("made", T.FLOAT, ["unk__0", 4])],
    )
    model = ir.from_proto(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10))
    infer_shapes(model)
    shape = model.graph[0].outputs[0].shape
    assert shape is not None and shape[1] == 4 and not isinstance(shape[0], int)


def test_branches_that_use_the_same_names_keep_their_own_numbers() -> None:
    def branch(name: str, *dims: int) -> onnx.GraphProto:
        nodes = [
            vector("to", *dims),
            h.make_node("Reshape", ["x", "to"], ["made"]),
            h.make_node("Relu", ["made"], [f"{name}_out"]),
        ]
        return h.make_graph(nodes, name, [], [h.make_tensor_value_info(f"{name}_out", T.FLOAT, None)])

    graph = h.make_graph(
        [h.make_node("If", ["c"], ["y"], then_branch=branch("yes", 3, 4), else_branch=branch("no", 2, 6))],
        "g",
        [h.make_tensor_value_info("x", T.FLOAT, ["n"]), h.make_tensor_value_info("c", T.BOOL, [])],
        [h.make_tensor_value_info("y", T.FLOAT, None)],
    )
    model = ir.from_proto(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=10))
    infer_shapes(model)
    made = {graph.name: [(n.outputs[0].name, n.outputs[0].shape) for n in graph] for graph in model.graphs()}
    assert made["yes"] == [("to", [2]), ("made", [3, 4]), ("yes_out", [3, 4])]
    assert made["no"] == [("to", [2]), ("made", [2, 6]), ("no_out", [2, 6])]


@pytest.mark.parametrize(
    ("declared", "found"),
    [("1, 4", ["N", 4]), ("M, 4", ["M", 4]), ("N, 5", ["N", 4]), ("4", ["N", 4]), ("1, 5", ["N", 4])],
)
def test_outputs_are_as_their_nodes_make_them(declared: str, found: list[int | str]) -> None:
    """A batch that somebody freed in the inputs alone: onnxruntime runs such a file, and warns. Names that differ contradict
    nothing."""
    model = ir.serde.from_onnx_text(
        f'<ir_version: 9, opset_import: ["" : 18]> g (float[N, 4] x) => (float[{declared}] y) {{ t = Exp(x)  y = Neg(t) }}'
    )
    infer_shapes(model)
    assert model.graph.outputs[0].shape == ir.Shape(found)
