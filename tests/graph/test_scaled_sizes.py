"""Lengths that Resize makes of constant scales are those that onnxruntime runs with."""

from __future__ import annotations

import math
import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from onnx_fa.graph.io import load
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.scaled_sizes import raise_scales
from onnx_fa.iree.inference import infer_types
from tests.support.ort_run import run


def drawn(seed: int) -> tuple[onnx.ModelProto, list[int]]:
    """Up to three Resizes one behind the other by quotients of sizes, of which ONNX's inference takes many to be one too short."""
    r = random.Random(seed)
    opset = r.choice((10, 11, 13, 17, 18))
    sizes = [r.choice((3, 11, 13, 14, 23, 37, 41, 46)) for _ in range(2)]
    dims, nodes, tensors, x = [r.choice((1, "B")), 2, *sizes], [], [], "x"
    for i in range(r.randint(1, 3)):
        made = [r.choice((5, 10, 12, 17, 20, 31, 57, 63)) for _ in sizes]
        named = opset >= 18 and r.random() < 0.5
        scales = np.array([] if named else [1, 1], np.float32)
        scales = np.append(scales, np.float32(made) / np.float32(sizes)).astype(np.float32)
        tensor = numpy_helper.from_array(scales, f"s{i}")
        if r.random() < 0.5:
            nodes.append(h.make_node("Constant", [], [f"s{i}"], value=tensor))
        else:
            tensors.append(tensor)
        more = {"axes": [2, 3]} if named else {}
        nodes.append(h.make_node("Resize", [x, f"s{i}"] if opset == 10 else [x, "", f"s{i}"], [f"r{i}"], **more))
        if opset == 11:
            nodes[-1].input[1] = "none"
        nodes.append(h.make_node("Relu", [f"r{i}"], [x := f"y{i}"]))
        sizes = [math.floor(scale * np.float32(size)) for scale, size in zip(scales[-2:], sizes, strict=True)]
    if opset == 11:
        tensors.append(numpy_helper.from_array(np.zeros(0, np.float32), "none"))
    out = h.make_tensor_value_info(x, T.FLOAT, None if r.random() < 0.5 else [dims[0], 2, *sizes])
    graph = h.make_graph(nodes, "g", [h.make_tensor_value_info("x", T.FLOAT, dims)], [out], tensors)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=8), dims[2:]


def test_lengths_are_those_of_a_run() -> None:
    wrong = 0
    for seed in range(60):
        model, sizes = drawn(seed)
        made = [o for n in model.graph.node if n.op_type != "Constant" for o in n.output]
        whole = onnx.ModelProto.FromString(model.SerializeToString())
        del whole.graph.output[:]
        whole.graph.output.extend(h.make_tensor_value_info(name, T.FLOAT, None) for name in made)
        want = [x.shape[2:] for x in run(whole, {"x": np.zeros((1, 2, *sizes), np.float32)}, optimise=False)]
        read = load(model)
        infer_shapes(read)
        found = {v.name: v.shape for n in read.graph for v in n.outputs}
        assert [tuple(found[name].dims[2:]) for name in made] == want, seed
        proto = onnx.ModelProto.FromString(model.SerializeToString())
        infer_types(proto, {})
        told = {v.name: v.type.tensor_type.shape for v in (*proto.graph.value_info, *proto.graph.output)}
        assert [tuple(d.dim_value for d in told[name].dim[2:]) for name in made] == want, seed
        assert proto.graph.node == model.graph.node and proto.graph.initializer == model.graph.initializer
        wrong += {name: tuple(dims) for name, dims in zip(made, want, strict=True)} != {
            v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim[2:])
            for v in onnx.shape_inference.infer_shapes(whole).graph.output
        }
    assert wrong > 10  # else nothing was tried


def test_a_declared_output_that_is_right_stays() -> None:
    """The Resize makes the output itself, and ONNX's rule for it contradicts what the file says."""
    scales = numpy_helper.from_array(np.array([1, 1, 1, np.float32(17) / np.float32(11)], np.float32), "s")
    node = h.make_node("Resize", ["x", "", "s"], ["y"])
    values = [h.make_tensor_value_info(name, T.FLOAT, ["B", 2, 3, size]) for name, size in (("x", 11), ("y", 17))]
    graph = h.make_graph([node], "g", values[:1], values[1:], [scales])
    read = load(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8))
    infer_shapes(read)
    assert read.graph.outputs[0].shape is not None
    assert read.graph.outputs[0].shape.dims[2:] == (3, 17)


@pytest.mark.parametrize(
    ("scales", "dims"),
    [([1, 2], [4, None]), ([1.5], [4, 4]), ([np.inf, np.nan], [4, 4]), ([-1.0, 0.0], [4, 4]), ([0.5, 0.7], [0, 9])],
)
def test_others_stay(scales: list[float], dims: list[int | None]) -> None:
    assert raise_scales(np.array(scales, np.float32), dims) is None
