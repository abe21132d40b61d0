"""Steps of the zoo in processes that are forked from one which has loaded the package, as commands are
(tests/support/cli_process.py): most of them end sooner than a new interpreter has loaded it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import TimeoutExpired

import pytest

from onnx_fa.processes import Finished
from onnx_fa.zoo import step_process
from tests.support.cli_process import run_main


class _Forks:
    """Stands in for the module `processes` in onnx_fa/zoo/step_process.py."""

    @staticmethod
    def run_limited(
        command: Sequence[str], *, timeout_s: float, memory_bytes: int, env: Mapping[str, str] | None = None
    ) -> Finished:
        """Without the limit on memory, and with none said to be used."""
        program, option, module, *args = command
        assert (program, option, module) == (sys.executable, "-m", "onnx_fa.zoo.steps")
        began = time.monotonic()
        try:
            done = run_main(module, args, Path.cwd(), env, timeout_s)
        except TimeoutExpired:
            return Finished("timeout", -9, time.monotonic() - began, 0, "", "")
        ending = "failed" if done.returncode else "ok"
        return Finished(ending, done.returncode, time.monotonic() - began, 0, done.stdout, done.stderr)


@contextmanager
def forked_steps() -> Iterator[None]:
    """Within it the steps of this process are forked; those of commands that it starts as programs are not."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(step_process, "limits", _Forks)
        yield
