"""Workers that are away for a moment, and a scheduler that is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, Scheduler, SpecCluster, Worker

import onnx_fa.zoo.remote_step as remote_step
from onnx_fa.errors import RunError
from onnx_fa.zoo.cluster import Cluster
from onnx_fa.zoo.crew import Crew
from onnx_fa.zoo.entries import Entry
from onnx_fa.zoo.run import run
from onnx_fa.zoo.settings import Settings
from onnx_fa.zoo.step_process import record
from onnx_fa.zoo.store import Store


@pytest.fixture
def workers() -> Iterator[Any]:
    """One for steps and one for timing, in this process."""
    options: dict[str, Any] = {"nthreads": 1, "host": "127.0.0.1"}
    specs = {
        "a": {"cls": Worker, "options": options},
        "b": {"cls": Worker, "options": options | {"resources": {"quiet": 1}}},
    }
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": "127.0.0.1:0", "port": 0, "host": "127.0.0.1"}}
    with SpecCluster(workers=specs, scheduler=scheduler, silence_logs=50) as made:
        yield made


def test_a_worker_that_is_back_is_asked_anew(workers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(workers, set_as_default=False) as client:
        client.wait_for_workers(2)
        crew = Crew(client, "cpu-host", Store(tmp_path), print)
        crew.look()
        before = dict(crew.steps), dict(crew.timing)
        assert [len(b) for b in before] == [1, 1]
        with monkeypatch.context() as away:
            away.setattr(crew, "_known", dict)
            crew.look()
            assert not crew.steps and not crew.timing and crew.machine["cpu"]
        crew.look()
        assert (crew.steps, crew.timing) == before


def test_a_scheduler_that_is_gone_ends_the_run(workers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of it, in one line, and what was done is kept."""
    monkeypatch.setattr(remote_step, "run_step", lambda folder, step, given: record(True, "", data={}))
    said: list[str] = []
    with Client(workers, set_as_default=False) as client:
        client.wait_for_workers(2)
        found = Cluster(client, "cpu-host", Store(tmp_path / "store"), False, said.append)
        entries = [Entry(n, "family", n) for n in ("a", "b")]
        with pytest.raises(RunError, match=r"the scheduler (is gone|does not answer): run again"):
            run(
                entries,
                "cpu-host",
                tmp_path / "out",
                Settings(steps=("explain",)),
                lambda *_: workers.close(),
                None,
                found,
            )
    assert len(list((tmp_path / "store" / "records").iterdir())) == 1 and not said


def test_quiet_for_several_models_at_a_time_is_refused(tmp_path: Path) -> None:
    worker = {"cls": Worker, "options": {"nthreads": 2, "host": "127.0.0.1", "resources": {"quiet": 2}}}
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": "127.0.0.1:0", "port": 0, "host": "127.0.0.1"}}
    said: list[str] = []
    with (
        SpecCluster(workers={"a": worker}, scheduler=scheduler, silence_logs=50) as made,
        Client(made, set_as_default=False) as client,
    ):
        client.wait_for_workers(1)
        crew = Crew(client, "cpu-host", Store(tmp_path), said.append)
        crew.look()
    assert len(said) == 1 and "refused: quiet=2: a worker times one model at a time" in said[0] and not crew.timing
