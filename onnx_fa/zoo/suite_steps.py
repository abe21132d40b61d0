"""The steps of a test of iree-test-suites: what unmodified IREE does with the model and the flags of the suite's config."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onnx_fa import processes as limits
from onnx_fa.errors import CompileError, OnnxFaError, RunError, one_line
from onnx_fa.iree.compiler import find_compiler, first_error
from onnx_fa.iree.run import tool_path
from onnx_fa.zoo.entries import Entry, Suite

Json = dict[str, Any]
MEMORY = 6 << 30
OPSET = "17"
"""The suite converts models of older opsets to this one."""
_DEVICE_FLAGS = ("--iree-hal-target-", "--iree-hal-local-target-", *(
    f"--iree-{kind}-target" for kind in ("llvmcpu", "cuda", "hip", "rocm", "vulkan", "metal", "amd-aie", "webgpu")
))  # fmt: skip


def suite_of(entry: Entry) -> Suite:
    if entry.suite is None:
        raise OnnxFaError(f"{entry.name} is no test of a suite")
    return entry.suite


def flags_for_any_device(entry: Entry) -> tuple[str, ...]:
    """The compile flags of the entry's config without those that choose a device: `--target` does that."""
    flags = entry.suite.compile_flags if entry.suite else ()
    return tuple(f for f in flags if not f.startswith(_DEVICE_FLAGS))


def import_(model: Path, folder: Path, settings: Json) -> Json:
    """The model as MLIR: what the test has, or what iree-import-onnx makes of it."""
    if model.suffix != ".onnx":
        return {"mlir": str(model)}
    output = folder / "iree.mlir"
    command = [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(model), "--opset-version", OPSET]
    _run("iree-import-onnx", [*command, "-o", str(output)], settings, folder)
    return {"mlir": str(output.resolve())}


def compile_(entry: Entry, mlir: Path, folder: Path, settings: Json) -> Json:
    """The test's module, by stock iree-compile with the config's flags and no others."""
    output = folder / "iree.vmfb"
    command = [str(find_compiler()), str(mlir), *suite_of(entry).compile_flags, "-o", str(output)]
    done = _run("iree-compile", command, settings, folder)
    return {"vmfb_bytes": output.stat().st_size, "seconds": done.seconds}


def run(entry: Entry, model: Path, folder: Path, settings: Json) -> Json:
    """The module in iree-run-module, which compares what comes out with what is expected."""
    suite = suite_of(entry)
    if suite.flagfile:
        flags, where = flags_of_file(entry)
    else:
        flags, where = _drawn(model, folder), folder
    done = run_module(folder / "iree.vmfb", [*suite.run_flags, *flags], where, settings)
    return {"seconds": done.seconds}


def flags_of_file(entry: Entry) -> tuple[list[str], Path]:
    """The flags with a test's inputs and expected outputs, and the folder that their paths are relative to."""
    flagfile = Path(entry.base) / suite_of(entry).flagfile
    return [f"--flagfile={flagfile.name}"], flagfile.parent


def run_module(vmfb: Path, flags: Sequence[str], where: Path, settings: Json) -> limits.Finished:
    """iree-run-module in the folder `where`. Raises RunError where it fails, or where outputs are not as expected."""
    command = [tool_path("iree-run-module"), f"--module={vmfb.resolve()}", *flags]
    return _run("iree-run-module", command, settings, where)


def _run(name: str, command: Sequence[str], settings: Json, where: Path) -> limits.Finished:
    timeout_s = settings["timeout_s"] * 0.9
    done = limits.run_limited(command, timeout_s=timeout_s, memory_bytes=MEMORY, cwd=where)
    if done.ending == "ok":
        return done
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    # What differs is on standard output, and standard error then says nothing.
    differs = next((line for line in done.stdout.splitlines() if "[FAILED]" in line), "")
    said = first_error(done.stderr) or (f" ({(differs or lines[-1]).strip()[:200]})" if differs or lines else "")
    kind = CompileError if name != "iree-run-module" else RunError
    raise kind(f"{name} {done.describe(timeout_s, MEMORY)}{said}")


def _drawn(model: Path, folder: Path) -> list[str]:
    """Random inputs, free dims of size 1 as in the suite, and what onnxruntime makes of them, as flags of iree-run-module."""
    from onnx_fa.graph import io
    from onnx_fa.ort_session import ort_session
    from onnx_fa.verifier.inputs import random_inputs

    arrays = random_inputs(io.load(model), default=1)
    try:
        expected = ort_session(model, exact=True).run(None, arrays)
    except Exception as e:  # onnxruntime's exceptions share no public base class
        raise RunError(f"onnxruntime cannot run the model: {one_line(e)}") from e
    flags = []
    for what, values in (("input", arrays.values()), ("expected_output", expected)):
        for i, array in enumerate(values):
            path = folder.resolve() / f"{what}_{i}.npy"
            np.save(path, np.asarray(array))
            flags.append(f"--{what}=@{path}")
    return flags
