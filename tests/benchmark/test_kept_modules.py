"""Modules that a benchmark keeps: compiled on one machine, timed on another that has no compiler."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onnx_fa.benchmark import kept_modules
from onnx_fa.benchmark.case_bench import TINY
from onnx_fa.benchmark.kept_modules import KeptModules, Made, elsewhere
from onnx_fa.errors import CompileError
from onnx_fa.spec.target import parse_target
from tests.benchmark.test_attention_sweep import ROOT, bench

HOST = parse_target("cpu-host")
SPEC = TINY.bound()[0]


def run_python(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Python with a script of the test's own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *args], cwd=folder, env=env, capture_output=True, text=True, timeout=300)


def test_modules_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By spec, target and flags, and anew by a compiler of another version; a refusal is kept, too."""
    versions = {"iree-base-compiler": "1", "triton": "2"}
    monkeypatch.setattr(kept_modules, "_installed", lambda: dict(versions))
    kept, made = KeptModules(tmp_path / "kept"), []
    out = tmp_path / "out.vmfb"

    def build(path: Path) -> Made:
        made.append(path)
        path.write_bytes(b"module %d" % len(made))
        return Made("said", "tf32")

    def get() -> Made:
        out.unlink(missing_ok=True)
        return kept.get("x", SPEC, HOST, (), out, build)

    first = get()
    assert get() == first and len(made) == 1 and out.read_bytes() == b"module 1" and elsewhere(first) == ""
    kept.get("x", SPEC, HOST, ("--flag",), out, build)
    kept.get("x", SPEC, dataclasses.replace(HOST, kernels="iree"), (), out, build)
    kept.get("x", dataclasses.replace(SPEC, scale=2.0), HOST, (), out, build)
    assert len(made) == 4
    versions["triton"] = "3"
    assert get().versions == (("iree-base-compiler", "1"), ("triton", "3")) and len(made) == 5
    versions.clear()  # a machine without compilers
    assert elsewhere(get()) == "iree-base-compiler 1 triton 3" and len(made) == 5

    def refuse(path: Path) -> Made:
        made.append(path)
        raise CompileError("too large")

    for _ in range(2):
        with pytest.raises(CompileError, match="too large"):
            kept.get("y", SPEC, HOST, (), out, refuse)
    assert len(made) == 6


@pytest.mark.slow
@pytest.mark.whole
def test_built_here_timed_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--build-only needs no device; what it leaves is timed where there is no compiler, and named so."""
    sizes = ("--heads", "2", "--head-dim", "16", "--seq", "24", "--modules", "m", "--target")
    built = bench(tmp_path, *sizes, "cuda", "--kernels", "iree", "--build-only")
    assert built.returncode == 0, built.stderr
    assert len(list((tmp_path / "m").glob("*.vmfb"))) == 4  # a tiny one, stock IREE by two sets of flags, and ours
    assert bench(tmp_path, *sizes, "cpu-host", "--build-only").returncode == 0
    # As on a machine without the compilers (and, to be quick, without PyTorch).
    code = (
        "import sys, importlib.metadata as m\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith(('iree.compiler', 'triton')):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Hide())\n"
        "sys.modules['torch'] = None\n"
        "known = m.version\n"
        "def version(name):\n"
        "    if name in ('iree-base-compiler', 'triton'):\n"
        "        raise m.PackageNotFoundError(name)\n"
        "    return known(name)\n"
        "m.version = version\n"
        "from onnx_fa.cli.command import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    (tmp_path / "hidden.py").write_text(code)
    command = ("bench", *sizes, "cpu-host", "--rounds", "1", "--no-plot", "-o", "s")
    timed = run_python(tmp_path, str(tmp_path / "hidden.py"), *command)
    assert timed.returncode == 0, timed.stderr
    assert "compiled elsewhere by iree-base-compiler" in (tmp_path / "s.csv").read_text()
    lacking = run_python(tmp_path, str(tmp_path / "hidden.py"), *command[:-2], "-o", "t", "--fresh", "--seq", "40")
    assert lacking.returncode == 1 and "not timed: onnx_fa: " in lacking.stdout and "Traceback" not in lacking.stderr
    assert "pip install iree-base-compiler" in lacking.stdout
