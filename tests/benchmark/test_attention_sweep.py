"""onnx-fa bench without a model: the command as a process, what it writes, and the picture of a CSV."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from onnx_fa.benchmark import plot
from onnx_fa.benchmark import sweep as attention_sweep
from onnx_fa.benchmark.case_result import CaseResult
from onnx_fa.benchmark.models import BLOCKED, COMPILED, EAGER, ORT, STOCK, TORCH, Contestant
from onnx_fa.benchmark.plot import OURS
from onnx_fa.errors import OnnxFaError
from onnx_fa.spec.terms import Causal
from tests.support.cli_process import run_main

ROOT = Path(__file__).resolve().parents[2]
PNG = b"\x89PNG\r\n\x1a\n"


def bench(folder: Path, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_main("onnx_fa.cli.command", ("bench", *args), folder, {**os.environ, **env}, timeout_s=300)


@pytest.mark.whole
def test_a_tiny_sweep(tmp_path: Path) -> None:
    """Everybody is timed, right, and in every file; there is no CUDA device here, or it is in the table too."""
    pytest.importorskip("torch")
    args = ("--heads", "2", "--head-dim", "16", "--seq", "24", "--rounds", "1", "--causal", "-o", "s")
    done = bench(tmp_path, *args)
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["s.csv", "s.json", "s.md", "s.png"]
    rows = plot.read_csv(tmp_path / "s.csv")
    of = {r.what: r for r in rows if r.model == "B1 H2 S24 D16 causal"}
    missing = {line.split(":")[1].strip() for line in done.stdout.splitlines() if line.startswith("not timed: ")}
    assert {*of} | missing == {EAGER, TORCH, COMPILED, ORT, BLOCKED, STOCK, OURS} and missing <= {COMPILED}
    assert all(r.ms > 0 and r.extra_bytes is not None for r in rows)
    cases = json.loads((tmp_path / "s.json").read_text())["cases"]
    timed = [c for case in cases for c in case["contestants"] if c["what"] in of and not c["problem"]]
    assert all(c["error"] < 1e-4 for c in timed) and {c["what"] for c in timed} == {*of}
    assert "1 of 1 sites fused" in of[OURS].flags and of[EAGER].flags == "plain ops" and "is_causal" in of[TORCH].flags
    assert "not on CUDA: device cuda" in done.stderr or any("cuda" in r.model for r in rows)
    assert "| B1 H2 S24 D16 causal |" in (tmp_path / "s.md").read_text()
    assert (tmp_path / "s.png").read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "give a model, or --heads, --head-dim and --seq"),
        (("--heads", "8"), "give a model, or --heads, --head-dim and --seq"),
        (("m.onnx", "--seq", "8"), "give a model, or --heads, --head-dim and --seq"),
        (("--heads", "8,", "--head-dim", "64", "--seq", "8"), "not a list of numbers"),
        (("--heads", "8", "--head-dim", "64", "--seq", "8", "--batch", "0"), "at least 1"),
        (("--heads", "8", "--head-dim", "64", "--seq", "8", "--target", "rocm-gfx942"), "device hip"),
        (("--heads", "8", "--head-dim", "64", "--seq", "8", "-o", "no/where"), "cannot be written"),
        (
            ("--heads", "8", "--head-dim", "64", "--seq", "8", "--build-only"),
            "--build-only needs --modules and --target",
        ),
        (("m.onnx", "--modules", "m"), "--modules and --build-only are for --case, and for --heads"),
        (("--heads", "8", "--head-dim", "64", "--seq", "8", "--tf32"), "the target cpu-host has none"),
        (("--ablate", "m.onnx"), "--ablate has cases of its own"),
        (("--ablate", "--case", "x", "--no-plot"), "no case 'x'"),
        (("m.onnx", "--case", "tiny"), "give no model, and no sizes"),
        (("--case", "none", "--no-plot"), "no case 'none'"),
        (("--case", "tiny", "--build-only"), "--build-only needs"),
        (("m.onnx", "--switch", "exp2"), "--switch and --no-forms are for --ablate"),
    ],
)
def test_bad_input(args: tuple[str, ...], words: str, tmp_path: Path) -> None:
    done = bench(tmp_path, *args)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


def test_the_cases_are_all_combinations() -> None:
    cases = attention_sweep.sweep_cases([8, 32], [64], [256, 512], causal=True, dtype="f16", target="cuda")
    assert [c.title for c in cases] == [f"B1 H{h} S{s} D64 causal f16 cuda" for h in (8, 32) for s in (256, 512)]
    spec = cases[-1].spec
    assert (spec.Hq, spec.Hkv, spec.Sq, spec.Skv, spec.D, spec.dtype) == (32, 32, 512, 512, 64, "f16")
    assert spec.masks == (Causal(),) and spec.scale == 0.125


def result(length: int, ours: float, stock: float, problem: str = "") -> CaseResult:
    found = [Contestant(w, samples=[(0, ms)], extra_bytes=1 << 20) for w, ms in ((OURS, ours), (STOCK, stock))]
    found.append(Contestant(COMPILED, problem=problem))
    return CaseResult(f"s{length}", f"B1 H8 S{length} D64", False, 0, tuple(found), 1.0)


def test_the_table_and_the_picture(tmp_path: Path) -> None:
    results = [result(256, 1.0, 4.0, "no compiler"), result(512, 2.0, 10.0, "no compiler")]
    row = dict(zip(attention_sweep.HEAD, attention_sweep.rows(results)[1], strict=True))
    assert (row["onnx_fa, ms"], row["to stock IREE"], row["torch.compile, ms"]) == ("2.00", "0.20", "-")
    assert row["onnx_fa, MiB"] == "1.0"
    assert attention_sweep.problems(results) == ["torch.compile: no compiler (B1 H8 S256 D64, B1 H8 S512 D64)"]
    plan = attention_sweep.Plan(threads=1)
    written = attention_sweep.write(results, tmp_path / "s", plan)
    assert [p.suffix for p in written] == [".csv", ".json", ".md", ".png"] and "Not timed:" in written[2].read_text()
    written[3].unlink()
    attention_sweep.plot(written[0], written[3])
    assert written[3].read_bytes().startswith(PNG)
    (tmp_path / "m.csv").write_text("model,what,flags,round,ms\nbert,onnx_fa,,0,1.0\n")
    with pytest.raises(OnnxFaError, match="has no length"):
        attention_sweep.plot(tmp_path / "m.csv", tmp_path / "m.png")
