"""What IREE refuses or computes wrongly where sizes are free: the same results in onnxruntime as written out, and compiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from onnx_fa.errors import ModelError
from onnx_fa.iree.compile import compile_model, import_model
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.run import load_module
from tests.support.ort_run import run

SHUFFLES = """<ir_version: 9, opset_import: ["": 18]>
shuffles (float[N, 12, H, W] x, float[2, 18, 2, 4] y) => (float[N, 3, P, Q] a, float[2, 2, 6, 12] b, float[N, 3, P, Q] c) {
  a = DepthToSpace<blocksize = 2, mode = "CRD">(x)
  b = DepthToSpace<blocksize = 3, mode = "CRD">(y)
  c = DepthToSpace<blocksize = 2, mode = "DCR">(x)
}"""
NORMS = """<ir_version: 10, opset_import: ["": 21]>
norms (float[N, 6, T] x, float[N, 6, H, W] y, float[6] s, float[6] b) => (float[N, 6, T] a, float[N, 6, H, W] c, float[N, 6, T] d) {
  a = InstanceNormalization<epsilon = 0.001>(x, s, b)
  c = InstanceNormalization(y, s, b)
  d = Softsign(x)
}"""
EXPANDS = """<ir_version: 9, opset_import: ["": 18]>
expands (float[M, K] x, float[2, M, K] y, int64[1] n, int64[2] s, int64[3] t)
    => (float[P, Q] a, float[2, M, R] b, float[U, V, Z] c) {
  a = Expand(x, s)
  b = Expand(y, n)
  c = Expand(x, t)
}"""


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def test_instance_normalization(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(NORMS)
    compile_model(model, tmp_path / "a.vmfb")
    module = load_module(tmp_path / "a.vmfb")
    for n, t, h, w in ((2, 37, 5, 3), (1, 1, 16, 16), (3, 400, 1, 1)):
        inputs = {"x": normal(n, 6, t), "y": normal(n, 6, h, w), "s": normal(6), "b": normal(6)}
        for got, want in zip(module(*inputs.values()), run(model, inputs), strict=True):
            np.testing.assert_allclose(
                got, want, rtol=1e-5, atol=1e-4
            )  # one element is 0 / sqrt(epsilon), up to rounding


def test_pixel_shuffle(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(SHUFFLES)
    compile_model(model, tmp_path / "a.vmfb")
    inputs = {"x": normal(2, 12, 3, 5), "y": normal(2, 18, 2, 4)}
    for got, want in zip(load_module(tmp_path / "a.vmfb")(*inputs.values()), run(model, inputs), strict=True):
        np.testing.assert_array_equal(got, want)
    with pytest.raises(ModelError, match="static number of channels"):
        import_model(onnx.parser.parse_model(SHUFFLES.replace("[N, 12,", "[N, C,").replace("[N, 3,", "[N, D,")))


def test_known_sizes_stay_one_node() -> None:
    model = onnx.parser.parse_model(NORMS.replace("T]", "37]").replace("H, W", "5, 5"))
    infer_types(model, {})
    assert [n.op_type for n in legalize(model).graph.node].count("InstanceNormalization") == 2


def test_expand(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(EXPANDS)
    compile_model(model, tmp_path / "a.vmfb")
    module = load_module(tmp_path / "a.vmfb")
    for (m, k), n, s, t in (
        ((1, 1), 4, (3, 4), (2, 3, 4)),
        ((3, 1), 1, (1, 5), (1, 3, 1)),
        ((3, 5), 5, (1, 1), (2, 1, 5)),
        ((1, 5), 1, (0, 1), (1, 0, 5)),
    ):
        x = normal(m, k)
        inputs = {"x": x, "y": normal(2, m, k), "n": np.array([n]), "s": np.array(s), "t": np.array(t)}
        for got, want in zip(module(*inputs.values()), run(model, inputs), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("coordinates", "nearest"), [("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "ceil")]
)
@pytest.mark.parametrize("scales", ["1, 1, 2, 3", "1, 1, 1, 4", "1, 1, 1.5, 2"])
def test_resize(coordinates: str, nearest: str, scales: str) -> None:
    """Repeated rows are gathered, others stay; both as onnxruntime has them."""
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["": 18]>
g (float[N, 2, H, W] x) => (float[N, 2, P, Q] y) <float[4] s = {{{scales}}}> {{
  y = Resize<mode = "nearest", coordinate_transformation_mode = "{coordinates}", nearest_mode = "{nearest}">(x, , s)
}}""")
    infer_types(model, {})
    written = legalize(model)
    assert ("Resize" in {n.op_type for n in written.graph.node}) == (nearest == "ceil" or "1.5" in scales)
    for h, w in ((5, 3), (1, 8)):
        np.testing.assert_array_equal(
            run(written, {"x": normal(2, 2, h, w)})[0], run(model, {"x": normal(2, 2, h, w)})[0]
        )


@pytest.mark.parametrize(
    ("shape", "asked", "marked"),
    [
        ("float[1, K] x", "int64[2] s = {3, 1}", False),  # sizes of 1 are known, and a 1 asks for nothing
        ("float[1, K] x", "int64[2] s = {3, 4}", True),
        ("float[2, K] x", "int64[2] s = {2, 1}", False),
    ],
)
def test_what_needs_no_rows_keeps_its_expand(shape: str, asked: str, marked: bool) -> None:
    text = f'<ir_version: 9, opset_import: ["": 18]> g ({shape}) => (float[P, Q] y) <{asked}> {{ y = Expand(x, s) }}'
    written = import_model(onnx.parser.parse_model(text)).text
    assert ("onnx.Gather" in written) == marked
