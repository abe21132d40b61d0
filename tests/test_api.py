"""What `import onnx_fa` gives, and what its functions say of a wrong argument."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import onnx_fa
from onnx_fa.benchmark.models import BenchResult, Contestant
from onnx_fa.cli import main
from onnx_fa.errors import RunError
from onnx_fa.verifier.verifier import VerifyReport
from tests.support import tiny


@pytest.mark.parametrize("name", onnx_fa.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(onnx_fa, name) is not None


def test_a_rewritten_path_is_saved(tmp_path: Path) -> None:
    path = tiny.attention(tmp_path / "a.onnx")
    of_path, _ = onnx_fa.rewrite(path)
    of_proto, _ = onnx_fa.rewrite(onnx.load(path))
    assert isinstance(of_path, ir.Model) and isinstance(of_proto, onnx.ModelProto)
    for n, model in enumerate((of_path, of_proto)):
        onnx_fa.save(model, tmp_path / f"{n}.onnx")
        onnx.checker.check_model(str(tmp_path / f"{n}.onnx"), full_check=True)
    assert (tmp_path / "0.onnx").read_bytes() == (tmp_path / "1.onnx").read_bytes()


def test_a_wrong_form_names_the_forms(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'flash': use one of decomposed, attention, blocked"):
        onnx_fa.rewrite(tiny.attention(tmp_path / "a.onnx"), "flash")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="decomposed, attention, blocked"):
        onnx_fa.export(None, (), form="flash")  # type: ignore[arg-type]


def test_errors_have_one_base() -> None:
    assert issubclass(RunError, onnx_fa.OnnxFaError)
    with pytest.raises(onnx_fa.OnnxFaError, match=r"x\.vmfb: cannot be read"):
        onnx_fa.run("x.vmfb", np.zeros(1))


def test_inputs_that_are_no_arrays_are_named(tmp_path: Path) -> None:
    module = tmp_path / "a.vmfb"
    onnx_fa.compile(tiny.attention(tmp_path / "a.onnx"), module)
    with pytest.raises(RunError, match="input 0 is a list; the module takes arrays, one after the other"):
        onnx_fa.run(module, [np.zeros((1, 2, 20, 16), np.float32)] * 3)  # type: ignore[arg-type]


def test_reports_are_short(tmp_path: Path) -> None:
    report = onnx_fa.explain(tiny.attention(tmp_path / "a.onnx", wrong=True))
    assert repr(report) == "RewriteReport(sites=1, misses=1)"
    assert repr(report.sites[0]) == "SiteReport('softmax', mha+addmask, original, fused=None)"
    assert repr(VerifyReport("m", "cpu-host", (), ())) == "VerifyReport('m', cpu-host, 0 of 0 comparisons agree)"
    contestants = (Contestant("onnx_fa", samples=[(0, 1.5)]), Contestant("onnxruntime", problem="none"))
    assert repr(BenchResult("m", contestants, {})) == "BenchResult('m', onnx_fa 1.5 ms, onnxruntime -)"


def test_errors_name_the_file_that_was_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = onnx.helper.make_node("Odd", ["x"], ["y"], "odd", domain="made.up")
    info = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1]) for n in "xy"]
    graph = onnx.helper.make_graph([node], "g", info[:1], info[1:])
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("made.up", 1)]
    path = tmp_path / "odd.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    for command in (["import", str(path), "-o", str(tmp_path / "o.mlir")], ["verify", str(path)]):
        assert main(command) != 0
        said = capsys.readouterr().err
        assert "onnx_fa-" not in said, said
        if command[0] == "import":
            assert f"error: {path}: node 'odd'" in said
