"""What the command line tells and refuses, in this process: reasons, counts, defaults, outputs, exit codes."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnx_fa.benchmark.models import BenchResult, Contestant
from onnx_fa.benchmark.plot import OURS
from onnx_fa.cli import main
from onnx_fa.cli.parser import make_parser
from onnx_fa.graph.free_dims import fix_dims, symbols
from onnx_fa.graph.io import load
from tests.support import tiny


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.attention(tmp_path / "a.onnx")


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from _parsers(sub)


def test_every_option_has_help_and_every_default_is_shown() -> None:
    seen = 0
    for parser in _parsers(make_parser()):
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                continue
            seen += 1
            name = f"{parser.prog} {action.option_strings or action.dest}"
            assert action.help, name
            counts = isinstance(action.default, (str, int, float)) and not isinstance(action.default, bool)
            if (counts and action.default not in (0, "", argparse.SUPPRESS)) or action.dest == "seed":
                assert "default" in action.help, name
    assert seen > 80


def test_rewrite_says_why_sites_are_left_alone(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["rewrite", str(model), "-o", str(tmp_path / "b.onnx"), "--form", "attention"]
    assert main(args) == 0
    said = capsys.readouterr().err
    assert "1 found, 0 in form attention, 1 left alone" in said
    assert "left alone: softmax (Softmax): form attention: " in said and "opset" in said
    assert main([*args, "-q"]) == 0
    assert capsys.readouterr().err == ""
    assert main([*args, "--strict"]) == 1
    assert "error: --strict: 1 left alone, the first: softmax" in capsys.readouterr().err
    assert main(["rewrite", str(model), "-o", str(tmp_path / "b.onnx"), "--strict"]) == 0


def test_import_counts_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of heads that are too wide for a GPU's registers."""
    model = tiny.attention(tmp_path / "wide.onnx", d=264)
    args = ["import", str(model), "-o", str(tmp_path / "a.mlir"), "--target", "metal"]
    assert main(args) == 0
    said = capsys.readouterr().err
    assert "1 found, 0 with a kernel, 1 left alone" in said and "left alone: softmax (Softmax): " in said
    assert main([*args, "--strict"]) == 1


def test_long_lists_of_nodes_are_cut(capsys: pytest.CaptureFixture[str]) -> None:
    from onnx_fa.cli.printing import note_left_alone
    from onnx_fa.match.misses import Miss

    misses = [Miss(f"n{i}", "Softmax", "why") for i in range(5)]
    note_left_alone(argparse.Namespace(verbose=0), misses)
    assert capsys.readouterr().err == "left alone: n0 (Softmax), n1 (Softmax), n2 (Softmax) and 2 more: why\n"
    note_left_alone(argparse.Namespace(verbose=1), misses)
    assert "n4 (Softmax): why" in capsys.readouterr().err


def test_report_to_standard_output(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(model), "--report", "-"]) == 0
    said = capsys.readouterr()
    assert len(json.loads(said.out)["sites"]) == 1 and "1 attention site found" in said.err
    assert main(["import", str(model), "-o", "-", "--report", "-"]) == 2
    assert "only one result" in capsys.readouterr().err
    assert main(["rewrite", str(model), "-o", "-"]) == 2
    assert "give a file" in capsys.readouterr().err


def test_the_model_read_is_not_overwritten(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = model.read_bytes()
    (tmp_path / "link.onnx").symlink_to(model)
    for output in (model, tmp_path / "link.onnx"):
        assert main(["rewrite", str(model), "-o", str(output)]) == 2
        assert "is the model that is read" in capsys.readouterr().err
        assert main(["compile", str(model), "-o", str(output)]) == 2
    assert model.read_bytes() == before
    assert main(["rewrite", str(model), "-o", str(model), "--force"]) == 0
    assert model.read_bytes() != before
    onnx.checker.check_model(str(model), full_check=True)


def test_compile_tells_and_run_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, module = str(tiny.attention(tmp_path / "a.onnx", s="S", mask=False)), str(tmp_path / "a.vmfb")
    log, source = tmp_path / "a.vmfb.log", tmp_path / "a.vmfb.failed.mlir"
    log.write_text("$ iree-compile\n")
    source.touch()
    assert main(["compile", model, "-o", module, "--dim", "S=20", "-vv", "--strict"]) == 0
    assert not log.exists() and not source.exists()
    said = capsys.readouterr().err
    for words in ("iree-compile ...\n", "iree-compile: ", " s\n", "--iree-opt-data-tiling", "softmax: body=vector"):
        assert words in said
    assert "1 found, 1 with a kernel, 1 of them one fused dispatch, 0 left alone" in said and "dispatch " in said
    assert main(["compile", model, "-o", module, "--dim", "T=20"]) == 2
    assert "no such dim; its free dims are: S" in capsys.readouterr().err

    shape = "1x2x20x16xf32"
    assert main(["run", module, *["--input", shape] * 3]) == 0
    capsys.readouterr()
    for inputs, words in (
        ([shape], "the module takes 3 inputs, not 1; given: 1x2x20x16xfloat32"),
        ([shape, "2x2xf32", shape], "an input has the shape 2x2, and the module takes 1x2x20x16 there"),
        ([shape, "1x2x20x16xi64", shape], "an input is of type si64, and the module takes f32 there"),
    ):
        assert main(["run", module, *(f"--input={i}" for i in inputs)]) == 1
        assert words in capsys.readouterr().err
    named = ["run", module, "--random-inputs", model, "--dim", "S=20", "--input"]
    assert main([*named, f"k={shape}"]) == 0
    for given in ("k=1x2x20x17xf32", "k=1x2x20x16xf16", "k=2x2xf32"):
        assert main([*named, given]) == 2
        assert "does not fit the model's input, which is 1x2xSx16xfloat32" in capsys.readouterr().err


def test_a_log_of_someone_else_stays(tmp_path: Path) -> None:
    from onnx_fa.iree.dumps import remove_stale

    log, source = tmp_path / "m.vmfb.log", tmp_path / "m.vmfb.failed.mlir"
    source.touch()
    remove_stale(log)
    log.write_text("notes of mine")
    remove_stale(log)
    assert log.exists() and source.exists()


def test_run_of_a_file_that_is_no_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content in (b"", b"no module, but a text that is long enough", b"PK\3\4" + b"0" * 100):
        (tmp_path / "a.vmfb").write_bytes(content)
        assert main(["run", str(tmp_path / "a.vmfb")]) == 1
        said = capsys.readouterr().err
        assert "a.vmfb: not an IREE module" in said and "archive" not in said and "FlatBuffer" not in said


def test_bench_asks_for_matplotlib_first(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(*_: object, **__: object) -> None:
        raise AssertionError("measured before it was known that the plot can be drawn")

    monkeypatch.setattr("onnx_fa.cli.outputs.find_spec", lambda name: None)
    monkeypatch.setattr("onnx_fa.benchmark.models.bench", measured)
    monkeypatch.setattr("onnx_fa.benchmark.sweep.sweep", measured)
    assert main(["bench", str(model)]) == 2
    assert "onnx-fa[plot]" in capsys.readouterr().err
    assert main(["bench", "--heads", "2", "--head-dim", "16", "--seq", "8", "--target", "cpu-host"]) == 2
    assert "--no-plot" in capsys.readouterr().err


@pytest.mark.parametrize(("problem", "code"), [("", 0), ("it crashed", 1)])
def test_bench_fails_where_onnx_fa_failed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str, code: int
) -> None:
    ours = Contestant(OURS, problem=problem, samples=[] if problem else [(0, 1.0)])
    machine = {"cpu": "c", "cores": 2, "threads": 2, "date": "today", "versions": {}, "method": "none"}
    monkeypatch.setattr("onnx_fa.benchmark.models.bench", lambda *_, **__: BenchResult("m", (ours,), machine))
    assert main(["bench", str(model), "--no-plot", "-o", str(tmp_path / "r")]) == code


def test_verbose_leaves_other_libraries_quiet(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[int] = []
    monkeypatch.setattr(logging, "basicConfig", lambda level, **_: levels.append(level))
    for flags, own in (
        ([], logging.WARNING),
        (["-v"], logging.INFO),
        (["-vv"], logging.DEBUG),
        (["-q"], logging.ERROR),
    ):
        assert main(["explain", str(model), *flags]) == 0
        assert logging.getLogger("onnx_fa").level == own
    assert levels == [logging.WARNING, logging.WARNING, logging.WARNING, logging.ERROR]


def test_fixed_dims(tmp_path: Path) -> None:
    path = tiny.attention(tmp_path / "a.onnx", s="S", skv="past + S", batch="B")
    fixed = fix_dims(path, {"S": 4})
    shapes = {v.name: v.shape for v in (*fixed.graph.inputs, *fixed.graph.outputs)}
    assert [str(d) for d in shapes["q"]] == ["B", "2", "4", "16"] and shapes["o"][2] == 4  # type: ignore[index,union-attr]
    assert shapes["k"][2].value is None  # type: ignore[index,union-attr]
    assert symbols(fix_dims(path, {"S": 4, "past": 3, "B": 1})) == ()
    given = load(path)
    fix_dims(given, {"B": 1})
    assert symbols(given) == ("B", "S", "past")
    assert np.prod([d for d in fix_dims(path, {"S": 4, "past": 3}).graph.inputs[1].shape if isinstance(d, int)]) == 224  # type: ignore[union-attr]
