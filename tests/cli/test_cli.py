"""The command line as a process: every command on tiny models, and every kind of bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support import tiny
from tests.support.cases import CASES, Case
from tests.support.cli_process import run_main

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs" / "reference" / "report.schema.json").read_text())


def cli(*args: object, cwd: Path, code: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in `cwd`; the exit code must be `code`, and no traceback may show."""
    done = run_main("onnx_fa.cli.command", args, cwd, {**os.environ, "PYTHONPATH": str(ROOT), **env})
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    assert done.returncode == code, f"exit {done.returncode}: {done.stderr}"
    return done


def error_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line on stderr that says what is wrong."""
    lines = done.stderr.strip().splitlines()
    errors = [line for line in lines if line.startswith("onnx-fa: error: ")]
    assert len(errors) == 1, done.stderr
    assert errors[0] == lines[-1]
    return errors[0]


def report(path: Path) -> dict[str, list[dict[str, object]]]:
    data: dict[str, list[dict[str, object]]] = json.loads(path.read_text())
    validator().validate(data)
    return data


@cache
def validator(part: str = "") -> jsonschema.protocols.Validator:
    """Of the schema, or of one of its definitions. To look whether the schema itself is right takes far longer than a report."""
    schema = {"$ref": f"#/$defs/{part}", "$defs": SCHEMA["$defs"]} if part else SCHEMA
    made = jsonschema.validators.validator_for(SCHEMA)
    made.check_schema(schema)
    return made(schema)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny.attention(tmp_path / "a.onnx")


def test_version_and_help(tmp_path: Path) -> None:
    assert cli("--version", cwd=tmp_path).stdout.startswith("onnx-fa ")
    text = cli("--help", cwd=tmp_path).stdout
    for command in ("explain", "rewrite", "import", "compile", "run", "inspect", "verify", "bench"):
        assert f"\n    {command} " in text
    assert "see `onnx-fa rewrite --help`" in error_line(cli("rewrite", cwd=tmp_path, code=2))


def test_no_heavy_imports_at_start(tmp_path: Path) -> None:
    code = "import sys, onnx_fa.cli.command; onnx_fa.cli.command.make_parser(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "onnx_fa.cli.command" in loaded
    assert not loaded & {"onnx_ir", "onnx", "iree", "torch", "onnxruntime", "matplotlib", "numpy"}


def test_explain(tmp_path: Path) -> None:
    path = tiny.attention(tmp_path / "a.onnx", s="S", batch="B", wrong=True)
    text = cli("explain", path, "--report", "r.json", cwd=tmp_path).stdout
    for words in ("mha+addmask", "Bx2xSx16", "add f32 Bx1x1xS", "0.25", "1 attention site found, 1 left alone"):
        assert words in text
    assert "router_softmax" in text
    data = report(tmp_path / "r.json")
    assert [m["node"] for m in data["misses"]] == ["router_softmax"]
    assert data["sites"][0]["fused"] is None


def test_explain_says_causal(tmp_path: Path) -> None:
    text = cli("explain", tiny.standard(tmp_path / "s.onnx"), cwd=tmp_path).stdout
    assert "mha+causal" in text and "Attention" in text and "causal" in text.split("mha+causal")[1]


@pytest.mark.parametrize("form", ["decomposed", "blocked", "attention"])
def test_rewrite(tmp_path: Path, form: str) -> None:
    path = tiny.standard(tmp_path / "a.onnx") if form == "attention" else tiny.attention(tmp_path / "a.onnx")
    cli("rewrite", path, "-o", "b.onnx", "--form", form, "--report", "r.json", cwd=tmp_path)
    onnx.checker.check_model(str(tmp_path / "b.onnx"), full_check=True)
    assert [s["form"] for s in report(tmp_path / "r.json")["sites"]] == [form]


def test_rewrite_in_parts(tmp_path: Path, model: Path) -> None:
    found = json.loads(cli("explain", model, "--report", "-", cwd=tmp_path).stdout)["sites"]
    name = found[0]["name"]
    ends = cli(
        "rewrite", model, "-o", "b.onnx", "--split-keys", "2", "--site", name, "--report", "r.json", cwd=tmp_path
    )
    assert "the keys of 1 in 2 parts" in ends.stderr
    assert json.loads((tmp_path / "r.json").read_text())["sites"][0]["parts"] == 2
    assert len(json.loads(cli("explain", "b.onnx", "--report", "-", cwd=tmp_path).stdout)["sites"]) == 1 + len(found)
    for wrong, word in (
        (("--split-keys", "0"), "whole number"),
        (("--split-keys", "2", "--form", "blocked"), "--form decomposed"),
        (("--split-keys", "2", "--site", "nobody"), "no site is called 'nobody'"),
        (("--site", name), "give --split-keys too"),
        (("--split-keys", "2", "--spec", "s.mlir", "--target", "cpu-host"), "whole sites only"),
    ):
        assert word in error_line(cli("rewrite", model, "-o", "c.onnx", *wrong, cwd=tmp_path, code=2))
        assert not (tmp_path / "c.onnx").exists()


def test_rewrite_with_spec(tmp_path: Path, model: Path) -> None:
    assert "--target" in error_line(cli("rewrite", model, "-o", "b.onnx", "--spec", "b.mlir", cwd=tmp_path, code=2))
    cli("rewrite", model, "-o", "b.onnx", "--target", "cpu-host", "--spec", "b.mlir", cwd=tmp_path)
    assert "transform.named_sequence" in (tmp_path / "b.mlir").read_text()


def test_import_compile_run_inspect(tmp_path: Path, model: Path) -> None:
    cli("import", model, "-o", "a.mlir", "--report", "i.json", cwd=tmp_path)
    assert "func.func @main_graph" in (tmp_path / "a.mlir").read_text()
    assert len(report(tmp_path / "i.json")["sites"]) == 1

    cli("compile", model, "-o", "a.vmfb", "--report", "c.json", "--keep-intermediates", "keep", cwd=tmp_path)
    (site,) = report(tmp_path / "c.json")["sites"]
    assert site["fused"] is True and site["dispatches"] == 1 and site["tiles"]
    tuning = site["tuning"]
    assert tuning.startswith("cpu-") and ": vector f32 D" in tuning
    assert list((tmp_path / "keep").rglob("*.mlir"))
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".onnx_fa-")]

    text = cli("run", "a.vmfb", "--random-inputs", model, "--seed", 3, "--output", "out", cwd=tmp_path).stdout
    assert "output 0: 1x2x20x16xfloat32" in text
    assert np.isfinite(np.load(tmp_path / "out" / "output0.npy")).all()

    text = cli("inspect", model, "--report", "n.json", cwd=tmp_path).stdout
    assert "yes" in text and "mha+addmask" in text and f"tiles of {site['name']}: {tuning}" in text
    assert report(tmp_path / "n.json")["sites"][0]["fused"] is True
    assert "fa_" in cli("inspect", "a.vmfb", cwd=tmp_path).stdout


def test_run_inputs(tmp_path: Path) -> None:
    """Values by shape and by file, in order, and the result they must give: the mean of v over equal keys."""
    cli("compile", tiny.attention(tmp_path / "a.onnx", mask=False), "-o", "a.vmfb", cwd=tmp_path)
    v = np.random.default_rng(0).standard_normal((1, 2, 20, 16)).astype(np.float32)
    np.save(tmp_path / "v.npy", v)
    shape = "1x2x20x16xf32"
    cli("run", "a.vmfb", "--input", shape, "--input", f"{shape}=2.5", "--input", "v.npy", "--output", "o", cwd=tmp_path)
    out = np.load(tmp_path / "o" / "output0.npy")
    np.testing.assert_allclose(out, np.broadcast_to(v.mean(axis=2, keepdims=True), v.shape), rtol=1e-5, atol=1e-6)

    named = ["--random-inputs", "a.onnx", "--input", f"k={shape}", "--input", "v=v.npy", "--output", "p"]
    cli("run", "a.vmfb", *named, cwd=tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "p" / "output0.npy"), out, rtol=1e-5, atol=1e-6)

    for bad in ("2x2xf31", "2x2xf32=1 2 3", "2xi64=x", "none.npy"):
        assert bad.split("=")[0] in error_line(cli("run", "a.vmfb", "--input", bad, cwd=tmp_path, code=2))
    error_line(cli("run", "a.vmfb", "--input", "2x2xf32", cwd=tmp_path, code=1))


def test_quiet(tmp_path: Path, model: Path) -> None:
    assert cli("rewrite", model, "-o", "b.onnx", "-q", cwd=tmp_path).stderr == ""
    assert "1 found, 1 in form decomposed" in cli("rewrite", model, "-o", "b.onnx", cwd=tmp_path).stderr


def _not_onnx(folder: Path) -> Path:
    path = folder / "x.onnx"
    path.write_text("this is no model, it is a text file that is long enough to be one\n" * 10)
    return path


def _empty(folder: Path) -> Path:
    (folder / "x.onnx").touch()
    return folder / "x.onnx"


def _truncated(folder: Path) -> Path:
    path = tiny.encoder(folder / "x.onnx")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def _folder(folder: Path) -> Path:
    (folder / "x.onnx").mkdir()
    return folder / "x.onnx"


def _absent(folder: Path) -> Path:
    return folder / "x.onnx"


def _no_external_data(folder: Path) -> Path:
    path = tiny.encoder(folder / "x.onnx")
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    (folder / "w.bin").unlink()
    return path


def _edited(folder: Path, edit: Callable[[onnx.ModelProto], None]) -> Path:
    path = tiny.attention(folder / "x.onnx")
    proto = onnx.load(path)
    edit(proto)
    path.write_bytes(proto.SerializeToString())
    return path


def _cyclic(folder: Path) -> Path:
    def edit(proto: onnx.ModelProto) -> None:
        proto.graph.node[0].input[0] = "o"

    return _edited(folder, edit)


def _no_opset(folder: Path) -> Path:
    return _edited(folder, lambda proto: proto.ClearField("opset_import"))


BAD_MODELS = [
    (_not_onnx, "not an ONNX model"),
    (_empty, "empty"),
    (_truncated, "truncated"),
    (_folder, "folder"),
    (_absent, "No such file"),
    (_no_external_data, "w.bin"),
    (_cyclic, "cycle"),
    (_no_opset, "opset"),
]


@pytest.mark.parametrize(("make", "words"), BAD_MODELS, ids=lambda x: getattr(x, "__name__", ""))
def test_bad_model(tmp_path: Path, make: Callable[[Path], Path], words: str) -> None:
    path = make(tmp_path)
    before = sorted(tmp_path.iterdir())
    for args in (("explain", path), ("rewrite", path, "-o", "b.onnx"), ("compile", path, "-o", "b.vmfb")):
        line = error_line(cli(*args, cwd=tmp_path, code=2))
        assert words in line and "x.onnx" in line
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("command", ["rewrite", "import", "compile"])
def test_unwritable_output(tmp_path: Path, model: Path, command: str) -> None:
    for place in ("missing/b.out", "."):
        assert "cannot be written" in error_line(cli(command, model, "-o", place, cwd=tmp_path, code=2))
    line = error_line(cli(command, model, "-o", "b.out", "--report", "missing/r.json", cwd=tmp_path, code=2))
    assert "missing/r.json" in line
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.onnx"]


@pytest.mark.parametrize("command", ["import", "compile", "inspect", "verify", "bench"])
def test_unknown_target(tmp_path: Path, model: Path, command: str) -> None:
    output = ["-o", "b"] if command in ("import", "compile") else []
    line = error_line(cli(command, model, *output, "--target", "tpu", cwd=tmp_path, code=2))
    assert "'tpu'" in line and "cpu-host" in line


def test_target_without_its_device(tmp_path: Path, model: Path) -> None:
    for command in (("verify", model), ("bench", model), ("tune", model), ("run", "a.vmfb")):
        line = error_line(cli(*command, "--target", "rocm-gfx942", cwd=tmp_path, code=2))
        assert "device hip: not present" in line
    assert "device hip" in error_line(cli("run", "a.vmfb", "--device", "hip", cwd=tmp_path, code=2))


def test_kernels_of_a_gpu(tmp_path: Path, model: Path) -> None:
    done = cli("import", model, "-o", "b.mlir", "--target", "cuda", "--kernels", "iree", cwd=tmp_path)
    assert "code is for sm_80" in done.stderr and "VectorDistribute" in (tmp_path / "b.mlir").read_text()
    refused = cli("import", model, "-o", "b.mlir", "--target", "vulkan", "--kernels", "triton", cwd=tmp_path, code=2)
    assert "--kernels triton" in error_line(refused)


def test_unknown_dim(tmp_path: Path) -> None:
    path = tiny.attention(tmp_path / "a.onnx", s="S")
    (tmp_path / "a.vmfb").write_bytes(b"")
    line = error_line(cli("run", "a.vmfb", "--random-inputs", path, "--dim", "T=3", cwd=tmp_path, code=2))
    assert "T" in line and "S" in line
    assert "NAME=SIZE" in error_line(cli("verify", path, "--dim", "T", cwd=tmp_path, code=2))


def test_not_a_module(tmp_path: Path) -> None:
    (tmp_path / "a.vmfb").write_text("no module")
    error_line(cli("run", "a.vmfb", cwd=tmp_path, code=1))
    error_line(cli("inspect", "a.vmfb", cwd=tmp_path, code=1))
    assert "no such file" in error_line(cli("run", "b.vmfb", cwd=tmp_path, code=1))


def _compiler(folder: Path, body: str) -> str:
    path = folder / "fake-iree-compile"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_failing_compiler(tmp_path: Path, model: Path) -> None:
    fake = _compiler(tmp_path, "echo 'x.mlir:1:1: error: no such thing' >&2\nexit 3")
    line = error_line(cli("compile", model, "-o", "b.vmfb", cwd=tmp_path, code=1, ONNX_FA_IREE_COMPILE=fake))
    assert "exit code 3" in line and "no such thing" in line and "b.vmfb.log" in line
    log = (tmp_path / "b.vmfb.log").read_text()
    assert fake in log and "no such thing" in log
    assert not (tmp_path / "b.vmfb").exists()


def test_hanging_compiler(tmp_path: Path, model: Path) -> None:
    fake = _compiler(tmp_path, "echo waiting >&2\nsleep 100")
    args = ("compile", model, "-o", "b.vmfb", "--timeout", 1)
    assert "stopped after 1 s" in error_line(cli(*args, cwd=tmp_path, code=1, ONNX_FA_IREE_COMPILE=fake))
    assert "waiting" in (tmp_path / "b.vmfb.log").read_text()
    assert not (tmp_path / "b.vmfb").exists()
    assert "number of seconds" in error_line(
        cli("compile", model, "-o", "b", "--timeout", "soon", cwd=tmp_path, code=2)
    )


def test_log_of_failed_inspect_is_kept(tmp_path: Path, model: Path) -> None:
    fake = _compiler(tmp_path, "echo 'error: broken' >&2\nexit 1")
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    done = cli("inspect", model, cwd=tmp_path, code=1, ONNX_FA_IREE_COMPILE=fake, TMPDIR=str(scratch))
    log = Path(error_line(done).split(" are in ")[1])
    assert "error: broken" in log.read_text()


def test_bad_flag(tmp_path: Path, model: Path) -> None:
    line = error_line(cli("compile", model, "-o", "b.vmfb", "--iree-flag=--no-such-flag", cwd=tmp_path, code=1))
    assert "no-such-flag" in (tmp_path / "b.vmfb.log").read_text() and "b.vmfb.log" in line
    assert "Unknown command line argument '--no-such-flag'" in line


@pytest.mark.parametrize(
    ("number", "code", "line"), [(signal.SIGINT, 130, "onnx-fa: error: interrupted"), (signal.SIGTERM, 143, "")]
)
def test_interrupt_of_a_hanging_compiler(tmp_path: Path, model: Path, number: int, code: int, line: str) -> None:
    fake = _compiler(tmp_path, f"echo $$ > {tmp_path}/pid\nexec sleep 100")
    child = subprocess.Popen(
        [sys.executable, "-m", "onnx_fa", "compile", str(model), "-o", "b.vmfb"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "ONNX_FA_IREE_COMPILE": fake},
        # Shells let what they start in the background ignore interrupts, and so would all that these tests start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    compiler = int((tmp_path / "pid").read_text())
    child.send_signal(number)
    _, stderr = child.communicate(timeout=60)
    assert child.returncode == code and stderr.strip() == line
    with pytest.raises(ProcessLookupError):
        os.kill(compiler, 0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.onnx", "fake-iree-compile", "pid"]


def test_schema_refuses_other_reports(tmp_path: Path, model: Path) -> None:
    cli("explain", model, "--report", "r.json", cwd=tmp_path)
    data = report(tmp_path / "r.json")
    data["sites"][0]["fused"] = "perhaps"
    with pytest.raises(jsonschema.ValidationError):
        validator().validate(data)


def test_input_that_cannot_be_made(tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    text = [helper.make_tensor_value_info(n, TensorProto.STRING, [1]) for n in "xy"]
    path = tiny.save(tmp_path / "t.onnx", [node], text[:1], text[1:])
    assert "'x'" in error_line(cli("verify", path, cwd=tmp_path, code=2))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_schema_describes_every_spec(case: Case) -> None:
    validator("spec").validate(json.loads(json.dumps(case.spec.to_dict())))
