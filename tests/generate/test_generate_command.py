"""`onnx-fa generate` and `onnx-fa bench --prompt`, as processes."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from tests.support import tiny_decoders
from tests.support.cli_process import run_main


def test_generate(tmp_path: Path) -> None:
    onnx.save(tiny_decoders.grouped(), tmp_path / "model.onnx")
    words = ("generate", ".", "--prompt-ids", "3,14,15,9,2", "--tokens", 6, "--report", "r.json")
    done = run_main("onnx_fa.cli.command", words, tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert done.stdout.split() == [str(t) for t in report["contestants"][0]["runs"][0]["tokens"]]
    assert len(done.stdout.split()) == 6
    assert "all 6 tokens are onnxruntime's" in done.stderr
    assert "2 of 2 caches are written in place" in done.stderr
    assert [c["kind"] for c in report["contestants"]] == ["onnx_fa", "onnxruntime"]
    assert all(c["in_place"] for c in report["caches"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("generate", "model.onnx", "--prompt-ids", "1", "--tokens", "0"), "--tokens 0: at least one is generated"),
        (("generate", "missing.onnx", "--prompt-ids", "1"), "missing.onnx: no such file or folder"),
        (("generate", "model.onnx"), "the following arguments are required: --prompt-ids"),
        (("bench", "model.onnx", "--prompt", "4"), "--prompt and --generate go together, and are at least 1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    onnx.save(tiny_decoders.grouped(), tmp_path / "model.onnx")
    done = run_main("onnx_fa.cli.command", options, tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
