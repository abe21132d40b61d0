"""Kernels for a GPU, compiled by its driver before anything is timed: in processes side by side, into the cache on disk."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path


def start_slices(script: str, *arguments: str, quiet: bool = False) -> list[subprocess.Popen[bytes]]:
    """Starts a script in a process for each processor but two, each of which is told its part by `--slice FIRST:MANY`; what those
    say that are `quiet` is lost."""
    many = max(1, (os.cpu_count() or 2) - 2)
    command = [sys.executable, script, *arguments, "--slice"]
    errors = subprocess.DEVNULL if quiet else None
    return [subprocess.Popen([*command, f"{first}:{many}"], stderr=errors) for first in range(many)]


def slice_of(part: str) -> slice:
    """Of a list that is cut as FIRST:MANY says: one of many, from the first on."""
    first, many = map(int, part.split(":"))
    return slice(first, None, many)


def load_kernels(folder: Path, part: str) -> None:
    """The driver compiles some of the kernels of a folder."""
    import cupy

    for path in sorted(folder.glob("*.ptx"))[slice_of(part)]:
        entry = re.search(r"\.entry (\w+)", path.read_text())
        assert entry is not None
        cupy.RawModule(path=str(path)).get_function(entry[1])
