"""TopK in any order, by which experts of DeepSeek-V3 and others are chosen, and TopK for the places alone, as of lengths that are
sorted: IREE refuses both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from onnx import helper

import onnx_fa
from onnx_fa.iree.legalise.rules import legalize


def chosen(attributes: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g (float[4, 7] x) => (float[4, 3] v, int64[4, 3] i) <int64[1] k = {{3}}> {{ v, i = TopK<{attributes}>(x, k) }}"""
    )


@pytest.mark.parametrize("largest", [0, 1])
def test_any_order_is_compiled_as_the_sorted_one(largest: int, tmp_path: Path) -> None:
    """Equal numbers too: the first of them in the row comes first."""
    x = np.random.default_rng(0).integers(-2, 3, (4, 7)).astype(np.float32)
    out = tmp_path / "model.vmfb"
    onnx_fa.compile(chosen(f"axis = -1, sorted = 0, largest = {largest}"), out)
    values, places = onnx_fa.run(out, x)
    want = np.argsort(-x if largest else x, axis=-1, kind="stable")[:, :3]
    np.testing.assert_array_equal(places, want)
    np.testing.assert_array_equal(values, np.take_along_axis(x, want, -1))


@pytest.mark.parametrize("attributes", ["axis = 1", "axis = 1, sorted = 1, largest = 0"])
def test_a_sorted_one_stays(attributes: str) -> None:
    model = chosen(attributes)
    assert legalize(model).graph.node[0] == model.graph.node[0]


PLACES = [
    ("float[N]", [2.0, 9.0, -1.0, 7.0, 2.0]),
    ("int64[N]", [3, 9, 3, -1, 0]),
    ("uint8[N]", [3, 200, 3, 0, 1]),
    ("float16[B, N]", [[1, 1, 0, 2, 9], [0, -4, 5, 5, 1]]),
]


@pytest.mark.parametrize(("dims", "x"), PLACES)
def test_places_alone(dims: str, x: list[float], tmp_path: Path) -> None:
    """Of all elements, whatever their number is: an argsort."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g ({dims} x) => (int64{dims[dims.index("[") :]} i)
        {{ n = Shape <start = -1> (x)  v, i = TopK <axis = -1> (x, n) }}"""
    )
    out, given = (
        tmp_path / "model.vmfb",
        np.array(x, helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)),
    )
    onnx_fa.compile(model, out)
    places = np.asarray(onnx_fa.run(out, given)[0])
    want = np.argsort(-given.astype(np.float64), axis=-1, kind="stable")
    np.testing.assert_array_equal(places, want)
