"""The commands of IREE's tools that `compile` and `rewrite --spec` print: they are run as they are printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnx_fa.cli.command import main
from onnx_fa.cli.iree_lines import _splat
from tests.support import tiny

TOOLS = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The commands, in order."""
    return re.findall(r"^(?:run it with|time it with|then): (.*)$", capsys.readouterr().err, re.M)


def run(command: str, cwd: Path) -> str:
    done = subprocess.run(shlex.split(command), cwd=cwd, env=TOOLS, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


@pytest.mark.parametrize("weights", ["archive", "embed"])
def test_a_compiled_module(
    weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.encoder(tmp_path / "an encoder.onnx", d=160)
    assert not main(["compile", "an encoder.onnx", "-o", "an encoder.vmfb", "--parameters", weights])
    once, often = printed(capsys)
    assert "2x24x160xf32=" in run(once, tmp_path)
    assert "BM_main_graph" in run(f"{often} --benchmark_min_time=1x", tmp_path)
    assert ("--parameters=" in once) == (weights == "archive")


def test_free_dims_have_an_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.attention(tmp_path / "free.onnx", s="S", batch="N")
    assert not main(["compile", "free.onnx", "-o", "free.vmfb", "--dim", "S=21"])
    once, _ = printed(capsys)
    assert "37x2x21x16xf32=" in run(once, tmp_path)


def test_the_stock_road(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.attention(tmp_path / "a.onnx")
    assert not main(["rewrite", "a.onnx", "-o", "b.onnx", "--target", "cpu-host", "--spec", "b.spec.mlir"])
    import_, compile_, once, often = printed(capsys)
    for command in (import_, compile_):
        run(command, tmp_path)
    assert "1x2x20x16xf32=" in run(once, tmp_path)
    assert "BM_main_graph" in run(f"{often} --benchmark_min_time=1x", tmp_path)


def test_inputs_that_cannot_be_made_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = onnx.load(tiny.attention(tmp_path / "a.onnx"))
    model.graph.input.append(helper.make_tensor_value_info("never", TensorProto.COMPLEX64, [2]))
    onnx.save(model, "b.onnx")
    assert not main(["rewrite", "b.onnx", "-o", "c.onnx", "--target", "cpu-host", "--spec", "b.spec.mlir"])
    assert "--input=... (input 'never' has element type" in printed(capsys)[2].replace("'\"'\"'", "'")


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.full((2, 3), 0.126, np.float32), "2x3xf32=0.13"),
        (np.array(7, np.int64), "i64=7"),
        (np.array([True, True, False]), "3xi1=1"),
        (np.zeros((0, 4), np.float16), "0x4xf16=0.00"),
        (np.array([200, 200], np.uint8), "2xui8=200"),
    ],
)
def test_an_example_of_an_array(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], text: str) -> None:
    assert _splat(array) == text
