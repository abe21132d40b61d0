"""Workers as processes: onnxruntime, torch or a copy, timed by another Python."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onnx_fa import processes as limits
from onnx_fa.benchmark.worker_session import Session
from onnx_fa.errors import RunError
from onnx_fa.huge_pages import huge_pages_environment
from onnx_fa.verifier.inputs import Array


def package_environment() -> dict[str, str]:
    """The environment for a child that imports this package, which may come from a checkout that only this process knows of. It
    has large pages where IREE's programs have them."""
    paths = [str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**huge_pages_environment(), "PYTHONPATH": os.pathsep.join(paths)}


@dataclass(frozen=True)
class Worker:
    """A process of `onnx_fa.benchmark.worker`: `inputs` is an .npz or a folder of .npy. It is a process of its own for each batch
    of calls, unless there is a `session`, which has no bound of memory."""

    kind: str
    argument: str
    inputs: Path
    threads: int
    timeout_s: float = 600
    memory_bytes: int = 12 << 30
    session: Session | None = None

    def start(self, calls: int, output: Path | None = None) -> WorkerRun:
        """Times `calls` calls; the results go to `output`, an .npz. Raises RunError."""
        job = [self.kind, self.argument, str(self.inputs), str(self.threads), str(calls)]
        job += [str(output)] if output else []
        if self.session is not None:
            said = self.session.ask(job)
            return WorkerRun([float(ms) for ms in said["ms"]], 0, said["extra_bytes"], str(said["how"]))
        command = [sys.executable, "-m", "onnx_fa.benchmark.worker", *job]
        env = package_environment()
        done = limits.run_limited(
            command, timeout_s=self.timeout_s, memory_bytes=self.memory_bytes, env=env, batch=True
        )
        if done.ending != "ok":
            last = [line for line in done.stderr.splitlines() if line.strip()]
            what = done.describe(self.timeout_s, self.memory_bytes)
            raise RunError(f"{self.kind} {what}: {without_path(last, self.argument, 200)}")
        said = json.loads(done.stdout.splitlines()[-1])
        return WorkerRun([float(ms) for ms in said["ms"]], done.peak_bytes, said["extra_bytes"], str(said["how"]))

    def results(self, folder: Path) -> list[Array]:
        """The results of one call. Raises RunError."""
        path = folder / f"{self.kind}.out.npz"
        self.start(0, path)
        with np.load(path) as archive:
            return [archive[n] for n in archive.files]

    def timed(self, calls: int) -> tuple[list[float], int]:
        done = self.start(calls)
        return done.ms, done.peak_bytes


@dataclass(frozen=True)
class WorkerRun:
    """What a worker said. `extra_bytes` is the memory beyond inputs and outputs, None where the system cannot tell."""

    ms: list[float]
    peak_bytes: int
    extra_bytes: int | None
    how: str


def without_path(lines: Sequence[str], path: str, length: int) -> str:
    """The last line that a program wrote; for the file that it was given, which the user has never seen, it says "the model"."""
    return lines[-1].replace(path, "the model")[:length] if lines else "no message"
