"""Pairs of operators over free sizes give what onnxruntime gives, and compile for CUDA. By hand as many as one likes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target
from tests.support.operator_pairs import FIRST, draw, model_of, pairs
from tests.support.ort_run import run

COUNT, FROM = int(os.environ.get("ONNX_FA_PAIRS", "0")), int(os.environ.get("ONNX_FA_SEED", "0"))
FOUND = [
    ("not", "sum along"),
    ("float as double", "largest along"),
    ("float16 as float", "place of the largest"),
    ("not", "last place of the least"),
    ("relu", "place of the largest"),
    ("without the first", "two best"),
]
"""What the compiler refuses as it comes, or refused for CUDA."""
SHAPES = ((5, 7), (3, 2), (16, 130))
DRAWN = [pairs()[i] for i in np.random.default_rng(FROM).permutation(len(pairs()))[:COUNT]]


@pytest.mark.parametrize("target", ["cpu-host", "cuda"])
@pytest.mark.parametrize(("first", "second"), DRAWN or FOUND)
def test_pair(first: str, second: str, target: str, tmp_path: Path) -> None:
    model = model_of(first, second)
    compile_model(model, tmp_path / "m.vmfb", parse_target(target))
    if target == "cuda":
        return  # it is compiled: where there is a GPU, the tests of cuda run
    call, rng = load_module(tmp_path / "m.vmfb"), np.random.default_rng(0)
    for shape in SHAPES:
        x = draw(first, (shape[0], shape[1] + (first == "without the first")), rng)
        (want,), got = run(model, {"x": x}), call(x)[0]
        assert got.shape == want.shape
        half = want.dtype == np.float16 or FIRST[first][1] == "float16"
        np.testing.assert_allclose(got, want, rtol=1e-2 if half else 1e-5, atol=1e-2 if half else 1e-5)
