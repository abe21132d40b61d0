"""Where the time of calls goes: the runtime's own events of every dispatch, from iree-benchmark-module and iree-profile."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onnx_fa.errors import RunError
from onnx_fa.iree.run import Array, benchmark_module, run_tool, tool_path
from onnx_fa.iree.vmfb_facts import is_linear

Kind = Literal["attention", "linear", "rest"]
KINDS: tuple[Kind, ...] = ("attention", "linear", "rest")


@dataclass(frozen=True)
class Event:
    """One dispatch that ran: the name of its function, from `start` to `end` in ns, and the workers' ns at it, added up."""

    name: str
    start: int
    end: int
    workers: int

    @property
    def kind(self) -> Kind:
        if self.name.startswith(("fa_", "linear_attention_")):
            return "attention"
        return "linear" if is_linear(self.name) else "rest"


@dataclass(frozen=True)
class Share:
    """Of the dispatches of one function in one call: how many there were, the ms of the call that are theirs, and the ms that
    workers were at them, added up."""

    name: str
    kind: Kind
    count: int
    ms: float
    worker_ms: float


@dataclass(frozen=True)
class Call:
    """One call, of `ms`, and what is whose. The rest of the time lies between dispatches."""

    ms: float
    shares: tuple[Share, ...]

    def of(self, kind: Kind) -> float:
        """The ms of the dispatches of a kind."""
        return sum(s.ms for s in self.shares if s.kind == kind)

    @property
    def between(self) -> float:
        return self.ms - sum(s.ms for s in self.shares)


def profile_module(
    vmfb: Path,
    inputs: Sequence[Array | Path],
    *,
    function: str,
    threads: int,
    calls: int,
    timeout_s: float = 600,
    memory_bytes: int = 16 << 30,
) -> list[Call]:
    """Profiles `calls` calls of a module on this machine's CPU, after one that is left out. Raises RunError."""
    with tempfile.TemporaryDirectory(prefix="onnx_fa-") as tmp:
        bundle, events = Path(tmp) / "calls.ireeprof", Path(tmp) / "events.jsonl"
        # What queues did is asked for too: without it the runtime tells no names of functions.
        modes = "--device_profiling_mode=queue-events,host-execution,executable-metadata"
        timed = benchmark_module(
            vmfb,
            inputs,
            function=function,
            repetitions=calls + 1,
            threads=threads,
            untimed=0,
            extra=(modes, f"--device_profiling_output={bundle}"),
            timeout_s=timeout_s,
            memory_bytes=memory_bytes,
        )
        run_tool(
            [tool_path("iree-profile"), "export", "--format=ireeperf-jsonl", f"--output={events}", str(bundle)],
            timeout_s,
            memory_bytes,
        )
        with events.open() as lines:
            return calls_of(read_events(lines), timed.ms)[1:]


def read_events(lines: Iterable[str]) -> list[Event]:
    """The dispatches in what `iree-profile export --format=ireeperf-jsonl` writes, in the order in which they began. Raises
    RunError where there are none, or where some were lost."""
    found = []
    for line in lines:
        try:
            row = json.loads(line)
            if row["record_type"] == "host_execution_event" and row["op"] == "dispatch":
                if not row["valid"]:
                    raise RunError("iree-profile: a dispatch without times")
                times = row["start_host_time_ns"], row["end_host_time_ns"], row["tile_duration_sum_ns"]
                found.append(Event(str(row["key"]), *map(int, times)))
            elif row.get("dropped_records"):
                raise RunError("iree-profile: some of the events were lost")
        except (ValueError, KeyError, TypeError) as e:
            raise RunError(f"iree-profile wrote a line that is not as expected: {line.strip()[:100]!r}") from e
    if not found:
        raise RunError("iree-profile: no dispatch was recorded")
    return sorted(found, key=lambda e: e.start)


def calls_of(events: Sequence[Event], ms: Sequence[float]) -> list[Call]:
    """The calls, of so many ms each, that the events belong to: calls with equal inputs follow each other, and each does the same.
    Raises RunError where the events are not a multiple of them."""
    each, over = divmod(len(events), len(ms))
    if over:
        raise RunError(f"{len(events)} dispatches in {len(ms)} calls: the calls did not all do the same")
    return [Call(t, _shares(events[i * each : (i + 1) * each])) for i, t in enumerate(ms)]


def _shares(events: Sequence[Event]) -> tuple[Share, ...]:
    """What is whose: of dispatches that run at the same time each has an equal part of it, so that the sum is no more than the time
    that passed."""
    own = [0.0] * len(events)
    marks = sorted([(e.start, 1, i) for i, e in enumerate(events)] + [(e.end, 0, i) for i, e in enumerate(events)])
    running, before = set[int](), 0
    for at, begins, i in marks:
        for j in running:
            own[j] += (at - before) / len(running)
        before = at
        if begins:
            running.add(i)
        else:
            running.discard(i)
    names = dict.fromkeys(e.name for e in events)
    found = []
    for name in names:
        mine = [i for i, e in enumerate(events) if e.name == name]
        kind, workers = events[mine[0]].kind, sum(events[i].workers for i in mine)
        found.append(Share(name, kind, len(mine), sum(own[i] for i in mine) / 1e6, workers / 1e6))
    return tuple(found)
