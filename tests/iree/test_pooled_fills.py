"""Pools of tensors that are one number throughout give what onnxruntime gives, in branches too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import onnx_fa
from tests.support.ort_run import run

POOLS = {
    "all": "y = GlobalAveragePool(f)",
    "windows": "y = AveragePool<kernel_shape = [2]>(f)",
    "padded windows": "y = AveragePool<kernel_shape = [2], pads = [1, 1]>(f)",
    "norms": "y = LpPool<kernel_shape = [2]>(f)",
    "in a branch": (
        "s = ReduceMax<keepdims = 0>(x) z = Sub(s, s) c = Less(z, s) y = If(c)<then_branch = t () => (float[n, 3, 1] g) "
        "{ g = GlobalAveragePool(f) }, else_branch = e () => (float[n, 3, 1] h) { h = GlobalMaxPool(x) }>"
    ),
}


@pytest.mark.parametrize("fill", ["f = Expand(two, sizes)", "f = ConstantOfShape<value = float[1] {2}>(sizes)"])
@pytest.mark.parametrize("pool", POOLS)
def test_one_number_throughout(pool: str, fill: str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]> g (float[n, 3, 4] x) => (float[n, 3, m] y) {{
        two = Constant<value_float = 2.0>() sizes = Shape(x) {fill} {POOLS[pool]} }}"""
    )
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    for batch in (1, 5):
        x = np.random.default_rng(batch).random((batch, 3, 4), np.float32)
        np.testing.assert_allclose(onnx_fa.run(tmp_path / "m.vmfb", x)[0], run(model, {"x": x})[0], rtol=1e-6)
