"""Pow of integers, which IREE refuses: Coqui's TTS squares lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import onnx_fa
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from tests.support.ort_run import run


def raised(kind: str, times: str, of: str = "int64") -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g ({of}[3] x) => ({of}[3] y) <{kind} n = {{{times}}}> {{ y = Pow(x, n) }}"""
    )


@pytest.mark.parametrize(
    ("kind", "times", "of"),
    [("int64", "2", "int64"), ("int64[1]", "1", "int32"), ("int32", "3", "int64"), ("float", "2.0", "int64")],
)
def test_small_powers(kind: str, times: str, of: str, tmp_path: Path) -> None:
    model = raised(kind, times, of)
    x = np.array([-3, 0, 11], of)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    (got,) = onnx_fa.run(tmp_path / "m.vmfb", x)
    (want,) = run(model, {"x": x})
    np.testing.assert_array_equal(got, want)
    assert got.dtype == want.dtype


@pytest.mark.parametrize(
    ("kind", "times", "of"), [("float", "0.5", "int64"), ("int64", "9", "int64"), ("float", "2.0", "float")]
)
def test_others_stay(kind: str, times: str, of: str) -> None:
    model = raised(kind, times, of)
    infer_types(model, {})
    assert [n.op_type for n in legalize(model).graph.node] == ["Pow"]


BASES = [-2.0, -2, -2, 0, 0, 0, 1, np.inf, 3, -3, -1, -1]
EXPONENTS = [2.0, 3, 0.5, 0, 2, -1, np.inf, 0, -2, -3, 4, 1e9]


@pytest.mark.parametrize(
    ("kinds", "x", "n"),
    [
        ("float float", BASES, EXPONENTS),
        ("float int64", [-2.0, -1, 0, 3], [2, 3, 0, 2]),
        ("int64 int64", [-7, -1, 0, 3], [9, 8, 0, 4]),
        ("float16 float16", [-2.0, -1, 0, 3], [2, 3, 0, 2]),
    ],
)
def test_exponents_of_the_run(kinds: str, x: list[float], n: list[float], tmp_path: Path) -> None:
    """Bases below 0, and what C says of 0, 1 and infinity."""
    base, exponent = kinds.split()
    text = f'<ir_version: 9, opset_import: ["" : 18]> g ({base}[A] x, {exponent}[A] n) => ({base}[A] y) {{ y = Pow(x, n) }}'
    model, names = onnx.parser.parse_model(text), {"float": "float32"}
    feeds = {"x": np.array(x, names.get(base, base)), "n": np.array(n, names.get(exponent, exponent))}
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    got, want = onnx_fa.run(tmp_path / "m.vmfb", *feeds.values())[0], run(model, feeds)[0]
    np.testing.assert_allclose(np.asarray(got), want, rtol=2e-6 if base != "float16" else 2e-3)


@pytest.mark.parametrize("power", ["<float b = {10000}> { y = Pow(b, x) }", "<float e = {3}> { y = Pow(x, e) }"])
def test_powers_that_are_right_stay(power: str) -> None:
    text = f'<ir_version: 9, opset_import: ["" : 18]> g (float[3] x) => (float[3] y) {power}'
    model = onnx.parser.parse_model(text)
    assert legalize(model).graph.node[0] == model.graph.node[0]
