"""Stock IREE: a model through its own importer and compiler."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx_fa import processes as limits
from onnx_fa.benchmark.worker_process import without_path
from onnx_fa.iree.compiler import iree_compile
from onnx_fa.spec.target import Target


def compile_stock(source: Path, target: Target, settings: Mapping[str, Any], output: Path) -> None:
    iree_compile(source, output, target, **settings)


def stock_import(path: Path, folder: Path) -> Path | str:
    """The model through iree-import-onnx, or the reason why that fails."""
    output = folder / "stock.mlir"
    # The wheel's own program, as a user would run it.
    command = [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(path), "-o", str(output)]
    done = limits.run_limited(command, timeout_s=300, memory_bytes=12 << 30)
    if done.ending == "ok" and output.exists():
        return output
    last = [line for line in done.stderr.splitlines() if line.strip()]
    return f"iree-import-onnx {done.describe(300, 12 << 30)}: {without_path(last, str(path), 160)}"


def without_log(message: str) -> str:
    """A compiler's message without the name of its log: the folder goes with the run."""
    return message.partition("; command and messages")[0]
