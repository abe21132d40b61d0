"""A worker (worker.py) that lives for many batches of calls: for a GPU, starting PyTorch for each takes far longer than they do."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from onnx_fa import processes as limits
from onnx_fa.errors import RunError
from onnx_fa.orphans import dies_with_parent


class Session:
    """A process that `ask` starts where none runs. Ends with the `with` block, or with the thread that asked first."""

    def __init__(self, env: Mapping[str, str], timeout_s: float) -> None:
        self.env, self.timeout_s = env, timeout_s
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._process is not None:
            limits.kill_group(self._process.pid)
            self._process.communicate()
            self._process = None

    def ask(self, job: Sequence[str]) -> dict[str, Any]:
        """What the worker says of a job, which is its command line. Raises RunError where it fails, ends or takes too long."""
        if self._process is None:
            self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the process
            self._process = subprocess.Popen(
                [sys.executable, "-m", "onnx_fa.benchmark.worker", "serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env=self.env,
                start_new_session=True,
                preexec_fn=dies_with_parent(),
            )
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(self.timeout_s, limits.kill_group, [process.pid])
        timer.start()
        try:
            process.stdin.write(json.dumps(list(job)) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            self.close()
            self._errors.seek(0)
            last = [x for x in self._errors.read().splitlines() if x.strip()]
            raise RunError(
                f"{job[0]} ended, or was stopped after {self.timeout_s:g} s: {last[-1][:200] if last else ''}"
            )
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise RunError(f"{job[0]} failed: {said['error']}")
        return said


class Sessions(Session):
    """A process for each library, as the threads of one that wait for work, and spin, slow another's down in the same process."""

    def __init__(self, env: Mapping[str, str], timeout_s: float) -> None:
        super().__init__(env, timeout_s)
        self._kept: dict[str, Session] = {}

    def close(self) -> None:
        for session in self._kept.values():
            session.close()
        self._kept.clear()

    def ask(self, job: Sequence[str]) -> dict[str, Any]:
        library = "onnxruntime" if job[0] == "ort-op" else job[0]
        if library not in self._kept:
            self._kept[library] = Session(self.env, self.timeout_s)
        return self._kept[library].ask(job)
