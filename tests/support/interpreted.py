"""Runs a module of tests.support in Triton's interpreter, in a process of its own: Triton decides when it is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def distances_of(module: str, names: Iterable[str] = ()) -> dict[str, float]:
    """What `python -m tests.support.MODULE NAME...` prints last: distances from float64, by case."""
    command = [sys.executable, "-m", f"tests.support.{module}", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
