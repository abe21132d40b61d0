"""A step of an entry in a process of its own, with limits; what it said, and the files that it leaves to other steps."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from onnx_fa import processes as limits
from onnx_fa.benchmark.worker_process import package_environment
from onnx_fa.files import write_whole

Json = dict[str, Any]
MEMORY = 8 << 30
MADE = {
    "export": ("model.onnx", "model.static.onnx", "model.dynamic.onnx", "inputs.npz", "unpacked/**/*"),
    "explain": ("sites.html",),
    "compile": ("model.vmfb", "model.irpa"),
    "stock": ("stock.vmfb",),
    "iree-import": ("iree.mlir",),
    "iree-compile": ("iree.vmfb",),
}
"""The files of each step that other steps read: damaged since, they are made again."""


def run_step(folder: Path, step: str, given: Json) -> Json:
    """Runs a step in `folder`, which holds what earlier steps left. `given` has the entry, the target and the step's settings.
    Returns what it said; of one that failed, STEP.log in the folder has all that it wrote."""
    folder.mkdir(exist_ok=True)
    result = folder / f"{step}.json"
    result.unlink(missing_ok=True)
    write_whole(folder / "entry.json", json.dumps(given))
    timeout_s = given["settings"]["timeout_s"]
    command = [sys.executable, "-m", "onnx_fa.zoo.steps", step, str(folder.resolve())]
    start = time.monotonic()
    done = limits.run_limited(command, timeout_s=timeout_s, memory_bytes=MEMORY, env=package_environment())
    seconds = round(time.monotonic() - start, 1)
    if done.ending == "ok" and result.is_file():
        return record(True, "", seconds=seconds, peak=done.peak_bytes, data=json.loads(result.read_text()))
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    message = lines[-1].strip()[:400] if lines else "no message"
    if done.ending != "failed" or done.returncode != 1:
        message = f"{done.describe(timeout_s, MEMORY)}: {message}"
    write_whole(folder / f"{step}.log", done.stdout + done.stderr)
    return record(False, message, seconds=seconds, peak=done.peak_bytes)


def made_by(folder: Path, step: str) -> dict[str, str]:
    """The sha256 of each file that a step leaves to others, by its path in the folder."""
    paths = [p for name in MADE.get(step, ()) for p in sorted(folder.glob(name)) if p.is_file()]
    return {p.relative_to(folder).as_posix(): file_digest(p) for p in paths}


def file_digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_record(path: Path) -> Json | None:
    """What a step said in an earlier run; None where there is nothing, or nothing that can be read."""
    try:
        return as_record(path.read_bytes())
    except OSError:
        return None


def as_record(data: bytes) -> Json | None:
    """What a step said, from a file; None where that is nothing of the kind."""
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found if isinstance(found, dict) and set(record(True, "")) <= set(found) else None


def record(
    ok: bool, message: str, *, seconds: float = 0.0, peak: int = 0, data: Json | None = None, skipped: bool = False
) -> Json:
    return {
        "ok": ok,
        "message": message,
        "seconds": seconds,
        "peak_bytes": peak,
        "data": data,
        "skipped": skipped,
        "key": "",
        "files": {},
    }
