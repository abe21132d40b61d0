"""Compiles one program, given as JSON on stdin, and writes JSON to stdout: the process that `ptx.compile_program` starts."""

from __future__ import annotations

import json
import sys

from onnx_fa.emit.triton.ptx import triton_compile
from onnx_fa.emit.triton.source import Program


def main() -> None:
    job = json.load(sys.stdin)
    fields = job["program"]
    fields["pointers"] = tuple(tuple(p) for p in fields["pointers"])
    fields["constants"] = tuple(fields["constants"])
    print(json.dumps(triton_compile(Program(**fields), job["arch"], job["warps"], job["stages"])))


if __name__ == "__main__":
    main()
