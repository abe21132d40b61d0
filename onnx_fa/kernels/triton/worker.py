"""Compiles one program, given as a file of JSON, and writes JSON to stdout: the process that `ptx.compile_program` starts. It runs
as a file and imports nothing of this package, because loading the package takes as long as compiling a small kernel."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_TYPES = {"f16": "fp16", "bf16": "bf16", "f32": "fp32", "i8": "i8", "i32": "i32", "i64": "i64"}
_COMPILE = ("_C", "backends", "compiler", "experimental", "language", "runtime")
"""The folders of Triton whose files decide what becomes of a kernel."""


def main() -> None:
    name_triton()
    print(json.dumps(triton_compile(**json.loads(Path(sys.argv[1]).read_text()))))


def triton_compile(program: Mapping[str, Any], arch: int, warps: int, stages: int) -> dict[str, Any]:
    """What Triton makes in this process of a program, given as the fields of a Program: "ptx", and bytes of "shared" and "scratch"
    memory."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile
    from triton.experimental.gluon import GluonASTSource

    pointers = program["pointers"]
    signature = {name: f"*{_TYPES[element]}" for name, element in pointers}
    signature |= {f"s{i}": "i32" for i in range(len(program["constants"]))}
    with tempfile.TemporaryDirectory(prefix="onnx_fa-") as folder:
        function = load_function(program["entry"], program["text"], Path(folder))
        source = (GluonASTSource if function.is_gluon() else ASTSource)(
            fn=function,
            signature=signature,
            constexprs={},
            attrs={(i,): [["tt.divisibility", 16]] for i in range(len(pointers))},
        )
        options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
        done = compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    metadata: Any = done.metadata
    return {"ptx": done.asm["ptx"], "shared": metadata.shared, "scratch": int(metadata.global_scratch_size)}


def load_function(entry: str, text: str, folder: Path) -> Any:
    """The Triton function of the name `entry` that a text defines, from a file, which Triton reads its source from."""
    path = folder / f"{entry}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(entry, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, entry)


def name_triton() -> None:
    """Lets Triton's cache tell installations of Triton apart, in this process, by the sizes and times of their files. Triton hashes
    the files themselves, half a gigabyte, anew in each process: half of what a small kernel takes."""
    import triton
    from triton.runtime import cache

    key = f"{triton.__version__}-{hash_files(Path(triton.__file__).parent)}"
    cache.triton_key = lambda: key


def hash_files(folder: Path) -> str:
    """A hash of the paths, sizes in bytes and times of change of the files that compile, in an installation of Triton."""
    found = sorted(line for part in _COMPILE for line in _files(folder / part))
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


def _files(folder: Path) -> Iterator[str]:
    for path, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            status = os.stat(os.path.join(path, name))
            yield f"{path}/{name} {status.st_size} {status.st_mtime_ns}"


if __name__ == "__main__":
    main()
