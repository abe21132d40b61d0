"""`compile --check`: a module that computes something else is found, one that is right is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnx_fa.cli.command import main
from onnx_fa.errors import RunError
from onnx_fa.iree.compile import compile_model
from onnx_fa.spec.target import parse_target
from onnx_fa.verifier.once import _first_run, check_once
from onnx_fa.verifier.runners import Runner
from onnx_fa.verifier.verifier import verify
from tests.support import tiny

HOST = parse_target("cpu-host")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny.attention(tmp_path / "a.onnx", s="S", batch="N")
    assert not main(["compile", str(model), "-o", str(tmp_path / "a.vmfb"), "--check", "--dim", "S=19"])
    assert "one run on random inputs equals onnxruntime's" in capsys.readouterr().err


def test_lengths_that_the_model_runs_with(tmp_path: Path) -> None:
    """Halves that are doubled again ask for an even length; two convolutions over sound for a long one."""
    even = """<ir_version: 9, opset_import: ["": 18]> g (float[N, 2, T] x) => (float[N, 2, T] y) {
        h = MaxPool<kernel_shape = [2], strides = [2]>(x)
        d = Concat<axis = 2>(h, h)
        y = Add(x, d)
    }"""
    long = """<ir_version: 9, opset_import: ["": 18]> g (float[N, 2, T] x, float[2, 2, 20] w) => (float[N, 2, U] y) {
        h = Conv<strides = [10]>(x, w)
        y = Conv<strides = [10]>(h, w)
    }"""
    for text, length in ((even, 24), (long, 1600)):
        model = ir.from_proto(onnx.parser.parse_model(text))
        arrays, _ = _first_run(Runner(model, tmp_path / "m.onnx"), model, {})
        assert arrays["x"].shape[2] == length
    with pytest.raises(RunError, match="cannot be run"):
        _first_run(Runner(model, tmp_path / "m.onnx"), model, {"T": 5})


@pytest.mark.parametrize("scale", [0.5, np.nan])
def test_a_module_of_another_model(scale: float, tmp_path: Path) -> None:
    model = onnx.load(tiny.attention(tmp_path / "a.onnx"))
    (weight,) = model.graph.initializer
    before = numpy_helper.to_array(weight)
    other = onnx.ModelProto()
    other.CopyFrom(model)
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array((before * scale).astype(np.float32), weight.name))
    compile_model(other, tmp_path / "b.vmfb")
    check_once(ir.from_proto(other), tmp_path / "b.vmfb", HOST)
    with pytest.raises(
        RunError, match=r"b\.vmfb: output 'o' is not what onnxruntime computes on random inputs: it differs by"
    ):
        check_once(ir.from_proto(model), tmp_path / "b.vmfb", HOST)


def test_outputs_of_unsigned_bytes() -> None:
    """IREE's runtime returns them as signed ones."""
    text = """<ir_version: 9, opset_import: ["": 18]> g (float[N, 40] x) => (uint8[N, 40] y) {
        scale = Constant<value_float = 0.01>()
        zero = Constant<value = uint8 {128}>()
        y = QuantizeLinear(x, scale, zero)
    }"""
    model = onnx.parser.parse_model(text)
    report = verify(model, seeds=2)
    report.check()
    compiled = next(c for c in report.checks if c.what.startswith("IREE"))
    assert compiled.ok
