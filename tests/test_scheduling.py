"""Calls as batch jobs of Linux."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from onnx_fa import processes, scheduling
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.run import Bound, load_module
from onnx_fa.scheduling import as_batch_job, batch_command, become_batch_job
from onnx_fa.spec.target import parse_target
from tests.support import tiny

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="a policy of Linux")
policy = os.sched_getscheduler


def test_only_as_long_as_it_lasts() -> None:
    with as_batch_job():
        assert policy(0) == os.SCHED_BATCH
        with as_batch_job():
            assert policy(0) == os.SCHED_BATCH
        assert policy(0) == os.SCHED_BATCH
    assert policy(0) == os.SCHED_OTHER


def test_also_where_the_call_fails() -> None:
    with pytest.raises(ZeroDivisionError), as_batch_job():
        _ = 1 / 0
    assert policy(0) == os.SCHED_OTHER


def test_other_threads_stay_what_they_are() -> None:
    found: list[int] = []
    go, done = threading.Event(), threading.Event()

    def look() -> None:
        go.wait(10)
        found.append(policy(0))
        done.set()

    thread = threading.Thread(target=look)
    thread.start()
    with as_batch_job():
        go.set()
        done.wait(10)
    thread.join()
    assert found == [os.SCHED_OTHER]


def test_another_policy_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling.os, "sched_getscheduler", lambda pid: os.SCHED_IDLE)
    assert not become_batch_job()


def test_where_it_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(scheduling.os, "sched_setscheduler", refuse)
    with as_batch_job():
        assert policy(0) == os.SCHED_OTHER


@pytest.mark.parametrize("batch", [False, True])
def test_a_program(batch: bool) -> None:
    command = [sys.executable, "-c", "import os; print(os.sched_getscheduler(0) == os.SCHED_BATCH)"]
    done = processes.run_limited(command, timeout_s=60, memory_bytes=1 << 30, batch=batch)
    assert done.stdout.strip() == str(batch)


@pytest.mark.parametrize("on_host", [False, True])
def test_a_call(on_host: bool) -> None:
    bound = Bound("f", lambda *arrays: policy(0), on_host)
    assert bound() == [os.SCHED_BATCH if on_host else os.SCHED_OTHER]


def test_a_module_that_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call of a module, that of a CPU, is one."""
    compile_model(tiny.attention(tmp_path / "a.onnx", mask=False), tmp_path / "a.vmfb", parse_target("cpu-host"))
    made: list[bool] = []
    monkeypatch.setattr(scheduling, "become_batch_job", lambda: made.append(True))
    x = np.zeros((1, 2, 20, 16), np.float32)
    (got,) = load_module(tmp_path / "a.vmfb")(x, x, x)
    assert np.isfinite(got).all() and made == [True]


def test_what_commands_begin_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert batch_command() == ["chrt", "-b", "0"]
    monkeypatch.setattr(scheduling.shutil, "which", lambda name: None)
    assert batch_command() == []
