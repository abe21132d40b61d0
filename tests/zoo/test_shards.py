"""Shards of a zoo and their merging: each entry in one shard, and all shards of one run the same as a whole run."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from onnx_fa.cli.command import main
from onnx_fa.errors import OnnxFaError
from onnx_fa.zoo.compare import read_baseline, write_baseline
from onnx_fa.zoo.entries import Entry, default_file, folder_name, load
from onnx_fa.zoo.entry_run import EntryRun, Job
from onnx_fa.zoo.merge import merge
from onnx_fa.zoo.run import read_results, run
from onnx_fa.zoo.settings import Settings
from onnx_fa.zoo.shards import Shard, parse_shard, part, zoo_digest
from onnx_fa.zoo.stages import ALL_STEPS
from onnx_fa.zoo.step_process import record
from tests.support.cli_process import run_main


def test_shards_are_disjoint_and_complete() -> None:
    entries = load(default_file())
    for count in (1, 2, 3, 7, len(entries), len(entries) + 5):
        shards = [part(entries, Shard(i, count)) for i in range(1, count + 1)]
        assert sorted(e.name for s in shards for e in s) == sorted(e.name for e in entries)
        assert max(map(len, shards)) - min(map(len, shards)) <= 1
        # Whatever order the zoo has, and in that order.
        assert {e.name for e in part(entries[::-1], Shard(1, count))} == {e.name for e in shards[0]}
        assert [e for e in entries if e in shards[0]] == shards[0]
    assert part(entries, None) == entries


@pytest.mark.parametrize(
    "text", ["0/2", "3/2", "1/0", "1", "1/2/3", "a/b", "-1/2", "1/ 2", "", "1.0/2", "¹/2", "1/9999999"]
)
def test_what_is_no_shard(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="is no shard: i/n, with i from 1 to n"):
        parse_shard(text)
    with pytest.raises(SystemExit, match="2"):
        main(["zoo", "list", f"--shard={text}"])
    assert capsys.readouterr().err.count("\n") == 1


def test_the_digest_is_of_the_list_and_not_of_the_machine() -> None:
    entry = Entry("a", "path", "a.onnx", base="/here", sites=2)
    digest = zoo_digest([entry])
    assert digest == zoo_digest([dataclasses.replace(entry, base="/there")])
    assert digest != zoo_digest([dataclasses.replace(entry, sites=3)]) != zoo_digest([entry, entry])
    gone = Entry("b", "missing", "no b under /here")
    assert zoo_digest([gone]) == zoo_digest([dataclasses.replace(gone, of="no b under /there")])


# Runs with steps that do nothing: what is tried is what becomes of their results.

ENTRIES = [Entry(n, "family", n) for n in ("d/e", "b", "a", "c")]
QUICK = Settings(steps=("explain",))


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(state: Any, job: Job) -> dict[str, Any]:
        (state.folder / "model.onnx").write_bytes(b"model")
        if job.step == "explain":
            (state.folder / "sites.html").write_text(f"<p>site of {state.entry.name}</p>")
            if state.entry.name == "a":
                (state.folder / "explain.log").write_text("what it said")
                return record(False, "cannot be read", seconds=1.0)
        return {
            **record(True, "", seconds=1.0),
            "data": {"sites": [], "misses": []} if job.step == "explain" else {},
        }

    monkeypatch.setattr(EntryRun, "start", start)


def shards(folder: Path, count: int = 2, settings: Settings = QUICK, entries: list[Entry] = ENTRIES) -> list[Path]:
    made = []
    for i in range(1, count + 1):
        made.append(folder / f"part{i}")
        run(entries, "cpu-host", made[-1], settings, shard=Shard(i, count))
    return made


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_merged_shards_are_a_whole_run(tmp_path: Path, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The same results in the same order, the same reports with the same pictures, the same exit code."""
    run(ENTRIES, "cpu-host", tmp_path / "whole", QUICK)
    parts = shards(tmp_path, count)
    assert main(["zoo", "merge", str(tmp_path / "merged"), *map(str, reversed(parts))]) == 1  # one has failed
    assert "a: explain: cannot be read" in capsys.readouterr().out
    whole, merged = tmp_path / "whole", tmp_path / "merged"
    assert (merged / "results.jsonl").read_bytes() == (whole / "results.jsonl").read_bytes()
    assert json.loads((merged / "run.json").read_text()) == json.loads((whole / "run.json").read_text())
    machine = json.loads((whole / "run.json").read_text())["machine"]
    from onnx_fa.zoo.report import write_reports

    for path in write_reports(whole, read_results(whole / "results.jsonl"), machine):
        assert (merged / path.name).read_text() == path.read_text()
    assert "site of d/e" in (merged / "results.html").read_text()
    assert (merged / "work" / "a" / "explain.log").read_text() == "what it said"
    with pytest.raises(OnnxFaError, match="merged: a whole run, not a shard"):
        merge(tmp_path / "again", [merged])


def test_what_a_run_writes_of_itself(tmp_path: Path) -> None:
    (folder,) = shards(tmp_path, 1)
    said = json.loads((folder / "run.json").read_text())
    assert said["shard"] == "1/1" and said["zoo"] == {"digest": zoo_digest(ENTRIES), "entries": ["d/e", "b", "a", "c"]}
    assert said["settings"] == {"steps": ["export", "explain"], "rounds": 5, "calls": 5, "threads": 2, "stretch": 1.0}


def test_results_that_do_not_belong_together(tmp_path: Path) -> None:
    parts = shards(tmp_path)
    other = [
        (shards(tmp_path / "s", settings=Settings(steps=("export",))), "another value of steps than"),
        (
            shards(tmp_path / "r", settings=dataclasses.replace(QUICK, rounds=9)),
            "another value of rounds than .*: 9, not 5",
        ),
        (shards(tmp_path / "z", entries=[*ENTRIES[:3], Entry("c", "family", "x")]), "another zoo than"),
        (shards(tmp_path / "n", 3), "another number of shards than .*: 3, not 2"),
    ]
    for folders, why in other:
        with pytest.raises(OnnxFaError, match=f"part2: {why}"):
            merge(tmp_path / "out", [parts[0], folders[1]])
    with pytest.raises(OnnxFaError, match=r"shard 1/2 is there twice: .*part1 and .*copy"):
        merge(tmp_path / "out", [*parts, Path(shutil.copytree(parts[0], tmp_path / "copy"))])
    with pytest.raises(OnnxFaError, match="no results of shard 2 of 2"):
        merge(tmp_path / "out", parts[:1])
    with pytest.raises(OnnxFaError, match="the merged results need a folder of their own"):
        merge(parts[0], parts)
    assert not (tmp_path / "out").exists()


def test_another_target_and_other_versions(tmp_path: Path) -> None:
    parts = shards(tmp_path)
    path = parts[1] / "run.json"
    text = path.read_text()
    said = json.loads(text)
    for changed, why in (
        ({"target": "cuda-sm_80"}, "another target than .*: cuda-sm_80, not cpu-host"),
        ({"machine": said["machine"] | {"versions": {"onnx": "0"}}}, "another set of versions than"),
    ):
        path.write_text(json.dumps(said | changed))
        with pytest.raises(OnnxFaError, match=why):
            merge(tmp_path / "out", parts)
    # Other processors are what a CI has.
    path.write_text(json.dumps(said | {"machine": said["machine"] | {"cpu": "Other"}}))
    assert merge(tmp_path / "out", parts)[1]["cpu"] == f"{said['machine']['cpu']}; Other"


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("run.json", None, "cannot be read"),
        ("run.json", "{", "not of a shard"),
        ("run.json", "[]", "not of a shard"),
        ("run.json", '{"target": "cpu-host", "machine": {}}', "not of a shard"),  # of an older version
        ("results.jsonl", None, "cannot be read"),
        ("results.jsonl", "", "its results are not those of shard 1/2"),
        ("results.jsonl", '{"name": ["x"], "ok": true, "steps": {}}\n', "not a results file"),
    ],
)
def test_folders_that_hold_no_shard(tmp_path: Path, name: str, text: str | None, why: str) -> None:
    parts = shards(tmp_path)
    if text is None:
        (parts[0] / name).unlink()
    else:
        (parts[0] / name).write_text(text)
    with pytest.raises(OnnxFaError, match=why) as caught:
        merge(tmp_path / "out", parts)
    assert str(parts[0]) in str(caught.value) and "\n" not in str(caught.value)


def test_a_baseline_of_merged_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = tmp_path / "base.json"
    args = ["zoo", "merge", str(tmp_path / "out"), *map(str, shards(tmp_path)), "--baseline", str(base)]
    assert main([*args, "--update-baseline"]) == 1 and len(read_baseline(base)["entries"]) == 4
    results = read_results(tmp_path / "out" / "results.jsonl")
    write_baseline(base, [r | {"explain": {"sites": [{"variant": "mha"}], "misses": []}} for r in results], {})
    assert main(args) == 1 and "worse: b: 0 sites, 1 before" in capsys.readouterr().out
    assert main([*args[:-2], "--update-baseline"]) == 2 and "say which" in capsys.readouterr().err


def test_the_commands_as_processes(tmp_path: Path) -> None:
    """A run in two shards, one of them without a model, and their merging."""
    (tmp_path / "list.txt").write_text("gone/a.onnx\n")

    def said(*args: str) -> subprocess.CompletedProcess[str]:
        return run_main("onnx_fa.cli.command", ["zoo", *args], tmp_path)

    runs = [said("run", "--zoo", "list.txt", "--shard", f"{i}/2", "-o", f"r{i}", "--steps", "export") for i in (1, 2)]
    assert [r.returncode for r in runs] == [1, 0], runs
    done = said("merge", "r", "r1", "r2")
    assert done.returncode == 1 and "gone/a.onnx: export: " in done.stdout and "no such file" in done.stdout
    assert (tmp_path / "r" / "work" / folder_name("gone/a.onnx") / "export.log").is_file()
    again = said("merge", "r", "r1", "r1")
    assert again.returncode == 2 and again.stderr == "onnx-fa: error: shard 1/2 is there twice: r1 and r1\n"
    assert len(ALL_STEPS) > len(json.loads((tmp_path / "r" / "run.json").read_text())["settings"]["steps"]) == 1
