"""DepthToSpace of channels that only a run knows, as TensorFlow's batch_to_space has them behind a Transpose of the batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import onnx_fa
from onnx_fa.iree.run import load_module
from tests.support.ort_run import assert_same, run

MODEL = """<ir_version: 9, opset_import: ["" : 17]>
g (float[N, 3, 4, 5] x) => (float[A, 3, 8, 10] by_rows, float[B, 3, 8, 10] by_columns)
{
  turned = Transpose <perm = [1, 0, 2, 3]> (x)
  a = DepthToSpace <blocksize = 2> (turned)
  b = DepthToSpace <blocksize = 2, mode = "CRD"> (turned)
  by_rows = Transpose <perm = [1, 0, 2, 3]> (a)
  by_columns = Transpose <perm = [1, 0, 2, 3]> (b)
}"""


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shuffled") / "m.vmfb"
    onnx_fa.compile(onnx.parser.parse_model(MODEL), path)
    return path


@pytest.mark.parametrize("parts", [4, 12])
def test_free_channels(module: Path, parts: int) -> None:
    x = np.random.default_rng(0).standard_normal((parts, 3, 4, 5)).astype(np.float32)
    assert_same(run(onnx.parser.parse_model(MODEL), {"x": x}), load_module(module)(x))
