"""The tuner on tiny attentions: what it writes, what it refuses, how it goes on after an interruption. No time is asserted."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onnx_fa.errors import OnnxFaError
from onnx_fa.kernels.tiles.database import Tiles, database_name, parse
from onnx_fa.spec.accuracy import expect
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import case, draw_operands
from onnx_fa.spec.target import Target, parse_target
from onnx_fa.spec.terms import Causal
from onnx_fa.tuning import command, search
from onnx_fa.tuning.command import tune
from onnx_fa.tuning.journal import Journal
from onnx_fa.tuning.program import Program
from onnx_fa.tuning.search import Search, Settings, journal_head
from onnx_fa.tuning.spaces import body_of, space
from tests.support import tiny
from tests.support.cli_process import run_main

ROOT = Path(__file__).resolve().parents[2]
HOST = parse_target("cpu-host")
NAME = database_name(HOST)
WITHOUT_GPU = pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="CUDA's device is here")
QUICK = Settings(rounds=2, calls=1, threads=1, candidates=2)
TINY = case("tiny", batch=(1,), Hq=1, Hkv=1, Sq=40, Skv=33, D=8, Dv=8, masks=(Causal(),))


def cli(*args: object, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = run_main("onnx_fa.cli.command", ("tune", *args), cwd, timeout_s=240)
    assert done.returncode == code, done.stderr
    return done


def test_command_writes_a_database_that_the_compiler_uses(tmp_path: Path) -> None:
    model = tiny.attention(tmp_path / "a.onnx", s="S", d=24)  # which no tiles of AMX divide
    quick = ("--candidates", 1, "--rounds", 1, "--calls", 1, "--threads", 1)
    out = tmp_path / f"{NAME}.json"
    done = cli(model, "--dim", "S=40", "--out", out, *quick, cwd=tmp_path)
    assert "vector f32 D24 dynamic queries, dynamic keys, mask tensor" in done.stdout and f"wrote {out}" in done.stderr
    database = parse(out.read_text(), "out")
    (entry,) = database.entries
    assert database.target == NAME and not entry.refused and entry.choices[0].cost == 1.0
    assert all(c.samples_ms for c in entry.choices)
    assert {"machine", "date", "versions", "method", "threads", "rounds", "spread"} <= set(entry.measured)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["a.onnx", out.name])

    cli("--case", "bench_decode", "--out", out, *quick, "-q", cwd=tmp_path)
    both = parse(out.read_text(), "out").entries
    assert len(both) == 2 and both[1] == entry

    env = {**os.environ, "PYTHONPATH": str(ROOT), "ONNX_FA_TUNING": str(tmp_path)}
    command = [sys.executable, "-m", "onnx_fa", "inspect", str(model)]
    text = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=True).stdout
    assert f"{NAME}: {entry.family}; the same family" in text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--case", "no_such"), "no case 'no_such'"),
        (("a.onnx", "--case", "bench_vit"), "not both"),
        (("missing.onnx",), "missing.onnx"),
        (("a.onnx",), "S has no size: give --dim S=SIZE"),
        (("--rounds", "0"), "--rounds must be at least 1"),
        (("--candidates", "0"), "--candidates must be at least 1"),
        (("--memory", "-1"), "--memory must be above 0"),
        (("--timeout", "0"), "not a number of seconds"),
        (("--target", "cpu-none"), "unknown target"),
        (("--target", "cpu-neon" if NAME != "cpu-neon" else "cpu-avx2"), "cannot be measured here"),
        pytest.param(("--target", "cuda", "--kernels", "triton"), "device cuda: ", marks=WITHOUT_GPU),
        pytest.param(("--target", "cuda-sm_90", "--case", "gpu_decode"), "device cuda: ", marks=WITHOUT_GPU),
        (("--target", "rocm-gfx942"), "device hip: "),
        (("--case", "bench_vit", "--out", "no/where.json"), "cannot be written"),
        (("--case", "bench_vit", "--out", "other.json"), "a database of cpu-other"),
        (("--case", "bench_vit", "--out", "broken.json"), "not a tuning database"),
        (("--case", "bench_vit", "--body", "none"), "no tiles to tune"),
    ],
)
def test_bad_input_is_one_line(args: tuple[str, ...], words: str, tmp_path: Path) -> None:
    tiny.attention(tmp_path / "a.onnx", s="S")
    (tmp_path / "other.json").write_text('{"format": 1, "target": "cpu-other", "entries": []}')
    (tmp_path / "broken.json").write_text("{")
    before = sorted(p.name for p in tmp_path.iterdir())
    done = cli(*args, cwd=tmp_path, code=2)
    assert words in done.stderr and done.stderr.startswith("onnx-fa: error: ") and done.stderr.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def _search(folder: Path, settings: Settings = QUICK, **options: Any) -> Search:
    folder.mkdir(exist_ok=True)
    journal = Journal(folder / "journal", journal_head(HOST, settings))
    return Search(TINY, HOST, settings, folder, journal, **options)


def _sabotaged(bad: Tiles) -> Any:
    """An emitter whose kernel computes something else when asked for `bad`."""

    def make(spec: AttentionSpec, target: Target, name: str, tiles: Tiles) -> Program:
        wrong = dataclasses.replace(spec, scale=spec.scale * 1.001) if dict(tiles) == dict(bad) else spec
        return space("vector").emit(wrong, target, name, tiles)

    return make


def test_wrong_numbers_are_refused(tmp_path: Path) -> None:
    default = space("vector").default(TINY.spec, HOST)
    entry = _search(tmp_path, make=_sabotaged(default)).run()
    (refused,) = [r for r in entry.refused if r.tiles == default]
    assert refused.reason.startswith("wrong numbers: relative error")
    assert entry.choices and all(c.tiles != default for c in entry.choices)
    only = dataclasses.replace(QUICK, candidates=1)
    with pytest.raises(OnnxFaError, match=r"tiny: no candidate gives the right numbers; the first: wrong numbers"):
        _search(tmp_path / "only", only, make=_sabotaged(default)).run()


def test_tiles_that_do_not_compile_in_time_are_refused(tmp_path: Path) -> None:
    settings = dataclasses.replace(QUICK, compile_timeout_s=0.01, candidates=1)
    with pytest.raises(OnnxFaError, match=r"iree-compile was stopped after 0.01 s"):
        _search(tmp_path, settings).run()


def test_candidates_take_turns_and_options_are_tried(tmp_path: Path) -> None:
    notes: list[str] = []
    entry = _search(tmp_path, note=notes.append).run()
    turns = [n.split(": ", 2) for n in notes if "tiles, round" in n]
    assert len({t[2] for t in turns[:2]}) == 2 and turns[0][2] == turns[3][2]  # A B, then B A
    assert any("--iree-llvmcpu-loop-unrolling=false" in n for n in notes)
    assert entry.choices == tuple(sorted(entry.choices, key=lambda c: c.cost))
    rounds = [r for c in entry.choices for r, _ in c.samples_ms]
    assert min(rounds) == 0 and all(ms > 0 for c in entry.choices for _, ms in c.samples_ms)


def test_an_interrupted_search_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[Path] = []
    real = search.benchmark_module

    def counted(vmfb: Path, *args: Any, **options: Any) -> Any:
        timed.append(vmfb)
        return real(vmfb, *args, **options)

    monkeypatch.setattr(search, "benchmark_module", counted)

    def interrupt(message: str) -> None:
        if "around, round 2" in message:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _search(tmp_path, note=interrupt).run()
    before = len(timed)
    with (tmp_path / "journal").open("a") as journal:
        journal.write('\n["cut o')  # as a kill in the middle of a line leaves it
    entry = _search(tmp_path).run()
    assert before >= 5 and len(timed) > before
    assert len(timed) == sum(len(c.samples_ms) for c in entry.choices) + _dropped(tmp_path, entry)
    assert _search(tmp_path).run().choices == entry.choices  # all of it is in the journal now
    changed = dataclasses.replace(QUICK, threads=2)
    assert Journal(tmp_path / "journal", journal_head(HOST, changed)).resumed == 0


def _dropped(folder: Path, entry: Any) -> int:
    """Timed calls that the entry does not show: options that brought nothing."""
    lines = [json.loads(x) for x in (folder / "journal").read_text().splitlines()[1:] if x.endswith("]")]
    samples = [v for k, v in lines if isinstance(v, list)]
    return len(samples) - sum(len(c.samples_ms) for c in entry.choices)


def test_tune_keeps_the_database_whole(tmp_path: Path) -> None:
    out = tmp_path / f"{NAME}.json"

    def interrupt(message: str) -> None:
        if "options, round 1" in message:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune([TINY], HOST, out, QUICK, note=interrupt)
    assert not out.exists()
    again = dataclasses.replace(TINY, name="again")
    no_kernel = case("no_kernel", dtype="f64")
    notes: list[str] = []
    path, entries, left_out = tune([TINY, again, no_kernel], HOST, out, QUICK, note=notes.append)
    assert "results of an interrupted run are used" in notes[0]
    assert parse(path.read_text(), "out").entries == tuple(entries) and len(entries) == 1
    assert left_out[0] == "again: of the same family as tiny" and left_out[1].startswith("no_kernel: f64")
    assert [p.name for p in tmp_path.iterdir()] == [out.name]
    with pytest.raises(OnnxFaError, match="nothing to tune"):
        tune([no_kernel], HOST, out, QUICK)


def test_sites_whose_tiles_follow_a_rule_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And others are tuned all the same."""
    longer = case("longer", Sq=128, Skv=128)
    monkeypatch.setattr(command, "body_of", lambda spec, *_: "split" if spec.Sq == 128 else body_of(spec, *_))
    _, (entry,), left_out = tune([longer, TINY], HOST, tmp_path / f"{NAME}.json", QUICK)
    assert entry.case.startswith(TINY.name) and left_out == [
        "longer: its kernel is split, which has its tiles by a rule; --body vector tunes that of vectors"
    ]


@pytest.mark.parametrize("body", [pytest.param("vector", marks=pytest.mark.whole), "few"])
def test_every_space_offers_tiles_that_compute_the_right_thing(body: str, tmp_path: Path) -> None:
    """The whole of it, on one case: what is not refused as not fitting agrees with the reference."""
    spec = dataclasses.replace(TINY.spec, Sq=5 if body == "few" else 70)
    own = space(body)
    grid = list(own.first(spec, HOST))
    assert len({repr(sorted(t.items())) for t in [*grid, *own.around(spec, grid[0])]}) >= 5
    operands = draw_operands(spec, 0)
    wanted = expect(spec, operands)
    settings = dataclasses.replace(QUICK, body=body, rounds=1, candidates=3)
    entry = Search(
        dataclasses.replace(TINY, spec=spec), HOST, settings, tmp_path, Journal(tmp_path / "j", {"a": body})
    ).run()
    assert entry.family.body == body and not [r for r in entry.refused if "wrong" in r.reason]
    assert wanted.compare(operands[0][..., :1]).problem.startswith("shape")
