"""The steps of all entries as tasks of a Dask cluster: what may start when, where, and what becomes of its answer."""

from __future__ import annotations

import heapq
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from onnx_fa.errors import RunError, one_line
from onnx_fa.zoo.crew import LATER, QUIET, Crew
from onnx_fa.zoo.entry_run import EntryRun, Job
from onnx_fa.zoo.remote_entry import RemoteEntry, all_before
from onnx_fa.zoo.remote_step import run_job
from onnx_fa.zoo.run import Advance
from onnx_fa.zoo.stages import ALL_STEPS, NEEDS, RUNNING, USES
from onnx_fa.zoo.step_process import record
from onnx_fa.zoo.store import LostFileError, Store, StoreError

if TYPE_CHECKING:
    from distributed import Client, Future

TIMING = ("bench",)
DEATHS = 3
"""A step is given to so many other workers after its own has died; then it is the step's fault. Dask's own count, its
`distributed.scheduler.allowed-failures`, is of workers that were there when the step was given out."""
RETRIES = 2
"""Dask gives a step that raised, such as for a store that did not answer, to a worker so many times more."""
PATIENCE_S = 120.0
"""How long a run waits when no worker is left that could take what remains."""
LOOK_S = 2.0
Json = dict[str, Any]


@dataclass
class _Flight:
    """A step on a worker, and how many workers have died of it."""

    number: int
    job: Job
    worker: str
    deaths: int


class Flow:
    """`alone`: workers for timing are the same as for all else, so that timing comes last, one model at a time."""

    def __init__(
        self,
        client: Client,
        crew: Crew,
        store: Store,
        states: Sequence[EntryRun],
        advance: Advance,
        alone: bool,
        say: Callable[[str], None],
    ) -> None:
        self._client, self._crew, self._advance, self._alone, self._say = client, crew, advance, alone, say
        self._entries = [RemoteEntry(s, store, crew.alike) for s in states]
        self._ready: dict[bool, list[tuple[int, int]]] = {False: [], True: []}  # by whether it is timing; (entry, step)
        self._seen: set[tuple[int, str]] = set()
        self._flying: dict[str, tuple[Future[Any], _Flight]] = {}
        self._landed: SimpleQueue[Future[Any]] = SimpleQueue()
        self._stuck_since: float | None = None
        self._kept: dict[tuple[int, str], set[str]] = {}
        """By entry and machine, the steps whose files that machine keeps, for they ran there or what they left was fetched."""

    def run(self) -> None:
        """All steps of all entries. Raises RunError where the scheduler is gone, or no worker is left, and StoreError."""
        for number in range(len(self._entries)):
            self._queue(number)
        while self._flying or any(self._ready.values()):
            self._crew.look()
            self._recall()
            self._start()
            if not self._flying and not any(self._ready.values()):
                return  # what was left has been taken over
            self._check_crew()
            try:
                landed = self._landed.get(timeout=LOOK_S)
            except Empty:
                continue
            self._land(landed)

    def _queue(self, number: int) -> None:
        """Queues the steps of an entry whose earlier steps are done."""
        state = self._entries[number].state
        wanted = state.settings.wanted_of(state.entry)
        for step in wanted:
            before = {*NEEDS[step], *(s for s in USES.get(step, ()) if s in wanted)}
            if (number, step) not in self._seen and before <= state.done.keys():
                self._seen.add((number, step))
                # The first entries first, and of an entry the first steps: its last are the sooner to come.
                heapq.heappush(self._ready[step in TIMING], (number, ALL_STEPS.index(step)))

    def _start(self) -> None:
        """Gives out as many steps as workers take at a time, and no more: Dask counts a worker's death to what waits there too."""
        for timing, ready in self._ready.items():
            while ready and (workers := self._free(timing)):
                number, index = heapq.heappop(ready)
                entry, step = self._entries[number], ALL_STEPS[index]
                job = entry.state.job(step)
                if job is None or entry.take_over(job):
                    self._done(number, step, taken=True)
                else:
                    self._submit(number, job, workers, deaths=0)

    def _free(self, timing: bool) -> list[str]:
        """The workers for a step, where one of them has nothing to do."""
        flying = [f.job.step in TIMING for _, f in self._flying.values()]
        if timing and self._alone:
            return [] if flying or self._ready[False] else list(self._crew.steps)
        workers = self._crew.timing if timing else self._crew.steps
        return list(workers) if flying.count(timing) < sum(workers.values()) else []

    def _submit(self, number: int, job: Job, workers: list[str], deaths: int) -> None:
        worker = self._nearest(number, job, self._crew.able(workers) if job.step in RUNNING else workers)
        future = self._client.submit(
            run_job,
            self._entries[number].prepare(job, self._crew.code),
            key=f"{job.step}-{uuid.uuid4().hex}",
            workers=[worker],
            resources={QUIET: 1} if job.step in TIMING and not self._alone else None,
            retries=RETRIES,
            pure=False,
        )
        self._flying[str(future.key)] = future, _Flight(number, job, worker, deaths)
        future.add_done_callback(self._landed.put)

    def _nearest(self, number: int, job: Job, workers: list[str]) -> str:
        """The worker for a step: one that is free, on the machine that keeps most of what the step reads, and there the idlest."""
        taken = Counter(flight.worker for _, flight in self._flying.values())
        room = self._crew.steps | self._crew.timing
        reads = all_before(job.before)

        def rank(worker: str) -> tuple[bool, int, float]:
            kept = self._kept.get((number, self._crew.facts[worker].host), set())
            return taken[worker] >= room[worker], -len(kept.intersection(reads)), taken[worker] / room[worker]

        return min(workers, key=rank)

    def _land(self, future: Future[Any]) -> None:
        if str(future.key) not in self._flying:
            return  # it has been recalled
        _, flight = self._flying.pop(str(future.key))
        if future.status == "finished":
            self._answer(flight, future.result())
        elif future.status == "error":
            error = future.exception()
            if isinstance(error, StoreError) and not isinstance(error, LostFileError):
                raise error  # no step could go on; a file that is lost ends what is made from it alone
            self._fail(flight, _words(error))
        else:  # cancelled, for the scheduler does not know it
            if self._client.status != "running":
                raise RunError(f"the scheduler is gone: {LATER}")
            self._again(flight)

    def _answer(self, flight: _Flight, answer: Json) -> None:
        if why := answer.get("refused"):
            self._crew.refuse(answer["worker"], why)
            self._requeue(flight)
            return
        if not answer["taken"]:
            here = self._kept.setdefault((flight.number, self._crew.facts[flight.worker].host), set())
            here |= {flight.job.step, *all_before(flight.job.before)}
        self._entries[flight.number].keep(flight.job, answer["record"], answer["log"])
        self._done(flight.number, flight.job.step, taken=answer["taken"])

    def _recall(self) -> None:
        """Dask keeps a step whose worker is gone for when it is back, which it will not be under its address."""
        for key, (future, flight) in list(self._flying.items()):
            timing = flight.job.step in TIMING and not self._alone
            here = self._crew.timing if timing else self._crew.steps
            if here and flight.worker not in here:
                del self._flying[key]
                future.cancel()
                self._again(flight)

    def _again(self, flight: _Flight) -> None:
        timing = flight.job.step in TIMING and not self._alone
        deaths = flight.deaths + (flight.worker not in self._crew.refused)
        if deaths > DEATHS:
            self._fail(flight, f"each of {DEATHS + 1} workers died of it")
        elif workers := list(self._crew.timing if timing else self._crew.steps):
            self._submit(flight.number, flight.job, workers, deaths)
        else:
            self._requeue(flight)

    def _requeue(self, flight: _Flight) -> None:
        heapq.heappush(self._ready[flight.job.step in TIMING], (flight.number, ALL_STEPS.index(flight.job.step)))

    def _fail(self, flight: _Flight, why: str) -> None:
        self._entries[flight.number].keep(flight.job, record(False, why) | {"key": flight.job.key})
        self._done(flight.number, flight.job.step, taken=False)

    def _done(self, number: int, step: str, taken: bool) -> None:
        self._advance(self._entries[number].state.entry.name, step, taken)
        self._queue(number)

    def _check_crew(self) -> None:
        """Raises RunError when nothing that remains could go on for long."""
        waiting = {timing for timing, ready in self._ready.items() if ready}
        waiting |= {f.job.step in TIMING for _, f in self._flying.values()}
        if any(self._crew.timing if timing and not self._alone else self._crew.steps for timing in waiting):
            self._stuck_since = None
            return
        now = time.monotonic()
        if self._stuck_since is None:
            self._stuck_since = now
            self._say(f"no worker is left: waiting {PATIENCE_S:g} s for one")
        elif now - self._stuck_since > PATIENCE_S:
            raise RunError(f"no worker is left for {'timing' if waiting == {True} else 'the steps'}: {LATER}")


def _words(error: BaseException | None) -> str:
    from distributed.scheduler import KilledWorker

    if isinstance(error, KilledWorker):
        return f"each of {error.allowed_failures + 1} workers died of it, the last of them {error.last_worker.address}"
    if isinstance(error, LostFileError):
        return str(error)
    return f"the worker failed: {one_line(error) if error else 'no message'}"
