"""The zoo on a Dask cluster: the same results as here, timing alone, workers that die or differ."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import psutil
import pytest
from distributed import Client, Scheduler, SpecCluster, Worker, get_worker

import onnx_fa.zoo.crew as crew
import onnx_fa.zoo.flow as flow
import onnx_fa.zoo.remote_step as remote_step
import onnx_fa.zoo.worker_facts as worker_facts
import tests.support.tiny as tiny
from onnx_fa.cli.command import main
from onnx_fa.errors import OnnxFaError, RunError
from onnx_fa.zoo.cluster import Cluster, cluster
from onnx_fa.zoo.entries import Entry
from onnx_fa.zoo.run import Elsewhere, read_results, run
from onnx_fa.zoo.settings import Settings
from onnx_fa.zoo.step_process import record
from onnx_fa.zoo.store import Store, StoreError
from onnx_fa.zoo.worker_facts import Code, Facts, code_here

Json = dict[str, Any]
ALL = Settings(rounds=2, calls=1, threads=1)
BUSY: Json = {"cls": Worker, "options": {"nthreads": 2, "host": "127.0.0.1"}}
QUIET: Json = {"cls": Worker, "options": {"nthreads": 2, "host": "127.0.0.1", "resources": {"quiet": 1}}}


class Steps:
    """In place of the processes of steps: they do little, and where they ran is kept."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, str, str]] = []
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.changed = threading.Condition()
        self.wait_for_two = False
        """Steps but for timing wait until a second one runs beside them: on a busy machine none would meet another."""

    def __call__(self, folder: Path, step: str, given: Json) -> Json:
        said = self.run(folder, step, given)
        if said["ok"]:
            (folder / f"{step}.json").write_text(json.dumps(said["data"]))
        return said

    def run(self, folder: Path, step: str, given: Json) -> Json:
        name = given["entry"]["name"]
        try:
            where = get_worker().address
        except ValueError:
            where = "here"
        with self.changed:
            self.ran.append((name, step, where))
            self.running[where] += 1
            self.most[where] = max(self.most[where], self.running[where])
            self.changed.notify_all()
            if self.wait_for_two and step != "bench":
                self.changed.wait_for(lambda: max(self.most.values()) > 1, timeout=60)
        time.sleep(0.02)
        with self.changed:
            self.running[where] -= 1
        if step == "export":
            (folder / "model.onnx").write_text(f"model of {name}")
            return record(True, "", seconds=1.0, data={"model": str(folder.resolve() / "model.onnx")})
        # What it is made from is here, whoever made it.
        model = Path(json.loads((folder / "export.json").read_text())["model"])
        assert model == folder.resolve() / "model.onnx" and model.read_text() == f"model of {name}"
        if (name, step) == ("odd", "stock"):
            (folder / "stock.log").write_text("all of it")
            return record(False, f"{folder.resolve()}/spec.mlir: cannot be", seconds=1.0)
        if step in ("compile", "stock"):
            (folder / ("model.vmfb" if step == "compile" else "stock.vmfb")).write_text(step)
        if step == "compile":
            (folder / "model.irpa").write_text("weights")  # of a large model, beside its module
        if step == "bench":
            assert (folder / "model.irpa").read_text() == "weights"
            assert [(folder / f"{n}.vmfb").exists() for n in ("model", "stock")] == [True, name != "odd"]
            return record(True, "", data={"ratios": {}})
        if step == "explain":
            (folder / "sites.html").write_text(f"<p>{name}</p>")
        data = {"sites": [], "misses": [], "kernels": 0, "arrived": 0, "buffers": [], "bad": []}
        return record(True, "", seconds=1.0, data=data)

    def counts(self) -> Counter[tuple[str, str]]:
        return Counter((name, step) for name, step, _ in self.ran)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    made = Steps()
    monkeypatch.setattr(remote_step, "run_step", made)
    monkeypatch.setattr("onnx_fa.zoo.entry_run.run_step", made)
    monkeypatch.setattr(remote_step, "code_here", functools.cache(code_here))
    monkeypatch.setattr(flow, "LOOK_S", 0.2)
    return made


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path) -> Iterator[Path]:
    """Where workers have their folders, and beside these the files that they keep: no test finds those of another."""
    with dask.config.set(temporary_directory=str(tmp_path / "scratch")):
        yield tmp_path / "scratch"


ENTRIES = [Entry(n, "family", n) for n in ("d/e", "odd", "a")]


@pytest.fixture
def client() -> Iterator[Client]:
    """Of two workers for steps and one for timing, all in this process."""
    with workers(BUSY, BUSY, QUIET) as made, Client(made, set_as_default=False) as found:
        found.wait_for_workers(3)
        yield found


def workers(*specs: Json) -> Any:
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": "127.0.0.1:0", "port": 0, "host": "127.0.0.1"}}
    return SpecCluster(workers=dict(enumerate(specs)), scheduler=scheduler, silence_logs=50)


class On:
    """A cluster of a client, with what it says."""

    def __init__(self, client: Client, place: str | Path, alone: bool = False) -> None:
        self.said: list[str] = []
        self.cluster: Elsewhere = Cluster(client, "cpu-host", Store(place), alone, self.said.append)


def test_the_same_results_as_here(client: Client, steps: Steps, tmp_path: Path) -> None:
    """And the same files, but for those that are in the store."""
    here, there = tmp_path / "here", tmp_path / "there"
    run(ENTRIES, "cpu-host", here, ALL)
    steps.ran.clear()
    run(ENTRIES, "cpu-host", there, ALL, elsewhere=On(client, f"file://{tmp_path}/store").cluster)
    for name in ("results.jsonl", "run.json"):
        assert (there / name).read_text().replace("/there/", "/here/") == (here / name).read_text()
    kept = {p.relative_to(here): p for p in here.rglob("*") if p.is_file()}
    assert {p.relative_to(there) for p in there.rglob("*") if p.is_file()} == {
        p for p in kept if p.suffix not in (".onnx", ".vmfb", ".irpa") and p.name != "entry.json"
    }
    assert (there / "work" / "odd" / "stock.log").read_text() == "all of it"
    assert set(steps.counts().values()) == {1}
    assert len({w for _, step, w in steps.ran if step != "bench"}) == 2


def test_what_is_done_is_taken_over(client: Client, steps: Steps, tmp_path: Path) -> None:
    """From the store, wherever the results go, and from a run without a cluster. What failed is tried again."""
    place = tmp_path / "store"
    taken: list[tuple[str, str]] = []

    def again(name: str) -> list[tuple[str, str]]:
        steps.ran.clear()
        taken.clear()
        run(ENTRIES, "cpu-host", tmp_path / name, ALL, lambda e, s, t: taken.append((e, s)) if t else None, None,
            On(client, place).cluster)  # fmt: skip
        return [(name, step) for name, step, _ in steps.ran]

    assert len(again("a")) == 24 and not taken
    assert again("a") == again("b") == [("odd", "stock")] and len(taken) == 23
    files = sorted(place.glob("files/*"))
    [model] = [f for f in files if f.read_text() == "model of d/e"]
    model.unlink()  # without it, the model is exported again; what was made from it is as it was
    assert sorted(again("a")) == [("d/e", "export"), ("odd", "stock")]
    run(ENTRIES, "cpu-host", tmp_path / "here", ALL)
    place = tmp_path / "other"
    assert again("here") == [("odd", "stock")] and len(taken) == 23


def test_timing_is_alone(client: Client, steps: Steps, tmp_path: Path) -> None:
    """On the worker for it, which takes nothing else, one model at a time, whatever its threads."""
    many = [Entry(f"m{i}", "family", "bert") for i in range(5)]
    on, steps.wait_for_two = On(client, tmp_path), True
    run(many, "cpu-host", tmp_path / "out", ALL, elsewhere=on.cluster)
    quiet = {address for address, w in client.scheduler_info()["workers"].items() if w["resources"]}
    assert {where for _, step, where in steps.ran if step == "bench"} == quiet
    assert not quiet & {where for _, step, where in steps.ran if step != "bench"}
    assert [steps.most[where] for where in quiet] == [1] and max(steps.most.values()) == 2
    on.cluster.require(["bench"])  # type: ignore[attr-defined]
    assert len(on.said) == 1 and "shares its machine" in on.said[0]


def test_timing_comes_last_where_it_has_no_machine(steps: Steps, tmp_path: Path) -> None:
    with workers(BUSY, BUSY) as made, Client(made, set_as_default=False) as client:
        client.wait_for_workers(2)
        with pytest.raises(OnnxFaError, match=r"no worker for timing: .*--resources quiet=1"):
            On(client, tmp_path).cluster.require(["bench"])  # type: ignore[attr-defined]
        run(ENTRIES, "cpu-host", tmp_path / "out", ALL, elsewhere=On(client, tmp_path, alone=True).cluster)
    names = [step for _, step, _ in steps.ran]
    assert names.index("bench") == len(names) - len(ENTRIES)


def test_workers_that_come_one_after_the_other(
    steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one for timing first: the run waits for one that takes steps, but not for ever."""
    with workers(QUIET) as made:
        address = made.scheduler_address
        options = ["--filter", "gpt2", "--steps", "bench", "-o", str(tmp_path / "out")]
        monkeypatch.setattr("onnx_fa.zoo.cluster.FIRST_WORKER_S", 0.2)
        assert main(["zoo", "run", "--scheduler", address, *options]) == 2
        said = capsys.readouterr().err
        assert "no worker for steps: waiting 0.2 s for one" in said and "error: no worker for steps: start" in said
        monkeypatch.setattr("onnx_fa.zoo.cluster.FIRST_WORKER_S", 30)
        lines: list[str] = []

        def come(line: str) -> None:
            lines.append(line)
            if "waiting" in line:
                made.scale(2)

        made.new_spec = BUSY
        with cluster(address, 1, tmp_path / "store", "cpu-host", ["export", "bench"], come) as found:
            assert len(found._crew.steps) == len(found._crew.timing) == 1
        assert lines[0] == "no worker for steps: waiting 30 s for one"


def test_a_file_that_is_lost_ends_what_is_made_from_it(
    client: Client, steps: Steps, tmp_path: Path, scratch: Path
) -> None:
    """Of one model, in the middle of a run, where no worker keeps it; the next run makes it again."""
    place, settings = tmp_path / "store", Settings(steps=("rewrite",))

    def damage(entry: str, step: str, taken: bool) -> None:
        if (entry, step, taken) == ("a", "export", False):
            [path] = [p for p in place.glob("files/*") if p.read_text() == "model of a"]
            path.write_text("torn")
            # Workers make and remove folders meanwhile, at which os.walk, unlike rglob, does not stumble.
            walked = ((Path(root), files) for root, _, files in os.walk(scratch))
            [kept] = [root for root, files in walked if root.name == remote_step.KEPT and path.name in files]
            (kept / path.name).unlink()

    def ok(results: list[Json]) -> Json:
        return {r["name"]: [s["ok"] for s in r["steps"].values()] for r in results}

    results = run(ENTRIES, "cpu-host", tmp_path / "a", settings, damage, elsewhere=On(client, place).cluster)
    assert ok(results) == {"d/e": [True, True], "odd": [True, True], "a": [True, False]}
    assert results[-1]["steps"]["rewrite"]["message"].endswith("run again, and the step that made it is run again")
    results = run(ENTRIES, "cpu-host", tmp_path / "b", settings, elsewhere=On(client, place).cluster)
    assert all(all(said) for said in ok(results).values()) and steps.counts()["a", "export"] == 2


def test_a_machine_fetches_a_file_once(
    client: Client, steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's model, and here, where all workers are on the machine that made them, no file of a step."""
    path = tmp_path / "own.onnx"
    path.write_text("model of own")
    fetched: Counter[str] = Counter()
    get = Store.get

    def counted(self: Store, digest: str, to: Path) -> None:
        if to.name not in ("probe", "sites.html"):  # of each worker when it is new; of the client
            fetched[to.name] += 1
        get(self, digest, to)

    monkeypatch.setattr(Store, "get", counted)
    entry = Entry("own", "path", path.name, base=str(tmp_path))
    run([entry], "cpu-host", tmp_path / "out", ALL, elsewhere=On(client, tmp_path / "store").cluster)
    assert fetched == {"own.onnx": 1} and len(steps.ran) == 8


def test_a_step_goes_where_its_files_are(steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the machine that the model was made on, while another, the first, has nothing to do."""

    here = crew.facts_here

    def facts(*args: str, dask_worker: Worker) -> Facts:
        return dataclasses.replace(here(*args), host=dask_worker.address)

    monkeypatch.setattr(crew, "facts_here", facts)
    run_steps = steps.run

    def slowly(folder: Path, step: str, given: Json) -> Json:
        time.sleep(0.3 * (given["entry"]["name"] == "slow"))
        return run_steps(folder, step, given)

    monkeypatch.setattr(steps, "run", slowly)
    one = {"cls": Worker, "options": {"nthreads": 1, "host": "127.0.0.1"}}
    with workers(one, one) as made, Client(made, set_as_default=False) as found:
        found.wait_for_workers(2)
        entries = [Entry(n, "family", n) for n in ("fast", "slow")]
        on = On(found, tmp_path / "store")
        run(entries, "cpu-host", tmp_path / "out", Settings(steps=("compile",)), elsewhere=on.cluster)
    where = {name: {w for n, _, w in steps.ran if n == name} for name in ("fast", "slow")}
    assert len(steps.ran) == 6 and len(where["fast"]) == len(where["slow"]) == 1 and where["fast"] != where["slow"]


# Workers that are refused, or not there.


def test_workers_of_other_code_are_refused(
    client: Client, steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = code_here()
    newer = Code(mine.sources, tuple((n, "99" if n == "onnx" else v) for n, v in mine.versions))
    monkeypatch.setattr(crew, "code_here", lambda: newer)
    on = On(client, tmp_path)
    assert len(on.said) == 3 and all("refused: onnx is 1." in s and "there and 99 here" in s for s in on.said)
    with pytest.raises(OnnxFaError, match="no worker for steps"):
        on.cluster.require(["export"])  # type: ignore[attr-defined]
    monkeypatch.setattr(crew, "code_here", lambda: dataclasses.replace(mine, sources="others"))
    assert all("its sources of onnx_fa are others" in s for s in On(client, tmp_path).said)


def test_a_worker_whose_code_changes_is_refused(
    client: Client, steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a run, which goes on with the others."""
    on, first = On(client, tmp_path), []

    def other_code(*_: Code) -> str:
        first[:] = first or [get_worker().address]
        return "it was changed" if get_worker().address in first else ""

    monkeypatch.setattr(remote_step, "other_code", other_code)
    results = run(ENTRIES, "cpu-host", tmp_path / "out", Settings(steps=("explain",)), elsewhere=on.cluster)
    assert all(s["ok"] for r in results for s in r["steps"].values())
    assert on.said == [f"{first[0]}: refused: it was changed"] and first[0] not in {w for _, _, w in steps.ran}


def test_a_package_with_other_weights_is_not_the_same_model(
    client: Client, steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a worker: its step fails, and that of no other model."""
    monkeypatch.setattr(remote_step, "digest_of_weights", lambda entry: "another" if entry.name == "odd" else "")
    on = On(client, tmp_path)
    results = run(ENTRIES, "cpu-host", tmp_path / "out", Settings(steps=("explain",)), elsewhere=on.cluster)
    failed = [(r["name"], s, said["message"]) for r in results for s, said in r["steps"].items() if not said["ok"]]
    assert [name for name, *_ in failed] == ["odd", "odd"] and "its odd is not the one that is here" in failed[0][2]


def test_other_processors_are_refused_where_the_target_is_the_one_at_hand(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = dict.fromkeys(client.scheduler_info()["workers"], "Common")
    of[next(iter(of))] = "Rare"

    def facts(*_: str, dask_worker: Worker) -> Facts:
        return Facts(code_here(), "host", of[dask_worker.address], "", "", "")

    monkeypatch.setattr(crew, "facts_here", facts)
    on = On(client, tmp_path)
    assert len(on.said) == 1 and "its processor is Rare, that of others Common" in on.said[0]
    assert on.cluster.machine["cpu"] == "Common"
    said: list[str] = []
    Cluster(client, "cpu-avx2", Store(tmp_path), False, said.append)
    assert not said


def test_a_store_that_workers_do_not_find(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def get(*_: object) -> None:
        raise StoreError("s: no file")

    monkeypatch.setattr(Store, "get", get)
    assert all(s.endswith("refused: it has not the store that is here: s: no file") for s in On(client, tmp_path).said)


class Odd(Exception):
    """One that pickle takes, and cannot make anew."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def test_a_worker_that_cannot_say_what_it_has(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exception stays where it is, and the worker is refused in a line that quotes it."""

    def raises(target: str) -> str:
        raise Odd("the driver", "does not answer")

    monkeypatch.setattr(worker_facts, "why_not_here", raises)
    said = On(client, tmp_path).said
    assert len(said) == 3 and all(
        s.endswith("refused: it cannot say what it has: the driver does not answer") for s in said
    )


def test_no_worker_is_left(client: Client, steps: Steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "PATIENCE_S", 0.1)
    monkeypatch.setattr(remote_step, "other_code", lambda *_: "gone")
    on = On(client, tmp_path)
    with pytest.raises(RunError, match="no worker is left for the steps: run again"):
        run(ENTRIES, "cpu-host", tmp_path / "out", ALL, elsewhere=on.cluster)
    assert on.said[-1] == "no worker is left: waiting 0.1 s for one"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--scheduler", "tcp://127.0.0.1:1"], "tcp://127.0.0.1:1: no Dask scheduler answers there: Timed out"),
        (["--scheduler", "pigeon://a"], "pigeon://a: no Dask scheduler answers there: unknown address scheme"),
        (["--scheduler", "--store", "pigeon://a"], "pigeon://a: cannot be read or written: Protocol not known"),
        (["--scheduler", "--store", "/dev/null"], "/dev/null: cannot be read or written"),
        (["--scheduler", "a:1", "--jobs", "2"], "--jobs: "),
        (["--store", "a"], "--store: "),
        (["no dask", "--scheduler"], "--scheduler needs Dask: pip install 'onnx-fa[cluster]'"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    options: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("onnx_fa.zoo.cluster.CONNECT_S", 0.2)
    if options[0] == "no dask":
        monkeypatch.setitem(sys.modules, "distributed", None)
        options = options[1:]
    assert main(["zoo", "run", "--filter", "gpt2", "--steps", "export", "-o", str(tmp_path / "out"), *options]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"onnx-fa: error: {why}") and said.count("\n") == 1, said


# Workers that die. These are processes.


def test_a_killed_worker_loses_its_step_alone(tmp_path: Path) -> None:
    """In the middle of a step, with its process: the other worker does that step, and no other again."""
    tiny.attention(tmp_path / "a.onnx")
    entry = Entry("a", "path", "a.onnx", base=str(tmp_path))
    settings = Settings(steps=("compile",))
    killed: list[int] = []
    with cluster("", 2, tmp_path / "store", "cpu-host", settings.wanted, print) as found:

        def kill(step: str) -> None:
            """The worker that runs the step."""
            deadline = time.monotonic() + 60
            while not killed and time.monotonic() < deadline:
                for child in psutil.Process().children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        if ["onnx_fa.zoo.steps", step] == child.cmdline()[2:4]:
                            killed.append(child.pid)
                            os.kill(child.ppid(), signal.SIGKILL)
                time.sleep(0.02)

        thread = threading.Thread(target=kill, args=("compile",))
        thread.start()
        taken: list[tuple[str, bool]] = []
        (result,) = run(
            [entry], "cpu-host", tmp_path / "out", settings, lambda _, s, t: taken.append((s, t)), None, found
        )
        thread.join()
    assert killed and not psutil.pid_exists(killed[0])
    assert result["ok"] and taken == [(s, False) for s in ("export", "compile", "check")]
    assert len(list((tmp_path / "store" / "records").iterdir())) == 3


@pytest.mark.whole
def test_a_step_that_kills_its_workers_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one entry; the others, and that entry's other steps, are as ever."""

    def run_job(job: Any) -> Json:
        if (job.entry["name"], job.step) == ("odd", "explain"):
            os.kill(os.getpid(), signal.SIGKILL)
        return {"record": record(True, "", data={}) | {"key": job.key}, "taken": False, "log": ""}

    monkeypatch.setattr(flow, "run_job", run_job)
    monkeypatch.setattr(flow, "DEATHS", 1)
    settings = Settings(steps=("explain", "rewrite"))
    with cluster("", 1, tmp_path / "store", "cpu-host", settings.wanted, print) as found:
        results = run(ENTRIES, "cpu-host", tmp_path / "out", settings, elsewhere=found)
    failed = [(r["name"], s, said["message"]) for r in results for s, said in r["steps"].items() if not said["ok"]]
    assert failed == [("odd", "explain", "each of 2 workers died of it")]
    assert read_results(tmp_path / "out" / "results.jsonl") == results
