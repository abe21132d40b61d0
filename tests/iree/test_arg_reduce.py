"""The class of each pixel: ArgMax and ArgMin of four axes and more of which one is free, which the compiler refuses for CPUs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import onnx_fa
from tests.support.ort_run import run


@pytest.mark.parametrize(
    ("dims", "axis", "shape"),
    [
        ("b, 21, h, w", 1, (2, 21, 5, 7)),
        ("b, 21, 16, 16", 1, (3, 21, 16, 16)),
        ("b, h, w, 4", -1, (1, 3, 2, 4)),
        ("b, 2, 3, c, 5", 3, (2, 2, 3, 9, 5)),
    ],
)
@pytest.mark.parametrize("last", [0, 1])
def test_classes_of_pixels(dims: str, axis: int, shape: tuple[int, ...], last: int, tmp_path: Path) -> None:
    results = ", ".join("pqrst"[: len(shape)])
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]> g (float[{dims}] x) => (int64[{results}] y, int64[{results}] z) {{
        y = ArgMax<axis = {axis}, select_last_index = {last}>(x) z = ArgMin<axis = {axis}, select_last_index = {last}>(x) }}"""
    )
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    x = np.random.default_rng(0).integers(-4, 5, shape).astype(np.float32)
    for got, want in zip(onnx_fa.run(tmp_path / "m.vmfb", x), run(model, {"x": x}), strict=True):
        np.testing.assert_array_equal(got, want)
