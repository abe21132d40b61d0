"""Triton source to PTX, ahead of time: no GPU and no CUDA toolkit takes part. Each compilation is a process of its own, so that
nothing that Triton does to its process, a crash or a page of messages, reaches the user."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from onnx_fa.errors import MissingDependencyError, UnsupportedError
from onnx_fa.kernels.triton import worker
from onnx_fa.kernels.triton.config import SHARED_BYTES
from onnx_fa.kernels.triton.program import RECEIVED, Program
from onnx_fa.processes import DEFAULT, Limits, run_limited

PTX_VERSION = "8.6"
"""What the text is declared as: Triton names its own newest, which drivers older than it refuse; nothing newer is in it."""
ALIGNMENT = 128
"""Of what the copy engine reads its descriptors from; IREE aligns buffers to 64 bytes."""


@dataclass(frozen=True)
class Compiled:
    """PTX of one architecture. `text` ends in a newline; `shared` are bytes of shared memory that a workgroup needs, `scratch`
    those of device memory (of each workgroup, and ALIGNMENT more of all)."""

    entry: str
    text: str
    warps: int
    shared: int
    scratch: int


def available() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


@cache
def compile_program(program: Program, arch: int, warps: int, stages: int, limits: Limits = DEFAULT) -> Compiled:
    """The program as PTX for sm_`arch`. Raises UnsupportedError where the tiles do not fit the architecture, Triton refuses the
    source, or passes a limit, and MissingDependencyError without Triton."""
    if not available():
        raise MissingDependencyError("Triton is not installed: pip install triton (or onnx-fa[triton])")
    job = json.dumps({"program": asdict(program), "arch": arch, "warps": warps, "stages": stages})
    environment = {
        **os.environ,
        "TRITON_DISABLE_LINE_INFO": "1",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    with tempfile.TemporaryDirectory(prefix="onnx_fa-") as folder:
        path = Path(folder) / "job.json"
        path.write_text(job)
        command = [sys.executable, "-P", worker.__file__, str(path)]
        done = run_limited(command, env=environment, **asdict(limits))
    if done.ending in ("timeout", "memory"):
        raise UnsupportedError(f"Triton, compiling for sm_{arch}, {done.describe(**asdict(limits))}")
    if done.ending == "failed":
        raise UnsupportedError(f"Triton does not compile the kernel for sm_{arch}: {_last_line(done.stderr)}")
    found = json.loads(done.stdout)
    if program.cluster:
        found["ptx"], found["shared"] = as_cluster(found["ptx"], found["shared"], program)
    if found["shared"] > SHARED_BYTES[arch]:
        raise UnsupportedError(f"{found['shared']} bytes of shared memory, where sm_{arch} has {SHARED_BYTES[arch]}")
    text = _parameters(found["ptx"], program, bool(found["scratch"]))
    threads = re.search(r"\.reqntid (\d+)", text)
    return Compiled(program.entry, text, int(threads[1]) // 32 if threads else warps, found["shared"], found["scratch"])


def as_cluster(ptx: str, shared: int, program: Program) -> tuple[str, int]:
    """PTX whose workgroups are clusters, and the bytes of shared memory that each needs: what others send it lies behind
    the `shared` that Triton keeps."""
    start = -(-shared // 16) * 16
    text = ptx.replace(str(RECEIVED), str(start))
    sizes = f"\n.explicitcluster\n.reqnctapercluster 1, {program.cluster}, 1"
    return re.sub(r"\.reqntid \d+", rf"\g<0>{sizes}", text), start + program.received


def _last_line(stderr: str) -> str:
    errors = [line for line in stderr.splitlines() if re.search(r"Error|error:", line)]
    return " ".join((errors or stderr.splitlines() or ["it crashed"])[-1].split())[:300]


def load_function(program: Program, folder: Path) -> Any:
    """The Triton function that a program's text defines, from a file in `folder`."""
    return worker.load_function(program.entry, program.text, folder)


def _parameters(ptx: str, program: Program, scratch: bool) -> str:
    """PTX with the parameters that IREE passes: bindings, then constants. Of Triton's own two, at the end, the first is a binding
    where device memory is needed, and both go where they are not read."""
    name, count = program.entry, len(program.pointers) + len(program.constants)
    head, rest = ptx.split("\n)", 1)
    start, _, listed = head.partition("(\n")
    lines = [line.rstrip(",") for line in listed.splitlines()]
    kept = lines[:count]
    for i, line in enumerate(lines[count:]):
        read = re.compile(rf"ld\.param\.b64 \t(%rd\d+), \[{name}_param_{count + i}\];")
        if f"{name}_param_{count + i}]" not in rest:
            continue
        if not (scratch and i == 0 and read.search(rest)):
            raise UnsupportedError("Triton's kernel needs memory that IREE does not give it")
        up = f"\n\tadd.s64 \t\\1, \\1, {ALIGNMENT - 1};\n\tand.b64 \t\\1, \\1, -{ALIGNMENT};"
        rest = read.sub(rf"\g<0>{up}", rest)
        kept.insert(len(program.pointers), line)
    text = f"{start}(\n" + ",\n".join(kept) + "\n)" + rest
    return re.sub(r"\.version \d+\.\d+", f".version {PTX_VERSION}", text)
