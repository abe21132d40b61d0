"""Resize of three axes, which IREE refuses: SAM's relative positions, features of a sound at another rate."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper as h
from onnx import numpy_helper as nh

import onnx_fa
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from tests.support.ort_run import run

X = np.random.default_rng(0).standard_normal((2, 3, 7)).astype(np.float32)


def resized(how: str, sizes: list[int] | float, mode: str = "linear", wrapped: bool = False) -> onnx.ModelProto:
    """To these sizes, or by this scale."""
    by = not isinstance(sizes, list)
    constant = np.asarray([1, 1, sizes], np.float32) if by else np.asarray(sizes, np.int64)
    inputs = ["x", "", "want"] if by else ["x", "", "", "want"]
    node = h.make_node("Resize", inputs, ["y"], "node", mode=mode, coordinate_transformation_mode=how)
    infos = [h.make_tensor_value_info(n, 1, s) for n, s in (("x", list(X.shape)), ("y", [2, 3, None]))]
    first = [h.make_node("Identity", ["given"], ["want"])] if wrapped else []
    tensor = nh.from_array(constant, "given" if wrapped else "want")
    graph = h.make_graph([*first, node], "main_graph", infos[:1], infos[1:], [tensor])
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize(
    ("how", "sizes"),
    [("half_pixel", [2, 3, 11]), ("half_pixel", 3.0), ("pytorch_half_pixel", [2, 3, 3]), ("asymmetric", [2, 3, 14])],
)
def test_a_sequence_is_an_image_of_one_row(how: str, sizes: list[int] | float, tmp_path: Path) -> None:
    model = resized(how, sizes, wrapped=how == "asymmetric")
    out = tmp_path / "model.vmfb"
    onnx_fa.compile(model, out)
    np.testing.assert_allclose(onnx_fa.run(out, X)[0], run(model, {"x": X})[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("how", "mode", "sizes", "first"),
    [
        ("align_corners", "linear", [2, 3, 11], "MatMul"),
        ("half_pixel", "cubic", [2, 3, 11], "MatMul"),
        ("half_pixel", "nearest", [2, 3, 11], "Resize"),
        ("half_pixel", "linear", 2.5, "MatMul"),  # of 17 elements each is 1/2.5 of one apart, not 7/17
    ],
)
def test_others_are_no_images(how: str, mode: str, sizes: list[int] | float, first: str) -> None:
    model = resized(how, sizes, mode)
    infer_types(model, {})
    assert legalize(model).graph.node[0].op_type == first
