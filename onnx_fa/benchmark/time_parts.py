"""bench --profile: what of a call's time is attention's, linear sites', other dispatches', and nobody's."""

from __future__ import annotations

import csv
import io as text_io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any, cast

from onnx_fa.files import scratch_folder, write_whole
from onnx_fa.graph import io
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.profile import KINDS, Call, Kind, Share, profile_module
from onnx_fa.iree.run import benchmark_module, function_of
from onnx_fa.machine import machine_facts
from onnx_fa.spec.target import Target
from onnx_fa.tables import text_table
from onnx_fa.verifier.inputs import random_inputs

WORDS: Mapping[Kind, str] = {"attention": "attention", "linear": "linear sites", "rest": "other dispatches"}
BETWEEN = "between dispatches"
COLUMNS = ("model", "call", "kind", "dispatch", "count", "ms", "worker_ms")
"""Of the CSV. A row of the kind `call` has the time of a call, `plain` that of one without the profile."""
_CALL, _PLAIN = "call", "plain"
METHOD = (
    "means of the middle half of the calls, by their time; dispatches that run at the same time share it equally; `plain` is the "
    "median of calls that are not profiled"
)
HEAD = ("", "a call, ms", *WORDS.values(), BETWEEN, "without the profile, ms")
"""Of a table with a row for each model."""
_SHOWN = 10
"""Dispatches in a table."""


@dataclass(frozen=True)
class TimeParts:
    """Profiled `calls` of a model, and the ms of others that were not (`plain`), with so many threads."""

    model: str
    calls: tuple[Call, ...]
    plain: tuple[float, ...]
    threads: int
    machine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def middle(self) -> list[Call]:
        """The middle half of the calls: a few slow ones would be most of a mean, and medians of parts do not add up to a call."""
        by_time = sorted(self.calls, key=lambda c: c.ms)
        cut = len(by_time) // 4
        return by_time[cut : len(by_time) - cut]

    @property
    def ms(self) -> float:
        return fmean(c.ms for c in self.middle)

    @property
    def plain_ms(self) -> float:
        return median(self.plain)

    @property
    def between(self) -> float:
        return fmean(c.between for c in self.middle)

    def of(self, kind: Kind) -> float:
        """The ms of a call that the dispatches of a kind take."""
        return fmean(c.of(kind) for c in self.middle)

    def shares(self) -> list[Share]:
        """Of each dispatch in a call, the longest first."""
        found: dict[str, list[Share]] = {}
        for call in self.middle:
            for share in call.shares:
                found.setdefault(share.name, []).append(share)
        means = [
            Share(name, s[0].kind, s[0].count, fmean(x.ms for x in s), fmean(x.worker_ms for x in s))
            for name, s in found.items()
        ]
        return sorted(means, key=lambda s: -s.ms)

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "machine": dict(self.machine),
            "calls": len(self.calls),
            "call_ms": self.ms,
            "plain_ms": self.plain_ms,
            **{f"{kind}_ms": self.of(kind) for kind in KINDS},
            "between_ms": self.between,
            "dispatches": [vars(s) for s in self.shares()],
        }

    def table(self) -> str:
        """A row for each kind, and for what lies between."""
        rows: list[tuple[object, ...]] = []
        for kind in KINDS:
            mine = [s for s in self.shares() if s.kind == kind]
            rows.append((WORDS[kind], *self._cells(self.of(kind)), sum(s.count for s in mine), self._busy(mine)))
        rows.append((BETWEEN, *self._cells(self.between), "-", "-"))
        rows.append(("a call", *self._cells(self.ms), sum(s.count for s in self.shares()), "-"))
        rows.append(("without the profile", *self._cells(self.plain_ms), "-", "-"))
        return text_table(("", "ms", "of the call", "dispatches", "workers busy"), rows)

    def row(self) -> tuple[str, ...]:
        """The parts in one row, as `HEAD` has them."""
        parts = [" (".join(self._cells(ms)) + ")" for ms in (*map(self.of, KINDS), self.between)]
        return (self.model, f"{self.ms:.2f}", *parts, f"{self.plain_ms:.2f}")

    def longest(self) -> str:
        """The dispatches that take most of the time."""
        rows = [(s.name, WORDS[s.kind], s.count, *self._cells(s.ms), self._busy([s])) for s in self.shares()[:_SHOWN]]
        return text_table(("longest dispatches", "", "per call", "ms", "of the call", "workers busy"), rows)

    def _cells(self, ms: float) -> tuple[str, str]:
        return f"{ms:.3g}" if ms < 100 else f"{ms:.0f}", f"{ms / self.ms:.0%}"

    def _busy(self, shares: Sequence[Share]) -> str:
        """The part of the time for which all threads were at it."""
        ms = sum(s.ms for s in shares)
        return f"{sum(s.worker_ms for s in shares) / (ms * self.threads):.0%}" if ms else "-"


def measure(
    model: io.ModelLike,
    target: Target,
    *,
    calls: int = 20,
    threads: int = 2,
    dims: Mapping[str, int] | None = None,
    name: str | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> TimeParts:
    """Compiles a model for a CPU, and profiles calls of it with random inputs (seed 0), after as many that are timed without.
    Raises ModelError, CompileError and RunError."""
    loaded = io.load(model)
    label = name or (Path(model).stem if isinstance(model, (str, Path)) else loaded.graph.name or "model")
    inputs = list(random_inputs(loaded, dims=dims).values())
    with scratch_folder() as folder:
        vmfb = folder / "model.vmfb"
        progress("compiling")
        compile_model(model, vmfb, target)
        function = function_of(vmfb)
        progress(f"timing {calls} calls")
        plain = benchmark_module(vmfb, inputs, function=function, threads=threads, repetitions=calls)
        progress(f"profiling {calls} calls")
        found = profile_module(vmfb, inputs, function=function, threads=threads, calls=calls)
    machine = machine_facts(threads) | {"method": METHOD, "target": target.name}
    return TimeParts(label, tuple(found), plain.ms, threads, machine)


def write(results: Sequence[TimeParts], prefix: Path) -> list[Path]:
    """`prefix`.csv with every call, `prefix`.json with the parts. Returns both. Raises OnnxFaError."""
    out, machine = text_io.StringIO(), results[0].machine
    out.write(f"# {machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, {machine['date']}\n")
    out.write(f"# {' '.join(f'{k} {v}' for k, v in machine['versions'].items())}\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for r in results:
        writer.writerows(_rows(r))
    paths = [Path(f"{prefix}.csv"), Path(f"{prefix}.json")]
    write_whole(paths[0], out.getvalue())
    write_whole(paths[1], json.dumps([r.to_dict() for r in results], indent=1) + "\n")
    return paths


def _rows(r: TimeParts) -> Iterator[tuple[object, ...]]:
    for n, ms in enumerate(r.plain):
        yield r.model, n, _PLAIN, "", 1, f"{ms:.4f}", ""
    for n, call in enumerate(r.calls):
        yield r.model, n, _CALL, "", 1, f"{call.ms:.4f}", ""
        for s in call.shares:
            yield r.model, n, s.kind, s.name, s.count, f"{s.ms:.4f}", f"{s.worker_ms:.4f}"


def read(path: Path) -> list[TimeParts]:
    """What `write` wrote, without the facts of the machine but its threads."""
    lines = path.read_text().splitlines()
    comments = [line for line in lines if line.startswith("# ")]
    threads = int(comments[0].partition(" threads")[0].rpartition(" ")[2])
    plain, times = dict[str, list[float]](), dict[str, list[float]]()
    shares = dict[tuple[str, int], list[Share]]()
    for row in csv.DictReader(line for line in lines if not line.startswith("# ")):
        model, call, kind, ms = row["model"], int(row["call"]), row["kind"], float(row["ms"])
        if kind in (_PLAIN, _CALL):
            (plain if kind == _PLAIN else times).setdefault(model, []).append(ms)
        else:
            share = Share(row["dispatch"], cast(Kind, kind), int(row["count"]), ms, float(row["worker_ms"]))
            shares.setdefault((model, call), []).append(share)
    return [
        TimeParts(
            model, tuple(Call(t, tuple(shares[model, n])) for n, t in enumerate(ms)), tuple(plain[model]), threads
        )
        for model, ms in times.items()
    ]
