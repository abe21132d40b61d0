"""Equal compilations of a run of the tests are one, and others are not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

from onnx_fa import processes
from onnx_fa.errors import CompileError
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.compiler import iree_compile
from onnx_fa.iree.vmfb_facts import inspect_vmfb
from onnx_fa.spec.target import parse_target
from tests.support.cli_process import run_main
from tests.support.compiled_once import cheaper, compiled_once

TARGET = parse_target("cpu-host")
DOUBLE = """
func.func @f(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = arith.addf %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""


def test_equal_ones_are_one(tmp_path: Path) -> None:
    """With the files that the compiler writes beside the module; what is done to them afterwards is not seen again."""
    with compiled_once() as once:
        made = []
        for name in ("a", "b"):
            (phases := tmp_path / name).mkdir()
            flags = (f"--dump-compilation-phases-to={phases}",)
            iree_compile(DOUBLE, out := tmp_path / f"{name}.vmfb", TARGET, flags=flags, phase="flow")
            made.append((out.read_bytes(), {p.name: p.read_bytes() for p in phases.iterdir()}))
            out.write_bytes(b"damaged")
        assert made[0] == made[1] and len(made[0][1]) > 1 and once.again == 1
        iree_compile(DOUBLE, out, TARGET, phase="flow")  # nothing beside it
        iree_compile(DOUBLE.replace("addf", "mulf"), out, TARGET, phase="flow")
        assert once.again == 1 and "mulf" in out.read_text()
        iree_compile(DOUBLE, out, TARGET, phase="flow", timeout_s=60)
        assert once.again == 1 and "mulf" not in out.read_text()


def test_failures_are_not_kept(tmp_path: Path) -> None:
    with compiled_once() as once:
        for _ in range(2):
            with pytest.raises(CompileError, match="failed with exit code 1"):
                iree_compile(DOUBLE.replace("addf", "nonsense"), tmp_path / "a.vmfb", TARGET)
        assert once.again == 0


def test_what_is_left_out_to_be_cheaper() -> None:
    """Neither what a test asks for itself, nor symbols where it looks at intermediate files, nor ever checks of the IR."""
    threads, symbols = "--mlir-disable-threading", "--iree-llvmcpu-debug-symbols=false"
    assert cheaper([]) == [threads, symbols]
    assert cheaper(["--iree-hal-dump-executable-intermediates-to=x"]) == [threads]
    assert cheaper(["--iree-llvmcpu-debug-symbols=true", threads]) == []


def test_code_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of users, but for symbols; and what fails is told with the command that they would run."""
    codes = []
    for name in ("once", "user"):
        (folder := tmp_path / name).mkdir()
        with compiled_once() as once:
            if name == "user":
                monkeypatch.setattr(once, "run_limited", processes.run_limited)
            iree_compile(DOUBLE, folder / "a.vmfb", TARGET)
            codes.append(inspect_vmfb(folder / "a.vmfb"))
            with pytest.raises(CompileError):
                iree_compile(DOUBLE.replace("addf", "nonsense"), folder / "b.vmfb", TARGET)
            assert "symbols" not in (folder / "b.vmfb.log").read_text()
    assert codes[0] == codes[1] and codes[0].exports
    assert (tmp_path / "once" / "a.vmfb").stat().st_size < (tmp_path / "user" / "a.vmfb").stat().st_size


def test_a_command_that_is_forked_has_them_too(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    graph = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Add(x, x) }'
    )
    onnx.save(graph, model)
    with compiled_once() as once:
        compile_model(model, tmp_path / "a.vmfb", TARGET)
        (kept,) = once.folder.iterdir()
        (kept / "0").write_bytes(b"kept")
        done = run_main("onnx_fa.cli.command", ["compile", model, "-o", "b.vmfb"], tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "b.vmfb").read_bytes() == b"kept" and list(once.folder.iterdir()) == [kept]


def test_a_process_that_is_late_uses_what_another_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that share a folder may compile the same at the same time: what the first made stays."""
    run, out = processes.run_limited, tmp_path / "a.vmfb"
    monkeypatch.setattr("tests.support.compiled_once.cheaper", lambda *_: [])

    def compile_twice(command: Sequence[str], **limits: Any) -> processes.Finished:
        with monkeypatch.context() as patched:
            patched.setattr(processes, "run_limited", run)
            once.run_limited(command, **limits)
        return run(command, **limits)

    with compiled_once(tmp_path / "shared") as once:
        once.folder.mkdir()
        monkeypatch.setattr(processes, "run_limited", compile_twice)
        iree_compile(DOUBLE, out, TARGET, phase="flow")
        assert len(list(once.folder.iterdir())) == 1 and once.again == 0 and "addf" in out.read_text()
    assert (tmp_path / "shared").exists()
