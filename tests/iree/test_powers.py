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
