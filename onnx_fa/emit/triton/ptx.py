"""Triton source to PTX, ahead of time: no GPU and no CUDA toolkit takes part."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from onnx_fa.emit.triton.config import SHARED_BYTES
from onnx_fa.emit.triton.source import Program
from onnx_fa.errors import MissingDependencyError, UnsupportedError, one_line

PTX_VERSION = "8.6"
"""What the text is declared as: Triton names its own newest, which drivers older than it refuse; nothing newer is in it."""
_TYPES = {"f16": "fp16", "bf16": "bf16", "f32": "fp32", "i8": "i8", "i32": "i32", "i64": "i64"}


@dataclass(frozen=True)
class Compiled:
    """PTX of one architecture. `text` ends in a newline; `shared` are bytes of shared memory that a workgroup needs, `scratch`
    those of device memory."""

    entry: str
    text: str
    warps: int
    shared: int
    scratch: int


def available() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


@cache
def compile_program(program: Program, arch: int, warps: int, stages: int) -> Compiled:
    """The program as PTX for sm_`arch`. Raises UnsupportedError where the tiles do not fit the architecture, or Triton refuses
    the source, and MissingDependencyError without Triton."""
    if not available():
        raise MissingDependencyError("Triton is not installed: pip install triton (or onnx-fa[triton])")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as triton_compile
    from triton.experimental.gluon import GluonASTSource

    signature = {name: f"*{_TYPES[element]}" for name, element in program.pointers}
    signature |= {f"s{i}": "i32" for i in range(len(program.constants))}
    with tempfile.TemporaryDirectory(prefix="onnx_fa-") as folder:
        function = load_function(program, Path(folder))
        source = (GluonASTSource if function.is_gluon() else ASTSource)(
            fn=function,
            signature=signature,
            constexprs={},
            attrs={(i,): [["tt.divisibility", 16]] for i in range(len(program.pointers))},
        )
        options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
        try:
            with _quiet():
                done = triton_compile(source, target=GPUTarget("cuda", arch, 32), options=options)
        except Exception as e:  # Triton raises whatever it met, and anything it does not compile is no kernel
            raise UnsupportedError(f"Triton does not compile the kernel for sm_{arch}: {one_line(e)}") from e
    metadata: Any = done.metadata
    if metadata.shared > SHARED_BYTES[arch]:
        raise UnsupportedError(f"{metadata.shared} bytes of shared memory, where sm_{arch} has {SHARED_BYTES[arch]}")
    scratch = int(metadata.global_scratch_size)
    text = _parameters(done.asm["ptx"], program, bool(scratch))
    threads = re.search(r"\.reqntid (\d+)", text)
    return Compiled(program.entry, text, int(threads[1]) // 32 if threads else warps, metadata.shared, scratch)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps what the compiler writes about a failure (whole modules of its IR) from the user: the exception says what failed."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def load_function(program: Program, folder: Path) -> Any:
    """The Triton function that a program's text defines, from a file, which Triton reads its source from."""
    path = folder / f"{program.entry}.py"
    path.write_text(program.text)
    spec = importlib.util.spec_from_file_location(program.entry, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, program.entry)


def _parameters(ptx: str, program: Program, scratch: bool) -> str:
    """PTX with the parameters that IREE passes: bindings, then constants. Of Triton's own two, at the end, the first is a binding
    where device memory is needed, and both go where they are not read."""
    name, count = program.entry, len(program.pointers) + len(program.constants)
    head, rest = ptx.split("\n)", 1)
    start, _, listed = head.partition("(\n")
    lines = [line.rstrip(",") for line in listed.splitlines()]
    own = lines[count:]
    kept = lines[:count]
    for i, line in enumerate(own):
        if rest.count(f"{name}_param_{count + i}]") == 0:
            continue
        if not (scratch and i == 0):
            raise UnsupportedError("Triton's kernel needs memory that IREE does not give it")
        kept.insert(len(program.pointers), line)
    text = f"{start}(\n" + ",\n".join(kept) + "\n)" + rest
    return re.sub(r"\.version \d+\.\d+", f".version {PTX_VERSION}", text)
