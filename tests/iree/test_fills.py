"""What is written into tensors of one number, and places of what is not 0, of free sizes: each node has its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnx_fa
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from tests.support.ort_run import run

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
node, info = helper.make_node, helper.make_tensor_value_info


def model_of(
    nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, list[int | str]]], outputs: dict[str, int]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [info(name, kind, dims) for name, (kind, dims) in inputs.items()],
        [info(name, kind, None) for name, kind in outputs.items()],
        [
            helper.make_tensor("ones", F32, [1, 4], [1.0] * 4),
            helper.make_tensor("row", I64, [1, 1], [1]),
            helper.make_tensor("nought", I64, [], [0]),
            helper.make_tensor("one", I64, [], [1]),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_each_scatter_writes_into_its_own(tmp_path: Path) -> None:
    """Zeros, a row that is expanded, and numbers in order, which are given out too; by places that the run gives, and constant
    ones."""
    nodes = [
        node("Shape", ["x"], ["size"]),
        node("ConstantOfShape", ["size"], ["zeros"]),
        node("Expand", ["ones", "size"], ["rows"]),
        node("ScatterND", ["zeros", "i", "u"], ["a"]),
        node("ScatterND", ["zeros", "j", "u"], ["b"]),
        node("ScatterND", ["zeros", "row", "ones"], ["c"]),
        node("ScatterND", ["rows", "i", "u"], ["d"]),
        node("ScatterElements", ["rows", "k", "u"], ["e"], reduction="add"),
        node("ScatterElements", ["rows", "l", "u"], ["f"], reduction="add"),
        node("Gather", ["size", "nought"], ["count"]),
        node("Range", ["nought", "count", "one"], ["order"]),
        node("ScatterND", ["order", "i", "n"], ["g"]),
        node("ScatterND", ["order", "j", "n"], ["h"]),
        node("Identity", ["order"], ["kept"]),
    ]
    inputs: dict[str, tuple[int, list[int | str]]] = {
        "x": (F32, ["b", 4]),
        "i": (I64, [1, 1]),
        "j": (I64, [1, 1]),
        "k": (I64, [1, 4]),
        "l": (I64, [1, 4]),
        "u": (F32, [1, 4]),
        "n": (I64, [1]),
    }
    model = model_of(nodes, inputs, dict.fromkeys("abcdef", F32) | dict.fromkeys("gh", I64) | {"kept": I64})
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    rng = np.random.default_rng(0)
    for rows in (2, 3, 7):
        feeds = {
            "x": rng.standard_normal((rows, 4)).astype(np.float32),
            "i": np.array([[0]]),
            "j": np.array([[rows - 1]]),
            "k": np.array([[0, 1, 0, 1]]),
            "l": np.array([[1, 1, 0, 0]]),
            "u": rng.standard_normal((1, 4)).astype(np.float32),
            "n": np.array([77]),
        }
        got = onnx_fa.run(tmp_path / "m.vmfb", *feeds.values())
        for found, want in zip(got, run(model, feeds, optimise=False), strict=True):
            np.testing.assert_allclose(found, want, rtol=1e-6)


def test_places_of_two_tensors_of_one_size(tmp_path: Path) -> None:
    """Of numbers, booleans and what is NaN; of none, of one axis and of three, one of which nobody is longer than 0."""
    nodes = [
        node("Greater", ["x", "zero"], ["more"]),
        node("Less", ["x", "zero"], ["less"]),
        *(node("NonZero", [value], [name]) for value, name in (("more", "a"), ("less", "b"), ("x", "c"), ("n", "d"))),
        node("ReduceMax", ["n"], ["most"], axes=[1], keepdims=0),
        node("NonZero", ["most"], ["e"]),
        node("Reshape", ["n", "shape"], ["cube"]),
        node("NonZero", ["cube"], ["f"]),
        node("Compress", ["x", "flags"], ["g"], axis=0),
        node("Not", ["flags"], ["others"]),
        node("Compress", ["x", "others"], ["h"], axis=0),
    ]
    inputs: dict[str, tuple[int, list[int | str]]] = {
        "x": (F32, ["b", "w"]),
        "n": (I64, ["b", 6]),
        "flags": (BOOL, ["b"]),
    }
    model = model_of(nodes, inputs, dict.fromkeys("abcdef", I64) | dict.fromkeys("gh", F32))
    model.graph.initializer.extend(
        [helper.make_tensor("zero", F32, [], [0.0]), helper.make_tensor("shape", I64, [3], [-1, 2, 3])]
    )
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    rng = np.random.default_rng(0)
    for rows, width in ((5, 7), (1, 1), (2, 3), (3, 0)):
        x = rng.standard_normal((rows, width)).astype(np.float32)
        x[x > 1] = np.nan
        feeds = {"x": x, "n": rng.integers(-1, 2, (rows, 6)), "flags": rng.random(rows) < 0.5}
        got = onnx_fa.run(tmp_path / "m.vmfb", *feeds.values())
        for found, want in zip(got, run(model, feeds, optimise=False), strict=True):
            assert found.dtype == want.dtype
            np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("rows", [3, "b"])
def test_what_stays(rows: int | str) -> None:
    """A NonZero of known sizes, and a ScatterND into what the run gives or what is constant."""
    nodes = [node("ScatterND", [x, "row", "u"], [y]) for x, y in (("x", "a"), ("constant", "b"))]
    nodes += [node("NonZero", ["known"], ["c"])]
    inputs: dict[str, tuple[int, list[int | str]]] = {"x": (F32, [rows, 4]), "u": (F32, [1, 4]), "known": (F32, [3, 4])}
    model = model_of(nodes, inputs, dict.fromkeys("ab", F32) | {"c": I64})
    model.graph.initializer.append(helper.make_tensor("constant", F32, [2, 4], [0.0] * 8))
    infer_types(model, {}, data_prop=True)
    assert [n.op_type for n in legalize(model).graph.node] == ["ScatterND", "ScatterND", "NonZero"]
