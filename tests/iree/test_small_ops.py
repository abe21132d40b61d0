"""Operators that IREE compiles to wrong numbers without a word, as compiled models have them, against onnxruntime or numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import onnx_fa
from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.rules import legalize
from tests.support.ort_run import run

F32 = TensorProto.FLOAT


def model_of(
    nodes: list[onnx.NodeProto], inputs: dict[str, list[int | str]], outputs: list[str], opset: int = 21
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, F32, dims) for name, dims in inputs.items()],
        [helper.make_tensor_value_info(name, F32, None) for name in outputs],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10 if opset < 28 else 14)


def test_numbers_that_onnxruntime_gives(tmp_path: Path) -> None:
    """Rows of zeros have the norm 0; Gelu by tanh where 1 + tanh is small; means that count their pads, not what their last window
    has behind them, and of windows that end with the image; Resize that names its axes, and leaves its last input out."""
    node = helper.make_node
    nodes = [
        node("LpNormalization", ["x"], ["two"], axis=-1, p=2),
        node("LpNormalization", ["x"], ["one"], axis=1, p=1),
        node("Gelu", ["x"], ["gelu"], approximate="tanh"),
        *(
            node(
                "AveragePool",
                ["image"],
                [f"mean{sum(pads)}"],
                kernel_shape=[3, 3],
                strides=[2, 2],
                pads=pads,
                ceil_mode=1,
                count_include_pad=1,
            )
            for pads in ([0, 0, 0, 0], [1, 1, 0, 1])
        ),
        node("AveragePool", ["image"], ["halves"], kernel_shape=[2, 1], strides=[2, 1], ceil_mode=1),
        node("Constant", [], ["scales"], value_floats=[2.0, 3.0]),
        node("Constant", [], ["sizes"], value_ints=[4, 9]),
        node("Resize", ["image", "", "scales", ""], ["larger"], axes=[2, 3]),
        node("Resize", ["image", "", "", "sizes"], ["other"], axes=[3, 2], mode="linear"),
    ]
    inputs: dict[str, list[int | str]] = {"x": ["n", 6, 8], "image": ["b", 2, 6, 7]}
    model = model_of(nodes, inputs, ["two", "one", "gelu", "mean0", "mean3", "halves", "larger", "other"])
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((3, 6, 8)) * 3, "image": rng.standard_normal((2, 2, 6, 7))}
    feeds["x"][1] = 0
    arrays = {name: x.astype(np.float32) for name, x in feeds.items()}
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    got = onnx_fa.run(tmp_path / "m.vmfb", *arrays.values())
    for output, found, want in zip(model.graph.output, got, run(model, arrays), strict=True):
        np.testing.assert_allclose(found, want, rtol=2e-5, atol=2e-7, err_msg=output.name)


def test_pixels_in_the_order_of_channels_and_determinants(tmp_path: Path) -> None:
    """SpaceToDepth of mode "CRD", which is PixelUnshuffle; matrices whose first pivot is 0."""
    node = helper.make_node
    nodes = [
        node("SpaceToDepth", ["image"], ["deep"], blocksize=2, mode="CRD"),
        *(node("Det", [f"m{n}"], [f"d{n}"]) for n in (1, 2, 3)),
    ]
    inputs: dict[str, list[int | str]] = {"image": [1, 3, 4, 6], **{f"m{n}": ["b", n, n] for n in (1, 2, 3)}}
    model = model_of(nodes, inputs, ["deep", "d1", "d2", "d3"], opset=28)
    rng = np.random.default_rng(1)
    image = rng.standard_normal((1, 3, 4, 6)).astype(np.float32)
    squares = [rng.standard_normal((2, n, n)).astype(np.float32) for n in (1, 2, 3)]
    for square in squares[1:]:
        square[:, 0, 0] = 0
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    deep, *dets = onnx_fa.run(tmp_path / "m.vmfb", image, *squares)
    want = image.reshape(1, 3, 2, 2, 3, 2).transpose(0, 1, 3, 5, 2, 4).reshape(1, 12, 2, 3)
    np.testing.assert_array_equal(deep, want)
    for found, square in zip(dets, squares, strict=True):
        np.testing.assert_allclose(found, np.linalg.det(square.astype(np.float64)), rtol=1e-5, atol=1e-6)


def test_what_is_refused_of_them() -> None:
    large = model_of([helper.make_node("Det", ["m"], ["d"], "det")], {"m": [4, 4]}, ["d"])
    with pytest.raises(ModelError, match="node 'det': Det of more than 3 rows"):
        legalize(large)
    node = helper.make_node("SpaceToDepth", ["x"], ["y"], "deep", blocksize=2, mode="CRD")
    with pytest.raises(ModelError, match="node 'deep': SpaceToDepth of mode"):
        legalize(model_of([node], {"x": ["b", "c", 4, 4]}, ["y"], opset=28))
