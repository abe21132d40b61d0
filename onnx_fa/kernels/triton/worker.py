"""Compiles one program, given as a file of JSON, and writes JSON to stdout: the process that `ptx.compile_program` starts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from onnx_fa.kernels.triton.program import Program
from onnx_fa.kernels.triton.ptx import triton_compile


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    fields = job["program"]
    fields["pointers"] = tuple(tuple(p) for p in fields["pointers"])
    fields["constants"] = tuple(fields["constants"])
    print(json.dumps(triton_compile(Program(**fields), job["arch"], job["warps"], job["stages"])))


if __name__ == "__main__":
    main()
