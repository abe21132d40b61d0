"""The workers of a cluster that may work for a run: which take steps, which take nothing but timing, which are refused."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_fa.errors import RunError, one_line
from onnx_fa.machine import cpu_name, gpu_name
from onnx_fa.zoo.store import Store
from onnx_fa.zoo.worker_facts import Facts, code_here, facts_here, other_code

if TYPE_CHECKING:
    from distributed import Client

QUIET = "quiet"
"""The resource of workers that take nothing but timing: `dask worker ADDRESS --resources quiet=1`."""
LATER = "run again when there is one, and what is done is taken over"


class Crew:
    """`steps` has how many steps each worker takes at a time, by address, `timing` the workers for timing alone, `refused` those
    that get nothing.

    `say` is told of a worker that is refused, once.
    """

    def __init__(self, client: Client, target: str, store: Store, say: Callable[[str], None]) -> None:
        self._client, self._target, self._store, self._say = client, target, store, say
        self.code = code_here()
        self.facts: dict[str, Facts] = {}
        self.steps: dict[str, int] = {}
        self.timing: dict[str, int] = {}
        self.refused: set[str] = set()
        self._cpu = ""
        with tempfile.TemporaryDirectory(prefix="onnx_fa-") as folder:
            path = Path(folder) / "probe"
            path.write_text("onnx_fa")
            self._probe = store.put(path)

    def look(self) -> None:
        """Takes in workers that are new, and lets go of those that are gone. Raises RunError where the scheduler is."""
        known = self._known()
        for crew in (self.steps, self.timing):
            for address in crew.keys() - known.keys():
                del crew[address]
        # One that was gone may be back under its address, restarted on a port that its owner fixed.
        if new := sorted(known.keys() - self.steps.keys() - self.timing.keys() - self.refused):
            said: dict[str, Any] = self._client.run(
                facts_here, self._target, self._store.url, self._probe, workers=new, on_error="return"
            )
            facts = {a: f for a in new if isinstance(f := self._judged(a, said.get(a), known[a]), Facts)}
            self._take(facts, known)

    def _known(self) -> dict[str, Any]:
        # Client.scheduler_info() has been one of five workers at most, and a client's own poll may replace it in between.
        scheduler: Any = self._client.scheduler
        if scheduler is None:  # the client has given up
            raise RunError(f"the scheduler is gone: {LATER}")
        try:
            found: dict[str, Any] = self._client.sync(scheduler.identity, n_workers=-1)["workers"]
        except OSError as e:
            raise RunError(f"the scheduler is gone: {LATER}") from e
        return found

    def refuse(self, address: str, why: str) -> None:
        """Gives that worker nothing any more."""
        if address not in self.refused:
            self._say(f"{address}: refused: {why}")
        self.refused.add(address)
        self.steps.pop(address, None)
        self.timing.pop(address, None)

    def _judged(self, address: str, said: Any, known: dict[str, Any]) -> Facts | None:
        if not isinstance(said, Facts):
            if said is not None:  # else it is gone
                self.refuse(address, f"it cannot say what it has: {one_line(said)}")
            return None
        resources = known["resources"]
        why = other_code(said.code, self.code) or said.no_store
        if not why and resources.get(QUIET, 0) > 1:
            why = f"{QUIET}={resources[QUIET]:g}: a worker times one model at a time, {QUIET}=1"
        if why:
            self.refuse(address, why)
        return None if why else said

    def _take(self, facts: dict[str, Facts], known: dict[str, Any]) -> None:
        if self._target == "cpu-host" and facts:
            # A module for the processor at hand runs on that alone. It is that of most of the first workers.
            self._cpu = self._cpu or Counter(f.cpu for f in facts.values()).most_common(1)[0][0]
        for address, found in facts.items():
            if self._cpu and found.cpu != self._cpu:
                self.refuse(
                    address,
                    f"its processor is {found.cpu}, that of others {self._cpu}, and cpu-host is the one at hand: name a target",
                )
                continue
            self.facts[address] = found
            if known[address]["resources"].get(QUIET):
                self.timing[address] = 1
            else:
                self.steps[address] = known[address]["nthreads"]

    def neighbours(self) -> list[str]:
        """Workers for timing that share their machine with another worker."""
        live = [*self.steps, *self.timing]
        hosts = Counter(self.facts[a].host for a in live)
        return [a for a in self.timing if hosts[self.facts[a].host] > 1]

    @property
    def absent(self) -> str:
        """Why no worker can run what is compiled for the target; empty where one can."""
        reasons = [self.facts[a].absent for a in (*self.steps, *self.timing)]
        return "" if "" in reasons else next(iter(reasons), "")

    def able(self, addresses: Iterable[str]) -> list[str]:
        """Those that can run what is compiled for the target; all of them where none can, for a step then says so itself."""
        found = list(addresses)
        return [a for a in found if not self.facts[a].absent] or found

    @property
    def alike(self) -> bool:
        """Whether all workers have this machine's processor and GPU."""
        return {(f.cpu, f.gpu) for f in self.facts.values()} == {(cpu_name(), gpu_name())}

    @property
    def machine(self) -> dict[str, Any]:
        """The processors and GPUs of all workers that there have been."""
        facts = self.facts.values()
        return {name: "; ".join(sorted({getattr(f, name) for f in facts} - {""})) for name in ("cpu", "gpu")}
