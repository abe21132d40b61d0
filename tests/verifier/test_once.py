"""`compile --check`: a module that computes something else is found, one that is right is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnx_fa.cli.command import main
from onnx_fa.errors import RunError
from onnx_fa.iree.compile import compile_model
from onnx_fa.spec.target import parse_target
from onnx_fa.verifier.once import check_once
from tests.support import tiny

HOST = parse_target("cpu-host")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny.attention(tmp_path / "a.onnx", s="S", batch="N")
    assert not main(["compile", str(model), "-o", str(tmp_path / "a.vmfb"), "--check", "--dim", "S=19"])
    assert "one run on random inputs equals onnxruntime's" in capsys.readouterr().err


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
