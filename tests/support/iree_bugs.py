"""The files that show a compiler bug each, compiled by the stock compiler."""

from __future__ import annotations

import subprocess
from pathlib import Path

from onnx_fa.iree.compiler import find_compiler
from tests.support.kernel_harness import HOST

FOLDER = Path(__file__).parents[1] / "iree_bugs"
REPAIRED = "this IREE no longer has the bug: its guard (docs/developer/iree-bugs.md) can go"


def compiled(name: str, folder: Path, *flags: str, device: tuple[str, ...] = HOST.flags) -> Path:
    out = folder / "bug.vmfb"
    command = [str(find_compiler()), str(FOLDER / f"{name}.mlir"), "-o", str(out), *device, *flags]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return out
