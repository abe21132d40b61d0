"""`bench --profile` as a process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onnx_fa.benchmark.time_parts import read
from tests.cli.test_cli import cli, error_line
from tests.support import tiny


def test_profile(tmp_path: Path) -> None:
    path = tiny.layer(tmp_path / "a.onnx")
    text = cli("bench", path, "--profile", "--rounds", 4, cwd=tmp_path).stdout
    for words in (
        "attention ",
        "linear sites ",
        "other dispatches ",
        "between dispatches ",
        "a call ",
        "longest dispatches",
    ):
        assert words in text
    (data,) = json.loads((tmp_path / "a.profile.json").read_text())
    parts = [data[f"{part}_ms"] for part in ("attention", "linear", "rest", "between")]
    assert sum(parts) == pytest.approx(data["call_ms"]) and parts[0] > 0 and min(parts) >= 0
    (made,) = read(tmp_path / "a.profile.csv")
    assert len(made.calls) == len(made.plain) == 4 and made.ms == pytest.approx(data["call_ms"], abs=1e-3)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--profile"], 2, "--profile needs a model"),
        (["a.onnx", "--profile", "--ablate"], 2, "it takes no --ablate"),
        (["a.onnx", "--profile", "--rounds", 0], 2, "must be at least 1"),
        (["none.onnx", "--profile"], 2, "none.onnx"),
        (["a.onnx", "--profile", "-o", "nowhere/p"], 2, "nowhere"),
        (["a.onnx", "--profile", "--target", "vulkan"], 2, "--profile is for CPUs"),
        (["a.onnx", "--profile", "--target", "cpu-z80"], 2, "unknown target"),
    ],
)
def test_bad_input(tmp_path: Path, options: list[object], code: int, words: str) -> None:
    tiny.layer(tmp_path / "a.onnx")
    assert words in error_line(cli("bench", *options, cwd=tmp_path, code=code))
