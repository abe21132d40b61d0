"""The search on shapes beside slow drawn ones: a neighbour is near and no drawn case, and what is tried may run."""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onnx_fa.kernels.plan.folding import fold_queries
from onnx_fa.kernels.triton.columns import columns_computed
from onnx_fa.kernels.triton.tiles import can_run, is_few, tuned
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.drawn_cases import REPORTED_SEED, draw_cases

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import search_known  # noqa: E402

DRAWN = [c.spec for c in draw_cases("gpu", search_known.SEED, 100)]


def test_neighbours() -> None:
    """They have other lengths, of the same kind, and none of them is a drawn case."""
    for spec in DRAWN:
        found = search_known.neighbour(spec)
        assert found == search_known.neighbour(spec) and found not in DRAWN
        assert replace(found, Sq=spec.Sq, Skv=spec.Skv) == spec
        assert (found.Sq == found.Skv or spec.Sq != spec.Skv) and (found.Sq == 1) == (spec.Sq == 1)
        assert (int(found.Skv) % 64 == 0 or int(spec.Skv) % 64) and found.Skv != spec.Skv
        assert 64 <= int(found.Skv) <= max(int(spec.Skv) + 64, int(1.4 * int(spec.Skv)))


def test_what_is_searched(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow cases with their neighbours, or drawn ones of another seed than the one that benchmarks report."""
    slow = list(search_known.wanted_cases(""))
    assert slow[0][0] > 1.4 and all(ratio > 1 and list(pair) == ["drawn", "neighbour"] for ratio, pair in slow)
    drawn = draw_cases("gpu", 2, 3)
    assert [pair for _, pair in search_known.wanted_cases("2:3")] == [{"drawn": c.spec} for c in drawn]
    assert [pair for _, pair in search_known.wanted_cases("2:3,3:1")][3:] == [
        {"drawn": draw_cases("gpu", 3, 1)[0].spec}
    ]
    for said in (f"{REPORTED_SEED['gpu']}:3", f"2:3,{REPORTED_SEED['gpu']}:3"):
        monkeypatch.setattr(sys, "argv", ["search_known.py", "build", "x", "--drawn", said])
        with pytest.raises(SystemExit):
            search_known.main()
        assert "benchmarks report that seed" in capsys.readouterr().err


@pytest.mark.parametrize("n", range(0, 100, 9))
def test_candidates(n: int) -> None:
    """The tiles in use come first, and all have a chance to run."""
    spec = fold_queries(DRAWN[n])
    found = list(search_known.candidates(spec))
    assert found[0] == tuned(spec, 90)[0] and len(set(found)) == len(found) > 3
    assert all(can_run(spec, c, 90) and (c.BM <= 16) == is_few(spec) for c in found)
    if not spec.masks:
        assert {c.order for c in found} == {0}


def test_one_query_alone() -> None:
    """Where one query alone is searched more is tried of it, with few keys the most, and nothing else of many queries."""
    one = sorted((s for s in DRAWN if s.Sq == 1), key=lambda s: int(s.Skv))
    many = next(s for s in DRAWN if s.Sq == s.Skv)
    for spec in map(fold_queries, (one[0], one[-1], many)):
        usual, more = (set(search_known.candidates(spec, decode=decode)) for decode in (False, True))
        assert (more == usual) == (not is_few(spec))
        novel = {(c.BN, c.warps, c.stages) for c in more if c.BM <= 16} & set(search_known.NOVEL)
        assert bool(novel) == (is_few(spec) and int(spec.Skv) <= search_known.NOVEL_KEYS)


def test_kinds() -> None:
    """Many queries with few keys are tried with all keys in one block, few workgroups with keys in parts; cross attention is of the
    former those with another number of queries."""
    short, cross, idle = ([s for s in DRAWN if search_known.KINDS[kind](s)] for kind in ("short", "cross", "idle"))
    assert len(short) > len(cross) > 0 and len(idle) > 0 and set(cross) <= set(short)
    assert all(s.Sq != s.Skv for s in cross) and not set(short) & set(idle)
    for kind, specs in (("short", short), ("idle", idle)):
        for spec in map(fold_queries, specs[::3]):
            found = list(search_known.CANDIDATES[kind](spec))
            assert found[0] == tuned(spec, 90)[0] and all(can_run(spec, c, 90) for c in found)
            if kind == "short":
                assert spec.D > 128 or any(int(spec.Skv) <= c.BN for c in found)
            else:
                assert {c.splits for c in found} >= set(search_known.IDLE_PARTS)


def test_heads_of_one_tile() -> None:
    with search_known.one_tile():
        assert columns_computed(72) == 128
    assert columns_computed(72) == 80


def test_what_the_table_gets(tmp_path: Path) -> None:
    """Medians of all that was measured, those of heads in one tile as such."""
    with (tmp_path / "tiles-known.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("case", "kind", *search_known.SIZES, "what", "ms"))
        writer.writerow(("a", "drawn", 80, 80, 0, 8, 500, 500, "64x64/4/2/0/1/0", "9 9"))
        writer.writerow(("b", "neighbour", 80, 80, 0, 8, 600, 600, "64x64/4/2/0/1/0", "1 2 7"))
        writer.writerow(("b", "neighbour", 80, 80, 0, 8, 600, 600, "64x64/4/2/0/1/0 128 columns", "3 4 9"))
        writer.writerow(("b", "neighbour", 80, 80, 0, 8, 600, 600, "cuDNN", "0.5"))
        writer.writerow(("c", "drawn", 64, 64, 0, 8, 600, 77, "64x128/4/1/4/1/0", "0.25"))
    found = search_known.read_known(tmp_path / "tiles-known.csv")
    assert found == {
        (80, 80, 0, 8, 500, 500): {"64x64/4/2/0/1/0": 9.0},
        (80, 80, 0, 8, 600, 600): {"64x64/4/2/0/1/0": 2.0, "cuDNN": 0.5},
        (128, 128, 0, 8, 600, 600): {"64x64/4/2/0/1/0": 4.0},
        (64, 64, 0, 8, 600, 77): {"64x16/4/1/4/1/0": 0.25},  # held keys are a block of any size
    }
    assert search_known.read_known(tmp_path / "nothing.csv") == {}


class _Samples:
    """Times that need no GPU: a contestant takes as many ms as its name has letters; what has no time is a note."""

    def __init__(self, name: str, spec: AttentionSpec) -> None:
        self.name, self.kind, self.rows, self.notes = name, "plain", list[tuple[Any, ...]](), list[str]()

    def contestant(self, what: str, make: Any) -> None:
        self.rows += [(self.name, what, "", i, len(what) + i) for i in range(3)]

    def medians(self) -> dict[str, float]:
        return {}


def test_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What a run writes is what a report and the table read, and no case begins after the last second."""
    kernels = [{"what": w} for w in ("64x64/4/2/0/1/0", "64x64/4/2/0/1/0 64 columns")]
    item = {"spec": DRAWN[0].to_dict(), "shape": [48, 48, 0, 8, 500, 500], "kernels": kernels}
    cases = [item | {"what": what} for what in ("drawn", "neighbour")]
    (tmp_path / "manifest.json").write_text(json.dumps({"cases": cases}))
    cuda = SimpleNamespace(get_device_name=lambda: "a GPU")
    cudnn = SimpleNamespace(cudnn=SimpleNamespace(version=lambda: 9))
    torch = SimpleNamespace(zeros=lambda *a, **k: None, cuda=cuda, backends=cudnn, __version__="2")
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(search_known, "start_slices", lambda *command: [SimpleNamespace(wait=lambda: 0)])
    monkeypatch.setattr(search_known.bench_gpu, "Samples", _Samples)
    others = [(name, None) for name in (*search_known.PEERS, "copy")]
    monkeypatch.setattr(search_known.bench_gpu, "torch_contestants", lambda *a: others)
    search_known.run(tmp_path, tmp_path / "out", 600)
    assert search_known.read_known(tmp_path / "out" / "tiles-known.csv") == {
        (48, 48, 0, 8, 500, 500): {"FlashAttention-2": 17, "cuDNN": 6, "64x64/4/2/0/1/0": 16},
        (64, 64, 0, 8, 500, 500): {"64x64/4/2/0/1/0": 27},
    }
    capsys.readouterr()
    search_known.report(tmp_path / "out")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[0].startswith(f"drawn {search_known.title_of(DRAWN[0])}: 6.0000 ms; in use 64x64")
    search_known.run(tmp_path, tmp_path / "none", -1)
    assert "2 cases are left out" in capsys.readouterr().out
    assert not search_known.read_known(tmp_path / "none" / "tiles-known.csv")
