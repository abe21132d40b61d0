"""Configs of iree-test-suites: what they may say, which tests they make, and what an expected failure does to the exit code."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import tests.support.tiny as tiny
from onnx_fa.cli.command import main
from onnx_fa.errors import CompileError, OnnxFaError, RunError
from onnx_fa.spec.target import parse_target
from onnx_fa.zoo.collections import read
from onnx_fa.zoo.compare import compare, summary
from onnx_fa.zoo.entries import Entry, Suite
from onnx_fa.zoo.jsonc import read_jsonc
from onnx_fa.zoo.judge import judge
from onnx_fa.zoo.keys import key
from onnx_fa.zoo.stages import ALL_STEPS, OF_SUITE, steps_of
from onnx_fa.zoo.steps import STEPS
from onnx_fa.zoo.suite_steps import flags_for_any_device
from tests.support.forked_steps import forked_steps
from tests.zoo.test_lists import touch

CPU = {
    "config_name": "cpu",
    "iree_compile_flags": ["--iree-hal-target-backends=llvm-cpu"],
    "iree_run_module_flags": ["--device=local-sync"],
}
FLAGFILE = "run_module_io_flags.txt"
DOUBLED = """module {
  func.func @double(%x: tensor<4xf32>) -> tensor<4xf32> {
    %y = arith.addf %x, %x : tensor<4xf32>
    return %y : tensor<4xf32>
  }
}
"""


def config(folder: Path, text: str = "", **keys: Any) -> Path:
    path = folder / "config.json"
    path.write_text(text or json.dumps(CPU | keys))
    return path


# JSON with comments.


def test_comments_and_last_commas(tmp_path: Path) -> None:
    path = config(tmp_path, '{ // "a": 1,\n "b": ["x//y", "/* z */", "q\\"// ,]", ], /* c\n , */ "c": ",]", // last\n}')
    assert read_jsonc(path) == {"b": ["x//y", "/* z */", 'q"// ,]'], "c": ",]"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON: Expecting value"),
        ("{'a': 1}", "not JSON"),
        ("// nothing\n/* at\n all */ {\n", "line 4"),  # lines of the file, comments and all
        ('{"a": 1, "a": 2}', "'a' is there twice"),
        ('{"a": 1} /* open', "not JSON"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_json(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(OnnxFaError, match=why):
        read_jsonc(path)


# What a config may say.


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"config_name": 3}, "'config_name' is no string"),
        ({"iree_compile_flags": "--x"}, "'iree_compile_flags' is no list of strings"),
        ({"skip_run_tests": [1]}, "'skip_run_tests' is no list of strings"),
        ({"expected_compile_failure": []}, "unknown key 'expected_compile_failure'"),
        ({"tests_and_expected_outcomes": []}, "is no object"),
        (
            {"tests_and_expected_outcomes": {"a": "fails"}},
            "the outcome 'fails' of 'a' is none of skip, pass, fail-import",
        ),
        ({"tests_and_expected_outcomes": {}, "expected_run_failures": []}, "unknown key 'expected_run_failures'"),
        ({"tests_and_expected_outcomes": {"default": "skip"}}, "no test with an outcome other than skip"),
        ({"expected_run_failures": ["../x"]}, "'../x' leads out of the folder"),
        ({}, f"no {FLAGFILE} under"),
    ],
)
def test_mistakes_in_a_config_are_named(tmp_path: Path, keys: dict[str, Any], why: str) -> None:
    with pytest.raises(OnnxFaError, match=why) as caught:
        read(config(tmp_path, **keys), tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/config.json: ") and "\n" not in str(caught.value)


def test_a_config_that_is_none(tmp_path: Path) -> None:
    for text in ("[]", '{"config_name": "cpu"}'):
        with pytest.raises(OnnxFaError, match="not a config of iree-test-suites"):
            read(config(tmp_path, text), tmp_path)
    with pytest.raises(OnnxFaError, match="--models DIR says where they are"):
        read(config(tmp_path))


def test_the_tests_of_operators(tmp_path: Path) -> None:
    models = touch(tmp_path / "s", *(f"onnx/test_{n}/{FLAGFILE}" for n in "abcdefg"))
    touch(
        models,
        *(f"onnx/test_{n}/model.mlir" for n in "abcde"),
        "onnx/test_b/model.onnx",
        "onnx/test_f/x.mlir",
        "onnx/test_f/y.mlir",
    )
    entries = read(
        config(
            tmp_path, skip_compile_tests=["onnx/test_c"], skip_run_tests=["onnx/test_d", "onnx/test_y"],
            expected_compile_failures=["onnx/test_e", "onnx/test_z"], expected_run_failures=["onnx/test_a", "onnx/test_e"],
        ),
        models,
    )  # fmt: skip
    of = {e.name.removeprefix("onnx/test_"): e for e in entries}
    assert list(of) == list("abcdefgyz")
    assert {n: e.suite and e.suite.outcome for n, e in of.items()} == dict.fromkeys("bcdfgy", "pass") | {
        "a": "fail-run", "e": "fail-compile", "z": "fail-compile",
    }  # fmt: skip
    assert [of[n].of for n in "abz"] == [
        "onnx/test_a/model.mlir",
        "onnx/test_b/model.onnx",
        f"no onnx/test_z/{FLAGFILE} under {models}",
    ]
    assert {n for n, e in of.items() if e.source == "missing"} == set("fgyz")
    assert [s for s, _ in of["c"].skip] == list(ALL_STEPS) and [s for s, _ in of["d"].skip] == [
        "iree-run",
        "check",
        "verify",
        "bench",
    ]
    assert steps_of(of["a"]) == ("export", *OF_SUITE) and steps_of(of["b"]) == ALL_STEPS
    # What is expected says nothing of the results, the inputs do.
    a = replace(of["a"], base=str(models))
    assert a.suite is not None and Entry.from_dict(json.loads(json.dumps(a.to_dict()))) == a
    before = key(a, "cpu-host", {})
    assert before == key(replace(a, suite=replace(a.suite, outcome="pass")), "cpu-host", {})
    (models / "onnx/test_a/input_0.bin").write_bytes(b"x")
    assert key(a, "cpu-host", {}) != before


def test_the_tests_of_models(tmp_path: Path) -> None:
    where = "tests/model_zoo/validated/vision/classification_models_test.py"
    models = touch(
        tmp_path / "m", "validated/vision/classification/mnist/model/mnist-12.onnx", "validated/text/mnist/model/mnist-12.onnx",
        "alex/net.onnx", "x/twice.onnx", "y/twice.onnx", "plain/model.onnx",
    )  # fmt: skip
    outcomes = {
        f"{where}::test_models[mnist/model/mnist-12.onnx]": "pass",
        f"{where}::test_models[alex/net.onnx]": "fail-import",
        f"{where}::test_models[twice.onnx]": "fail-run",
        f"{where}::test_models[/etc/x.onnx]": "pass",
        f"{where}::test_none": "pass",
        f"{where}::test_plain": "fail-compile",
        f"{where}::test_gone": "skip",
    }
    entries = read(config(tmp_path, tests_and_expected_outcomes=outcomes), models)
    of = {e.name.removeprefix(f"{where}::test_"): e for e in entries}
    assert {n: (e.of if e.source == "path" else "", e.suite and e.suite.outcome) for n, e in of.items()} == {
        "gone": ("", None),
        "models[alex/net.onnx]": ("alex/net.onnx", "fail-import"),
        "models[mnist/model/mnist-12.onnx]": ("validated/vision/classification/mnist/model/mnist-12.onnx", "pass"),
        "models[twice.onnx]": ("", "fail-run"),
        "models[/etc/x.onnx]": ("", "pass"),
        "none": ("", "pass"),
        "plain": ("plain/model.onnx", "fail-compile"),
    }
    assert of["models[twice.onnx]"].of.startswith("several files twice.onnx under")
    assert "names no model under" in of["models[/etc/x.onnx]"].of
    assert of["none"].of == f"no none/model.onnx, none.onnx or none.tar.gz under {models}"
    assert [s for s, _ in of["gone"].skip] == list(ALL_STEPS)
    # Other than by default, what has no outcome of its own is a test too.
    more = read(config(tmp_path, tests_and_expected_outcomes={"default": "fail-run", **outcomes}), models)
    others = [e for e in more if e.name not in outcomes]
    assert [e.name for e in others] == ["validated/text/mnist/model/mnist-12.onnx", "x/twice.onnx", "y/twice.onnx"]
    assert {e.suite and e.suite.outcome for e in others} == {"fail-run"}


def test_flags_that_choose_a_device_are_for_the_stock_road_alone() -> None:
    flags = ("--iree-hal-target-backends=x", "--iree-hal-target-device=y", "--iree-llvmcpu-target-cpu=host")
    kept = ("--iree-opt-data-tiling", "--iree-input-demote-f64-to-f32=false")
    entry = Entry("a", "path", "a.onnx", suite=Suite("c", (*flags, *kept), ()))
    assert flags_for_any_device(entry) == kept and flags_for_any_device(Entry("a", "path", "a.onnx")) == ()


# What is expected, and what comes.


def said(ok: bool, skipped: bool = False) -> dict[str, Any]:
    return {"ok": ok, "message": "" if ok else "why", "seconds": 1.0, "peak_bytes": 1, "skipped": skipped}


@pytest.mark.parametrize(
    ("outcome", "failing", "problems", "known"),
    [
        ("pass", "", (), ()),
        ("pass", "iree-compile", ("iree-compile",), ()),
        ("pass", "compile", ("compile",), ()),
        ("fail-compile", "iree-compile", (), ("iree-compile",)),
        ("fail-compile", "iree-compile compile", (), ("compile", "iree-compile")),  # our road is that compiler's too
        ("fail-compile", "iree-compile rewrite", ("rewrite",), ("iree-compile",)),
        ("fail-compile", "", ("iree-compile",), ()),  # strict
        ("fail-compile", "iree-run", ("iree-run", "iree-compile"), ()),
        ("fail-compile", "iree-import", ("iree-import",), ()),
        ("fail-run", "iree-run", (), ("iree-run",)),
        ("fail-run", "iree-run verify", (), ("iree-run", "verify")),
        ("fail-run", "iree-run check", (), ("iree-run", "check")),
        ("pass", "check", ("check",), ()),
        ("fail-run", "iree-run compile", ("compile",), ("iree-run",)),
        ("fail-run", "iree-compile", ("iree-compile",), ()),
        ("fail-run", "", ("iree-run",), ()),
        ("fail-import", "iree-import", (), ("iree-import",)),
        ("fail-run", "export", ("export",), ()),
    ],
)
def test_expected_failures(outcome: Any, failing: str, problems: tuple[str, ...], known: tuple[str, ...]) -> None:
    entry = Entry("m", "path", "m.onnx", misses=None, suite=Suite("cpu", (), (), outcome))
    steps: dict[str, Any] = {}
    for step in ALL_STEPS:
        stopped = step in OF_SUITE and any(not steps[s]["ok"] for s in ("export", *OF_SUITE) if s in steps)
        steps[step] = said(step not in failing.split() and not stopped, skipped=stopped)
    found = judge(entry, {"steps": steps})
    assert [tuple(p.partition(":")[0] for p in part) for part in found] == [problems, known], found


def test_a_test_that_is_not_run_is_neither_here_nor_there() -> None:
    entry = Entry("m", "path", "m.mlir", suite=Suite("cpu", (), (), "fail-run"))
    for steps in ({"iree-compile": said(True)}, {"iree-compile": said(True), "iree-run": said(False, skipped=True)}):
        assert judge(entry, {"steps": steps}) == ([], [])
    before = {"name": "m", "ok": True, "steps": {"iree-run": said(True)}}
    left_out = {"name": "m", "ok": True, "problems": [], "steps": {"iree-run": said(False, skipped=True)}}
    assert compare([left_out], {"entries": {"m": summary(before)}}).ok
    not_tried = {"iree-run": said(False, skipped=True) | {"message": "not tried: iree-compile failed"}}
    assert not compare([left_out | {"steps": not_tried}], {"entries": {"m": summary(before)}}).ok


def mlir_test(folder: Path, name: str, expected: str, text: str = DOUBLED) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "model.mlir").write_text(text)
    np.arange(4, dtype=np.float32).tofile(folder / name / "input_0.bin")
    (folder / name / FLAGFILE).write_text(f"--input=4xf32=@input_0.bin\n--expected_output=4xf32={expected}\n")


def test_a_run_over_a_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong outputs and a program that does not compile, both expected, and one to skip: all is well until one passes."""
    models = tmp_path / "s"
    mlir_test(models, "n/test_good", "0 2 4 6")
    mlir_test(models, "n/test_wrong", "0 2 4 7")
    mlir_test(models, "n/test_broken", "0", "module { nothing }")
    mlir_test(models, "n/test_left", "0")
    lists = {"skip_compile_tests": ["n/test_left"], "expected_compile_failures": ["n/test_broken"]}
    path = config(tmp_path, **lists, expected_run_failures=["n/test_wrong"])
    out = tmp_path / "out"
    args = ["zoo", "run", "--zoo", str(path), "--models", str(models), "-o", str(out), "-q", "--jobs", "2"]
    with forked_steps():
        assert main(args) == 0, capsys.readouterr()
    lines = {line.split()[0]: line.split()[-1] for line in capsys.readouterr().out.splitlines()}
    assert {n: lines[f"n/test_{n}"] for n in ("good", "wrong", "broken", "left")} == {
        "good": "ok", "wrong": "known", "broken": "known", "left": "skipped",
    }  # fmt: skip
    assert (
        "iree-run: iree-run-module failed" in (text := (out / "results.md").read_text()) and "expects fail-run" in text
    )
    skipped = ET.parse(out / "results.xml").findall("testsuite[@name='n/test_left']/testcase/skipped")
    assert skipped and "skip_compile_tests" in str(skipped[0].get("message"))
    config(tmp_path, **lists, expected_run_failures=["n/test_wrong", "n/test_good"])
    with forked_steps():
        assert main(args) == 1  # from what the first run found: expectations are no part of it
    assert "n/test_good: iree-run: passed, and cpu expects fail-run: take it off" in capsys.readouterr().out


@pytest.fixture(scope="module")
def attention_test(tmp_path_factory: pytest.TempPathFactory) -> Entry:
    """A test with an ONNX attention, its inputs, and what onnxruntime makes of them."""
    models = tmp_path_factory.mktemp("suite")
    folder = models / "test_attention"
    folder.mkdir()
    path = tiny.attention(folder / "model.onnx")
    rng, flags = np.random.default_rng(0), []
    arrays = {}
    for i, value in enumerate(onnx.load(path).graph.input):
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        arrays[value.name] = rng.random(shape).astype(kind)
        np.save(folder / f"input_{i}.npy", arrays[value.name])
        flags.append(f"--input=@input_{i}.npy")
    for i, result in enumerate(ort.InferenceSession(path).run(None, arrays)):
        np.save(folder / f"output_{i}.npy", result)
        flags.append(f"--expected_output=@output_{i}.npy")
    (folder / FLAGFILE).write_text("\n".join(flags) + "\n")
    (entry,) = read(config(models, expected_run_failures=[]), models)
    return entry


def do(entry: Entry, folder: Path, *steps: str) -> dict[str, Any]:
    """The steps in this process, as they are in processes of their own; the last one's data."""
    folder.mkdir(exist_ok=True)
    for step in steps:
        data = STEPS[step](entry, parse_target("cpu-host"), folder, {"timeout_s": 200.0})
        (folder / f"{step}.json").write_text(json.dumps(data))
    return data


def test_an_onnx_test_is_imported_compiled_and_run(attention_test: Entry, tmp_path: Path) -> None:
    """By stock IREE on the suite's inputs, and on inputs of our own where it has none; by us on both."""
    do(attention_test, tmp_path, "export", "iree-import", "iree-compile", "iree-run", "compile")
    done = do(attention_test, tmp_path, "verify")
    assert not done["bad"]
    assert attention_test.suite is not None
    free = replace(attention_test, suite=replace(attention_test.suite, flagfile=""))
    do(free, tmp_path, "iree-run")
    output = Path(attention_test.base) / "test_attention" / "output_0.npy"
    np.save(output, np.load(output) + 1)
    with pytest.raises(RunError, match=r"iree-run-module failed with exit code 1 \(.*result"):
        do(attention_test, tmp_path, "iree-run")
    (bad,) = do(attention_test, tmp_path, "verify")["bad"]
    problems = judge(attention_test, {"steps": {}, "verify": {"bad": [bad]}})[0]
    assert "verify: IREE: outputs against the suite's on run_module_io_flags.txt" in problems[0]


def test_flags_that_the_compiler_refuses(attention_test: Entry, tmp_path: Path) -> None:
    assert attention_test.suite is not None
    wrong = replace(attention_test, suite=replace(attention_test.suite, compile_flags=("--no-such-flag",)))
    (tmp_path / "iree-import.json").write_text(json.dumps({"mlir": str(tmp_path / "x.mlir")}))
    with pytest.raises(CompileError, match=r"iree-compile failed with exit code 1 .*--no-such-flag"):
        do(wrong, tmp_path, "iree-compile")
