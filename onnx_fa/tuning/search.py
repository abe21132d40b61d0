"""The search of `onnx-fa tune`: tiles of a kernel for one case of a site, measured on this machine.

Three stages: a coarse grid, then one field at a time around the best, then compile options on the best. In a stage all candidates
are timed in turn, round after round (A B C A B C ...), and those that fall behind are dropped; the best of the stage before takes
part, so that costs of different stages compare. No candidate is timed before its numbers agree with the float64 reference.

A call of the runtime costs tens of microseconds, more than small kernels of a GPU: there the timed (and checked) program launches
its dispatches many times, one after the other, and its time is divided by their number.

Every result goes to a journal as soon as it is known. A search that starts again with the same settings reads them from there.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from onnx_fa.errors import CompileError, OnnxFaError, RunError, UnsupportedError
from onnx_fa.iree.drivers import Gpu
from onnx_fa.iree.run import benchmark_module, run_module
from onnx_fa.kernels.tiles.database import Choice, Entry, Refused, Tiles
from onnx_fa.kernels.tiles.families import family
from onnx_fa.kernels.triton.config import code_for
from onnx_fa.machine import machine_facts
from onnx_fa.processes import Limits
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.site_case import Reference, SiteCase
from onnx_fa.spec.target import Target
from onnx_fa.tuning.journal import Journal
from onnx_fa.tuning.program import Program, Space
from onnx_fa.tuning.spaces import body_of, space

Note = Callable[[str], None]

BEHIND = 1.25
"""A candidate that costs this much more than the best is dropped after two rounds."""
NOISE = 0.96
"""Tiles that cost less than those in use, but more than this part of them, count as much: a change must be more than noise."""
WORTH = 0.9
"""Compile options, which hold for a whole module, are kept where they bring the time below this part of what it is without them."""
LAUNCHED_FLOPS = 2e12
"""Of a timed call on a GPU, about: a few milliseconds on a large one."""
MOST_LAUNCHES = 256
CHECKED_SCORES = 1 << 25
"""Bound on the float64 scores that the check of one case computes: longer attentions are checked on some of their rows."""


@dataclass(frozen=True)
class Settings:
    """Of a search. `calls` are timed in each of `rounds`; `candidates` bounds how many sets of tiles a stage tries; limits are per
    process: seconds and bytes."""

    rounds: int = 5
    calls: int = 5
    threads: int = 2
    candidates: int = 16
    jobs: int = 1
    compile_timeout_s: float = 60
    compile_memory_bytes: int = 4 << 30
    run_timeout_s: float = 120
    run_memory_bytes: int = 12 << 30
    body: str = ""

    @property
    def compile_limits(self) -> Limits:
        return Limits(self.compile_timeout_s, self.compile_memory_bytes)

    def __post_init__(self) -> None:
        for name in ("rounds", "calls", "threads", "candidates", "jobs"):
            if getattr(self, name) < 1:
                raise OnnxFaError(f"--{name} must be at least 1")


@dataclass(frozen=True)
class Candidate:
    """One thing to measure."""

    tiles: Tiles
    flags: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return json.dumps([dict(sorted(self.tiles.items())), self.flags])

    def __str__(self) -> str:
        return " ".join([*(f"{k}={v}" for k, v in self.tiles.items()), *self.flags])


@dataclass
class _Measured:
    candidate: Candidate
    cost: float
    samples: list[tuple[int, float]] = field(default_factory=list)


class Search:
    """The search for one case, on a GPU if one is given. `folder`, for modules and operands, is this search's own; `make` stands
    for the kernel's emitter in tests."""

    def __init__(
        self,
        case: SiteCase,
        target: Target,
        settings: Settings,
        folder: Path,
        journal: Journal,
        note: Note = lambda message: None,
        make: Callable[[Any, Target, str, Tiles], Program] | None = None,
        gpu: Gpu | None = None,
    ) -> None:
        self.case, self.target, self.settings, self.folder = case, target, settings, folder
        self.journal, self.note = journal, note
        self.body = settings.body or body_of(case.spec, target)
        arch = code_for(gpu.capability) if gpu else 0
        self.space: Space[Any] = space(self.body, arch, settings.compile_limits)
        self._make = make or self.space.emit
        self.bound = case.bound()[0]
        self.gpu, self.launches = gpu, launches(self.bound) if gpu else 1
        self._modules: dict[str, Path] = {}
        self._programs: dict[str, Program | str] = {}
        self._inputs: dict[tuple[bool, str], list[Path]] = {}
        self._expected: list[tuple[bool, Reference]] = []
        self.refused: dict[str, Refused] = {}
        self.round = 0

    def run(self) -> Entry:
        """Raises OnnxFaError when no candidate gives the right numbers."""
        spec, most = self.case.spec, self.settings.candidates
        default = self.space.default(spec, self.target)
        grid = [Candidate(default), *(Candidate(t) for t in self.space.first(spec, self.target))]
        measured = self._stage("tiles", _distinct(grid)[:most], None)
        if not measured:
            reason = next(iter(self.refused.values())).reason
            raise OnnxFaError(f"{self.case.name}: no candidate gives the right numbers; the first: {reason}")
        best = measured[0]
        around = [Candidate(t) for t in self.space.around(spec, best.candidate.tiles)]
        known = {m.candidate.key for m in measured} | set(self.refused)
        fresh = [c for c in _distinct(around) if c.key not in known][: most - 1]
        measured = _merged(measured, self._stage("around", fresh, best))
        best = measured[0]
        options = [Candidate(best.candidate.tiles, flags) for flags in self.space.options]
        options = options[: most - 1]
        with_options = self._stage("options", options, best)
        incumbent = next(m for m in with_options if m.candidate.key == best.candidate.key)
        worth = [m for m in with_options if m is incumbent or m.cost < WORTH * incumbent.cost]
        measured = _merged(measured, worth)
        facts = machine_facts(self.settings.threads)
        facts |= {"calls": self.settings.calls, "rounds": self.settings.rounds, "target": self.target.name}
        facts["method"] = (
            "interleaved rounds of iree-benchmark-module, lower quartiles; checked against float64 before timing"
        )
        facts["machine"] = facts.pop("cpu")
        if self.gpu:
            facts |= {"machine": self.gpu.name, "launches": self.launches}
            facts["method"] += "; times are of calls of so many launches one after the other, divided by their number"
        measured = _settled(measured, Candidate(default).key)
        least = min(m.cost for m in measured)
        costs = {m.candidate.key: m.cost / least for m in measured}
        facts["spread"] = round(median(_spread(m.samples) for m in measured), 4)
        facts["default_cost"] = costs.get(Candidate(default).key)
        choices = [
            Choice(dict(m.candidate.tiles), round(m.cost / least, 4), m.candidate.flags, tuple(m.samples))
            for m in measured
        ]
        what = f"{self.case.name}: {self.case.title}"
        return Entry(
            family(self.space.seen(spec), self.body), what, facts, tuple(choices), tuple(self.refused.values())
        )

    def _stage(self, name: str, candidates: Sequence[Candidate], incumbent: _Measured | None) -> list[_Measured]:
        """The candidates that were timed, the cheapest first; costs are relative to the incumbent's, which takes part."""
        if incumbent and not candidates:
            return [incumbent]
        field_ = [*([incumbent.candidate] if incumbent else []), *candidates]
        right = self._prepare(field_)
        times: dict[str, list[tuple[int, float]]] = {c.key: [] for c in right}
        alive = list(right)
        for n in range(self.settings.rounds):
            turn = n % max(1, len(alive))
            for c in [*alive[turn:], *alive[:turn]]:
                self.note(f"{self.case.name}: {name}, round {n + 1} of {self.settings.rounds}: {c}")
                samples = self._time(c, name, n)
                if samples is None:
                    alive.remove(c)
                    times.pop(c.key)
                else:
                    times[c.key] += [(self.round + n, ms) for ms in samples]
            if n and alive:
                least = min(self._cost(c, times) for c in alive)
                kept = incumbent.candidate.key if incumbent else ""
                alive = [c for c in alive if c.key == kept or self._cost(c, times) <= BEHIND * least]
        self.round += self.settings.rounds
        timed = [c for c in right if c.key in times]
        scale = 1.0
        if incumbent:
            if incumbent.candidate.key not in times:
                raise OnnxFaError(f"{self.case.name}: {incumbent.candidate} ran before and does not any more")
            scale = incumbent.cost / self._cost(incumbent.candidate, times)
        done = [_Measured(c, scale * self._cost(c, times), times[c.key]) for c in timed]
        return sorted(done, key=lambda m: m.cost)

    def _cost(self, c: Candidate, times: Mapping[str, list[tuple[int, float]]]) -> float:
        """Time per query that is computed: the lower quartile, as what else a machine does only ever adds time."""
        return float(np.percentile([ms for _, ms in times[c.key]], 25)) / self.space.queries(self.bound, c.tiles)

    def _refuse(self, c: Candidate, reason: str) -> None:
        self.refused[c.key] = Refused(dict(c.tiles), reason, c.flags)

    def _prepare(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those that compile and give the right numbers; compiled `jobs` at a time, checked one by one."""
        with ThreadPoolExecutor(self.settings.jobs) as pool:
            list(pool.map(self._program, candidates))  # Triton's compiler runs where a kernel is made
            open_ = [c for c in candidates if self.journal.get(*self._where(c), "check") is None]
            built = dict(zip((c.key for c in open_), pool.map(self._build, open_), strict=True))
        right = []
        for c in candidates:
            problem = self.journal.get(*self._where(c), "check")
            if problem is None:
                self.note(f"{self.case.name}: checking {c}")
                problem = built[c.key] or self._check(c)
                self.journal.put(problem, *self._where(c), "check")
            if problem:
                self._refuse(c, problem)
            else:
                right.append(c)
        return right

    def _program(self, c: Candidate) -> Program | str:
        """The candidate's program, or why there is none."""
        if c.key not in self._programs:
            self.note(f"{self.case.name}: kernel {c}")
            try:
                self._programs[c.key] = self._make(self.case.spec, self.target, "fa_tuned", c.tiles)
            except (UnsupportedError, ValueError) as e:
                self._programs[c.key] = str(e)
        return self._programs[c.key]

    def _where(self, c: Candidate) -> tuple[str, ...]:
        """What a candidate's results are kept under: lengths, options and the program's own text."""
        program = self._program(c)
        text = program if isinstance(program, str) else program.text
        return (hashlib.sha256(f"{self.bound}{text}".encode()).hexdigest()[:16], *c.flags)

    def _build(self, c: Candidate) -> str:
        """Compiles a candidate. Returns why it cannot be, or ""."""
        program = self._program(c)
        if isinstance(program, str):
            return program
        output = self.folder / f"{hashlib.sha256(c.key.encode()).hexdigest()[:16]}.vmfb"
        self.note(f"{self.case.name}: compiling {c}")
        again = (f"--iree-hal-benchmark-dispatch-repeat-count={self.launches}",) if self.launches > 1 else ()
        try:
            program.compile(output, (*c.flags, *again), self.settings.compile_limits)
        except CompileError as e:
            return str(e).partition("; command and messages")[0]
        self._modules[c.key] = output
        return ""

    def _check(self, c: Candidate) -> str:
        """Runs a candidate on ordinary and on adversarial operands. Returns what is wrong, or ""."""
        if not self._expected:
            for adversarial in (False, True):
                drawn = self.case.draw(self.bound, adversarial=adversarial)
                expected = self.case.expect(self.bound, drawn, CHECKED_SCORES)
                self._expected.append((adversarial, expected))
        (shape, dtype), *_ = self.bound.results
        numbers = np.dtype(NUMPY[dtype])
        for adversarial, expected in self._expected:
            try:
                operands = self._operands(c, adversarial=adversarial)
                (result,), _ = run_module(self._module(c), operands, 1, as_numbers=numbers, **self._run_options(c))
            except RunError as e:
                return str(e)
            problem = expected.compare(result.reshape(shape)).problem
            if problem:
                return f"wrong numbers: {problem}"
        return ""

    def _module(self, c: Candidate) -> Path:
        """The compiled candidate; compiled now where a journal said that it was right."""
        if c.key not in self._modules:
            problem = self._build(c)
            if problem:
                raise RunError(problem)
        return self._modules[c.key]

    def _time(self, c: Candidate, stage: str, n: int) -> list[float] | None:
        """Times of one round in ms, from the journal where it has them; None when the candidate fails."""
        known = self.journal.get(*self._where(c), stage, n)
        if known is None:
            try:
                done = benchmark_module(
                    self._module(c), self._operands(c), repetitions=self.settings.calls, **self._run_options(c)
                )
                known = [round(ms / self.launches, 6) for ms in done.ms]
            except RunError as e:
                known = str(e)
            self.journal.put(known, *self._where(c), stage, n)
        if isinstance(known, str):
            self._refuse(c, known)
            return None
        return [float(ms) for ms in known]

    def _operands(self, c: Candidate, *, adversarial: bool = False) -> list[Path]:
        """What a candidate's program takes, as files for the many processes that read them."""
        program = self._known(c)
        key = adversarial, program.layout
        if key not in self._inputs:
            taken = program.inputs(self.case.draw(self.bound, adversarial=adversarial))
            paths = [self.folder / f"{adversarial:d}.{program.layout}.{i}.npy" for i in range(len(taken))]
            for path, x in zip(paths, taken, strict=True):
                np.save(path, np.asarray(x, order="C"))
            self._inputs[key] = paths
        return self._inputs[key]

    def _known(self, c: Candidate) -> Program:
        """The program of a candidate that has one."""
        program = self._program(c)
        if isinstance(program, str):
            raise RunError(program)
        return program

    def _run_options(self, c: Candidate) -> dict[str, Any]:
        s = self.settings
        return {
            "function": self._known(c).function,
            "device": self.target.device,
            "threads": s.threads,
            "timeout_s": s.run_timeout_s,
            "memory_bytes": s.run_memory_bytes,
        }


def launches(spec: AttentionSpec | LinearSpec) -> int:
    """How often a timed call launches the kernel of a spec without symbols."""
    return min(MOST_LAUNCHES, math.ceil(LAUNCHED_FLOPS / spec.flops))


def _spread(samples: Sequence[tuple[int, float]]) -> float:
    """Half of the calls lie within this part of the median: large on a machine that does something else besides."""
    low, middle, high = np.percentile([ms for _, ms in samples], (25, 50, 75))
    return float((high - low) / middle)


def _distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    return list({c.key: c for c in candidates}.values())


def _merged(old: Sequence[_Measured], new: Sequence[_Measured]) -> list[_Measured]:
    """Both, the cheapest first; of what was measured twice the first cost and all samples."""
    by_key = {m.candidate.key: m for m in old}
    for m in new:
        known = by_key.get(m.candidate.key)
        by_key[m.candidate.key] = _Measured(m.candidate, known.cost, known.samples + m.samples) if known else m
    return sorted(by_key.values(), key=lambda m: m.cost)


def _settled(measured: Sequence[_Measured], in_use: str) -> list[_Measured]:
    """The cheapest first, but for noise: what is hardly cheaper than the tiles in use stands behind them."""
    limit = next((m.cost for m in measured if m.candidate.key == in_use), 0.0)
    raised = [replace(m, cost=limit) if NOISE * limit <= m.cost < limit else m for m in measured]
    return sorted(raised, key=lambda m: (m.cost, m.candidate.key != in_use))


def journal_head(target: Target, settings: Settings) -> dict[str, Any]:
    """What measurements depend on: settings (but for how many compile at once), versions, machine."""
    own = {k: v for k, v in asdict(settings).items() if k not in ("jobs", "body")}
    facts = machine_facts(settings.threads)
    return {"target": target.name, "settings": own, "cpu": facts["cpu"], "versions": facts["versions"]}
