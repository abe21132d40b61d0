"""LRN, whose sums IREE gets wrong of a free batch, against onnxruntime: written out, and compiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from hypothesis import given, settings
from hypothesis import strategies as st

import onnx_fa
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from tests.support.ort_run import assert_same, run


def normed(size: int, numbers: tuple[float, float, float], dims: str = "N, 7, H, 5") -> onnx.ModelProto:
    alpha, beta, bias = numbers
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17]> g (float[{dims}] x) => (float[{dims}] y)
        {{ y = LRN <size = {size}, alpha = {alpha}, beta = {beta}, bias = {bias}> (x) }}"""
    )


def image(channels: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((2, channels, 3, 5)).astype(np.float32)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 9),
    st.sampled_from([1, 3, 5, 9, 13]),  # onnxruntime has no even ones
    st.tuples(st.floats(0.1, 9), st.sampled_from([0.5, 0.75, 2.0]), st.floats(0.5, 3)),
    st.sampled_from(["", "N"]),
    st.booleans(),
)
def test_written(channels: int, size: int, numbers: tuple[float, float, float], batch: str, free: bool) -> None:
    """What is written is as near to float64 as f32 is. onnxruntime's own LRN, whose sums of squares run along channels, may be ten
    times further from it."""
    model = normed(size, numbers, f"{batch or 2}, {'C' if free else channels}, H, 5")
    infer_types(model, {})
    new, x = legalize(model), image(channels)
    assert "LRN" not in map(op_of, new.graph.node)
    want = [meant(x, size, numbers)]
    assert_same(want, [y.astype(np.float64) for y in run(new, {"x": x})])
    assert_same(want, [y.astype(np.float64) for y in run(model, {"x": x})], 2e-5)


def meant(x: np.ndarray, size: int, numbers: tuple[float, float, float]) -> np.ndarray:
    """The LRN of an odd size in float64."""
    (alpha, beta, bias), wide = numbers, x.astype(np.float64)
    padded = np.pad(wide**2, [(0, 0), (size // 2, size // 2), (0, 0), (0, 0)])
    total = sum(padded[:, i : i + x.shape[1]] for i in range(size))
    return np.asarray(wide / (bias + alpha / size * total) ** beta)


def test_even_sizes_reach_one_channel_further_behind() -> None:
    x = image(4)
    square = np.concatenate([x**2, np.zeros_like(x[:, :1])], axis=1)
    model = normed(2, (4.0, 0.5, 1.0), "2, 4, 3, 5")
    infer_types(model, {})
    assert_same([x / np.sqrt(1 + 2 * (square[:, :-1] + square[:, 1:]))], run(legalize(model), {"x": x}))


def test_compiled(tmp_path: Path) -> None:
    model, x = normed(5, (5.0, 0.75, 1.0)), image(7)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    assert_same(run(model, {"x": x}), onnx_fa.run(tmp_path / "m.vmfb", x))
