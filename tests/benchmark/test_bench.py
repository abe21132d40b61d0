"""bench and plot on tiny models: files, columns, contestants, and what cannot run is said."""

from __future__ import annotations

import importlib
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onnx_fa.benchmark import plot
from onnx_fa.benchmark.models import ORT, STOCK, BenchResult, Contestant, bench
from onnx_fa.benchmark.plot import OURS
from onnx_fa.errors import MissingDependencyError, OnnxFaError
from tests.support import tiny
from tests.support.cli_process import run_main

# By import_module, because `onnx_fa.bench` may also be the function of that name.
bench_module = importlib.import_module("onnx_fa.benchmark.models")
PNG = b"\x89PNG\r\n\x1a\n"


def test_bench_writes_raw_samples_table_and_plot(tmp_path: Path) -> None:
    path = tiny.attention(tmp_path / "a.onnx", s="S")
    # What test_bench_command compiles as well.
    result = bench(path, rounds=2, calls=2, threads=1, stock_flags=bench_module.STOCK_FLAGS[:2], dims={"S": 24})
    assert [(c.what, len(c.samples), c.problem) for c in result.contestants] == [
        (STOCK, 4, ""),
        (STOCK, 4, ""),
        (OURS, 4, ""),
        (ORT, 4, ""),
    ]
    assert all(ms > 0 for c in result.contestants for _, ms in c.samples)
    assert all(c.error is not None and c.error < 1e-4 for c in result.contestants[:3])
    assert all(c.peak_bytes > 1 << 20 for c in result.contestants)
    assert result.contestants[2].flags.startswith("1 of 1 sites fused")

    written = result.write(tmp_path / "b")
    assert [p.name for p in written] == ["b.csv", "b.json", "b.md", "b.png"]
    rows = plot.read_csv(written[0])
    assert len(rows) == 16 and {r.model for r in rows} == {"a"} and {r.round for r in rows} == {0, 1}
    lines = written[0].read_text().splitlines()
    assert lines[0].startswith("# ") and lines[2] == "model,what,flags,round,ms,extra_bytes"
    (summary,) = json.loads(written[1].read_text())
    assert summary["machine"]["threads"] == 1 and "iree-base-compiler" in summary["machine"]["versions"]
    assert "(best)" in written[2].read_text() and written[2].read_text().startswith("| model | what |")
    assert written[3].read_bytes().startswith(PNG)


def test_contestants_find_idle_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each one's calls there is a pause; who has a problem is not waited for. Who begins changes from round to round."""
    done = list[str]()
    monkeypatch.setattr(bench_module, "SETTLE_S", 0.125)
    monkeypatch.setattr(bench_module.time, "sleep", lambda s: done.append(f"{s}"))

    def run(name: str) -> tuple[list[float], int]:
        done.append(name)
        return [1.0], 7

    contestants = [Contestant("a"), Contestant("b", problem="no"), Contestant("c")]
    field = [(c, partial(run, c.what)) for c in contestants]
    bench_module.play_rounds(field, 2, lambda message: None)
    assert done == ["0.125", "a", "0.125", "c", "0.125", "c", "0.125", "a"]
    assert field[0][0].samples == [(0, 1.0), (1, 1.0)] and field[0][0].peak_bytes == 7


def test_stock_that_does_not_compile_is_reported(tmp_path: Path) -> None:
    result = bench(tiny.standard(tmp_path / "s.onnx"), rounds=1, calls=1, stock_flags=[()])
    stock, ours, ort = result.contestants
    assert (stock.what, stock.samples) == (STOCK, []) and stock.problem
    assert ours.samples and ort.samples and not ours.problem and not ort.problem
    assert result.best(STOCK) is None and result.ratio(OURS, STOCK) is None and result.ratio(OURS, ORT) is not None
    assert stock.problem in result.table()


def test_bench_command(tmp_path: Path) -> None:
    tiny.attention(tmp_path / "a.onnx", s="S")
    args = ["bench", "a.onnx", "--rounds", "1", "--dim", "S=24", "--no-plot"]
    done = run_main("onnx_fa.cli.command", args, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "stock IREE (best)" in done.stdout and "round 1 of 1" in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.bench.csv", "a.bench.json", "a.bench.md", "a.onnx"]


def _result() -> BenchResult:
    def contestant(what: str, flags: str, *ms: float) -> Contestant:
        return Contestant(what, flags, [(n, t) for n, t in enumerate(ms)])

    field = (
        contestant(STOCK, "defaults", 4.0, 6.0, 5.0),
        contestant(STOCK, "--fast", 2.0, 9.0, 2.0),
        contestant(OURS, "", 1.0, 1.0, 7.0),
    )
    return BenchResult("m", field, bench_module.machine_facts(2) | {"method": "m"})


def test_best_is_by_median_and_survives_the_csv(tmp_path: Path) -> None:
    result = _result()
    best = result.best(STOCK)
    assert best is not None and best.flags == "--fast" and best.median_ms == 2.0
    assert result.ratio(OURS, STOCK) == 0.5
    result.write(tmp_path / "b", plot=False)
    assert plot.medians(plot.read_csv(tmp_path / "b.csv")) == {"m": {STOCK: 2.0, OURS: 1.0}}


def test_a_contestant_has_one_colour_however_it_is_called() -> None:
    own, called, kept = (plot.colour(f"onnx_fa{how}") for how in ("", ", call", ", call, buffers kept"))
    assert own[0] == called[0] == kept[0] and own[1] > called[1] > kept[1] > 0.2
    assert (
        len({plot.colour(who)[0] for who in (OURS, STOCK, "onnxruntime", "torch SDPA", "cuDNN", "nobody known")}) == 6
    )


def test_plot_needs_only_the_csv(tmp_path: Path) -> None:
    _result().write(tmp_path / "b", plot=False)
    for end in ("json", "md"):
        (tmp_path / f"b.{end}").unlink()
    plot.plot(tmp_path / "b.csv", tmp_path / "b.png")
    assert (tmp_path / "b.png").read_bytes().startswith(PNG)
    (tmp_path / "c.csv").write_text("a,b\n1,2\n")
    with pytest.raises(OnnxFaError, match="not a CSV"):
        plot.plot(tmp_path / "c.csv", tmp_path / "c.png")
    with pytest.raises(OnnxFaError, match="cannot be read"):
        plot.read_csv(tmp_path / "none.csv")
    with pytest.raises(OnnxFaError, match="cannot be written"):
        plot.plot(tmp_path / "b.csv", tmp_path / "none" / "b.png")


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _result().write(tmp_path / "b", plot=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match="matplotlib"):
        plot.plot(tmp_path / "b.csv", tmp_path / "b.png")

    def no_spec(name: str) -> Any:
        return None

    monkeypatch.setattr(bench_module, "find_spec", no_spec)
    with pytest.raises(MissingDependencyError, match="onnxruntime"):
        bench(tiny.attention(tmp_path / "a.onnx"))
