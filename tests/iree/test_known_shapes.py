"""Shapes that a graph computes from what is known become constants, and no others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.legalise.known_shapes import settle_shapes
from onnx_fa.iree.run import load_module


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


def test_sizes_that_follow_from_arithmetic_are_declared(tmp_path: Path) -> None:
    """(B, S, 12) -> (B, S, 3, 4) -> (B, 3, S, 4) as torch's own modules write it, by Slices of the Shape whose ends are computed:
    onnx infers not even the rank."""
    text = """
        <ir_version: 9, opset_import: ["": 18]>
        main_graph (float[B,S,12] x) => (float[B,T,S,U] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[2] heads = {3, 4}, int64[1] rank = {3}, int64[1] minus = {-1}> {
            shape = Shape(x)
            last = Mod(minus, rank)
            lead = Slice(shape, zero, last)
            full = Concat<axis=0>(lead, heads)
            split = Reshape(x, full)
            turned = Transpose<perm=[0,2,1,3]>(split)
            y = Relu(turned)
        }
    """
    model = ir.from_proto(onnx.parser.parse_model(text))
    infer_shapes(model)
    settle_shapes(model)
    shapes = {o.name: str(o.shape) for n in model.graph for o in n.outputs}
    assert shapes["split"] == "[B,S,3,4]" and shapes["turned"] == "[B,3,S,4]"
    compiled = compile_model(model, tmp_path / "m.vmfb")
    assert not compiled.note
    x = np.random.default_rng(0).standard_normal((2, 5, 12)).astype(np.float32)
    want = np.maximum(x.reshape(2, 5, 3, 4).transpose(0, 2, 1, 3), 0)
    np.testing.assert_array_equal(load_module(tmp_path / "m.vmfb")(x)[0], want)


@pytest.mark.parametrize("side", [7, "S"])
def test_pads_that_are_computed_of_known_sizes(side: int | str) -> None:
    """To a multiple of 4, as before windows."""
    text = f"""
        <ir_version: 9, opset_import: ["": 18]>
        g (float[B, {side}] x) => (float[B, T] y)
        <float four = {{4}}, int64 place = {{1}}, int64[1] axis = {{0}}, int64[3] none = {{0, 0, 0}}> {{
            shape = Shape(x)
            size = Gather(shape, place)
            exact = Cast <to = 1> (size)
            times = Div(exact, four)
            up = Ceil(times)
            wanted = Mul(up, four)
            more = Sub(wanted, exact)
            rows = Cast <to = 7> (more)
            last = Unsqueeze(rows, axis)
            pads = Concat <axis = 0> (none, last)
            y = Pad(x, pads)
        }}
    """
    model = ir.from_proto(onnx.parser.parse_model(text))
    infer_shapes(model)
    settle_shapes(model)
    node = next(n for n in model.graph if n.op_type == "Pad")
    pads, size = node.inputs[1], ("B", 8) if side == 7 else ("B", "T")
    assert pads is not None and str(node.outputs[0].shape) == f"[{size[0]},{size[1]}]"
    known = None if pads.const_value is None else pads.const_value.numpy().tolist()
    assert known == ([0, 0, 0, 1] if side == 7 else None)


def test_another_rank_than_declared(tmp_path: Path) -> None:
    """onnxruntime warns of it, and goes by the op."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[2, 3, 4] x) => (float[r, s] y) { y = Neg(x) }'
    )
    compile_model(model, tmp_path / "m.vmfb")
    x = np.ones((2, 3, 4), np.float32)
    np.testing.assert_array_equal(load_module(tmp_path / "m.vmfb")(x)[0], -x)


def test_a_batch_that_only_the_inputs_leave_free(tmp_path: Path) -> None:
    """The output's declared 1 is no promise: onnxruntime warns, and gives as many rows as there are."""
    text = '<ir_version: 9, opset_import: ["" : 18]> g (float[N, 4] x) => (float[1, 4] y) { t = Exp(x)  y = Neg(t) }'
    x = np.arange(12, dtype=np.float32).reshape(3, 4) / 12
    compile_model(onnx.parser.parse_model(text), tmp_path / "m.vmfb")
    np.testing.assert_allclose(load_module(tmp_path / "m.vmfb")(x)[0], -np.exp(x), rtol=1e-5)
