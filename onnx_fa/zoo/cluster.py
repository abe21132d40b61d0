"""`zoo run --scheduler`: a Dask cluster in place of this machine."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_fa.errors import MissingDependencyError, OnnxFaError, one_line
from onnx_fa.zoo.crew import QUIET, Crew
from onnx_fa.zoo.entry_run import EntryRun
from onnx_fa.zoo.flow import TIMING, Flow
from onnx_fa.zoo.run import Advance
from onnx_fa.zoo.store import Store

if TYPE_CHECKING:
    from distributed import Client

Json = dict[str, Any]
CONNECT_S = 10
FIRST_WORKER_S = 30
LOOK_S = 0.5


class Cluster:
    """The workers of a cluster, as `zoo run` takes them. `alone`: a cluster of this machine, where timing comes last."""

    def __init__(self, client: Client, target: str, store: Store, alone: bool, say: Callable[[str], None]) -> None:
        self._client, self._store, self._alone, self._say = client, store, alone, say
        self._crew = Crew(client, target, store, say)
        self._crew.look()
        self.absent = self._crew.absent

    @property
    def machine(self) -> Json:
        return self._crew.machine

    def wait_for(self, steps: Sequence[str], seconds: float) -> None:
        """Waits until there are workers for all of the steps, at most so long: they come one after the other."""
        deadline = time.monotonic() + seconds
        if why := self._missing(steps):
            self._say(f"{why.partition(':')[0]}: waiting {seconds:g} s for one")
        while self._missing(steps) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
            self._crew.look()
        self.absent = self._crew.absent

    def require(self, steps: Sequence[str]) -> None:
        """Raises OnnxFaError where there is no worker for some of the steps."""
        if why := self._missing(steps):
            raise OnnxFaError(why)
        timing = set(steps) & set(TIMING)
        for address in self._crew.neighbours() if timing else ():
            self._say(
                f"{address}: shares its machine with other workers, so that its times are not those of a quiet machine"
            )

    def _missing(self, steps: Sequence[str]) -> str:
        if not self._crew.steps and set(steps) - set(TIMING):
            return "no worker for steps: start some with dask worker ADDRESS"
        if set(steps) & set(TIMING) and not self._alone and not self._crew.timing:
            return (
                f"no worker for timing: start one that takes nothing else with dask worker ADDRESS --resources {QUIET}=1, "
                "or leave bench out of --steps"
            )
        return ""

    def run(self, states: Sequence[EntryRun], advance: Advance) -> None:
        Flow(self._client, self._crew, self._store, states, advance, self._alone, self._say).run()


@contextlib.contextmanager
def cluster(
    address: str, workers: int, place: str | Path, target: str, steps: Sequence[str], say: Callable[[str], None]
) -> Iterator[Cluster]:
    """The cluster of the scheduler at `address`; where that is empty, one of so many `workers` on this machine. `place`
    is the store: a folder or a URL that all of them reach. `say` is told of workers that are refused.

    Raises OnnxFaError where there is no scheduler, no worker for the steps, or no store.
    """
    try:
        from distributed import Client, LocalCluster
        from distributed.comm.addressing import parse_address
        from distributed.comm.registry import get_backend
    except ImportError as e:
        raise MissingDependencyError("--scheduler needs Dask: pip install 'onnx-fa[cluster]'") from e
    # Its log repeats, with tracebacks, what is said here in a line.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    store = Store(place)
    with contextlib.ExitStack() as stack:
        if not address:
            local = LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                memory_limit=None,
                dashboard_address="127.0.0.1:0",
                silence_logs=logging.CRITICAL,
            )
            stack.enter_context(local)
            client = stack.enter_context(Client(local, set_as_default=False))
        else:
            try:
                # A client of an address that is none cannot be closed.
                get_backend(parse_address(address)[0])
                client = stack.enter_context(Client(address, timeout=CONNECT_S, set_as_default=False))
            except (OSError, ValueError, TypeError) as e:
                raise OnnxFaError(f"{address}: no Dask scheduler answers there: {one_line(e)}") from e
            try:
                client.wait_for_workers(1, timeout=FIRST_WORKER_S)
            except TimeoutError as e:
                raise OnnxFaError(f"{address}: has no worker: start some with dask worker {address}") from e
        found = Cluster(client, target, store, not address, say)
        found.wait_for(steps, FIRST_WORKER_S)
        found.require(steps)
        yield found
