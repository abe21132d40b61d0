"""Single attentions, one by one: stock IREE with its best flags, onnx_fa, onnxruntime and torch, in one run, interleaved. `onnx-fa
bench --heads ...` (attention_sweep.py) and

    python -m onnx_fa.benchmark.attention --out PREFIX [--quick] [--case NAME ...] [--threads N] [--rounds N] [--fresh]

Every case of the table in `cases.py` becomes a plain ONNX model (`forms/plain.py`), which stock IREE, onnx_fa and onnxruntime
take, and PyTorch calls (`torch_sdpa.py`). Numbers are compared with the float64 reference before anything is timed. A finished case
is kept in PREFIX.partial until the files are written, so that the same command goes on after an interruption.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from onnx_fa.benchmark.kept_modules import KeptModules, Made, elsewhere
from onnx_fa.benchmark.models import (
    BLOCKED,
    COMPILED,
    EAGER,
    GPU_STOCK_FLAGS,
    ORT,
    OURS,
    STOCK,
    STOCK_FLAGS,
    TORCH,
    Contestant,
    Worker,
    WorkerRun,
    compile_stock,
    function_of,
    fused_sites,
    package_environment,
    play_rounds,
    stock_import,
    without_log,
    write_files,
)
from onnx_fa.benchmark.plot import COPY, plot
from onnx_fa.benchmark.worker_session import Session
from onnx_fa.errors import CompileError, MissingDependencyError, OnnxFaError, RunError
from onnx_fa.files import check_writable, scratch_folder, write_whole
from onnx_fa.forms.plain import input_names, plain_model, plain_model_in_halves
from onnx_fa.forms.rewrite import rewrite
from onnx_fa.graph import io
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.run import benchmark_module, run_module
from onnx_fa.machine import machine_facts
from onnx_fa.spec import cases
from onnx_fa.spec.accuracy import Expected, expect
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import Case, draw_operands
from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.target import Target, parse_target
from onnx_fa.tables import markdown_table, text_table

TRIED = "stock IREE (tried)"
"""Flags of stock IREE that were slower than its best in a first look; they are in the JSON only."""
COPY_BYTES = 256 << 20
"""What the copy beside every decode case copies: more than any cache holds."""
OTHERS_TOLERANCE = {"f32": 1e-4, "f16": 1e-2, "bf16": 5e-2}
"""Relative error (2-norm) above which another contestant counts as wrong; ours has to meet accuracy.TOLERANCE."""
TABLE = (STOCK, OURS, ORT, TORCH)
"""Who is timed, if nothing else is said."""
TORCH_CALLS = {TORCH: "sdpa", EAGER: "eager", COMPILED: "compile"}
CHECKED_SCORES = 1 << 25
"""Bound on the float64 scores that the check of a case computes: longer attentions are checked on some of their rows."""
METHOD = (
    "interleaved rounds, medians; IREE by iree-benchmark-module, others in a child process; all checked against float64 first; "
    "memory is what a call needs beyond inputs and outputs"
)


@dataclass(frozen=True)
class Plan:
    """How much is measured: in each round as many calls as fit in `budget_ms`, from 1 to `most_calls`; what takes more than
    `slow_ms` a call has `slow_rounds`."""

    rounds: int = 4
    threads: int = 2
    budget_ms: float = 200
    most_calls: int = 15
    most_gpu_calls: int = 60
    slow_ms: float = 600
    slow_rounds: int = 2
    timeout_s: float = 600
    memory_bytes: int = 16 << 30

    def calls(self, ms: float, gpu: bool = False) -> int:
        most = self.most_gpu_calls if gpu else self.most_calls
        return max(1, min(most, int(self.budget_ms / max(ms, 1e-3))))


QUICK = Plan(rounds=2, budget_ms=40, most_calls=3, slow_rounds=1)


@dataclass(frozen=True)
class CaseResult:
    """What was measured of a case. `read_bytes` are those of K and V."""

    name: str
    title: str
    decode: bool
    read_bytes: int
    contestants: tuple[Contestant, ...]
    seconds: float

    def median(self, what: str) -> float | None:
        """Of the contestant of that name, in ms."""
        times = [c.median_ms for c in self.contestants if c.what == what and not c.problem]
        return next((t for t in times if t is not None), None)

    @property
    def best_other(self) -> float | None:
        """The faster of onnxruntime and torch."""
        return min((t for t in (self.median(ORT), self.median(TORCH)) if t is not None), default=None)

    def of_bandwidth(self, what: str) -> float | None:
        """For decode: bytes of K and V per time, over the bytes per time of a copy, which reads and writes."""
        ms, copy = self.median(what), self.median(COPY)
        if not self.decode or ms is None or copy is None:
            return None
        return (self.read_bytes / ms) / (2 * COPY_BYTES / copy)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "contestants": [vars(c) for c in self.contestants]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CaseResult:
        listed = [
            Contestant(**{**c, "samples": [(int(r), float(ms)) for r, ms in c["samples"]]}) for c in data["contestants"]
        ]
        return cls(**{**data, "contestants": tuple(listed)})


def expected_seconds(case: Case, plan: Plan) -> float:
    """How long a case may take, from the machine of docs/results/performance.md: 150 GFLOP/s, stock IREE a third of it, 2 s to
    start torch."""
    spec = case.bound()[0]
    sizes = [d for d in (*spec.batch, spec.Hq, spec.Sq, spec.Skv) if isinstance(d, int)]
    gflop = 2e-9 * math.prod(sizes) * (spec.D + spec.Dv)
    data_gb = sum(_bytes(s, d) for s, d in zip(spec.operand_shapes, spec.operand_dtypes, strict=True)) / 1e9
    fast, slow = gflop / 150 + data_gb / 20, gflop / 50 + data_gb / 10
    fixed = 9 + 12 * data_gb + 60e-9 * min(math.prod(sizes), CHECKED_SCORES)
    calls = plan.calls(slow * 1e3)
    tried = len(STOCK_FLAGS) * (2 + (calls > 1) * (1 + min(3, calls))) * slow
    rounds = plan.slow_rounds if slow * 1e3 > plan.slow_ms else plan.rounds
    each = sum(0.6 + data_gb + (1 + plan.calls(t * 1e3)) * t for t in (fast, fast, fast, slow))
    return fixed + tried + rounds * each


def _bytes(shape: Sequence[int | str], dtype: str) -> int:
    return math.prod(d for d in shape if isinstance(d, int)) * int(np.dtype(NUMPY[dtype]).itemsize)


class CaseBench:
    """One case, from its model to its samples. `base_bytes` is the peak of an IREE program that computes next to nothing; `who` are
    the contestants, in their order; `modules` holds what is compiled (else that goes with `folder`);
    PyTorch runs in `session`, if there is one."""

    def __init__(
        self,
        case: Case,
        target: Target,
        plan: Plan,
        folder: Path,
        base_bytes: int,
        note: Callable[[str], None],
        who: Sequence[str] = TABLE,
        modules: KeptModules | None = None,
        session: Session | None = None,
    ):
        self.session = session
        self.modules = modules or KeptModules(folder / "modules")
        self.case, self.target, self.plan, self.folder, self.base_bytes = case, target, plan, folder, base_bytes
        self.note, self.who = note, who
        self.tried: list[Contestant] = []
        self.others_tolerance = OTHERS_TOLERANCE.get(case.spec.dtype, OTHERS_TOLERANCE["f32"])
        self.spec: AttentionSpec = case.bound()[0]
        self.model = folder / "model.onnx"
        self.inputs = folder / "inputs"
        self.paths = [self.inputs / f"{n}.npy" for n in input_names(self.spec)]
        self.io_bytes = 0
        self.read_bytes = 0

    def run(self) -> CaseResult:
        """A contestant that cannot be built, run, or is wrong, keeps its place with the reason."""
        start = time.monotonic()
        expected = self._prepare()
        field_ = [
            self._contestant(what, expected) for what in self.who if what not in TORCH_CALLS or find_spec("torch")
        ]
        decode = "decode" in self.case.tags
        if decode:
            field_.append(self._copy())
        slow = any(c.first_ms > self.plan.slow_ms for c, _ in field_)
        play_rounds(
            [(c, self._timed(c, run)) for c, run in field_],
            self.plan.slow_rounds if slow else self.plan.rounds,
            lambda m: self.note(f"{self.case.name}: {m}"),
        )
        contestants = (*(c for c, _ in field_), *self.tried)
        seconds = time.monotonic() - start
        return CaseResult(self.case.name, self.case.title, decode, self.read_bytes, contestants, seconds)

    def _contestant(self, what: str, expected: Expected) -> tuple[Contestant, _Run]:
        self.note(f"{self.case.name}: {what}")
        if what == STOCK:
            return self._stock(expected)
        if what == OURS:
            return self._ours(expected)
        if what in TORCH_CALLS:
            return self._torch(what, expected)
        if self.target.is_gpu:
            return Contestant(what, problem="onnxruntime is timed on the CPU only"), _never
        if find_spec("onnxruntime") is None:
            return Contestant(what, problem="onnxruntime is not installed: pip install 'onnx-fa[ort]'"), _never
        model = self.model
        if what == BLOCKED:
            model = self.folder / "blocked.onnx"
            blocked, report = rewrite(self.model, form="blocked")
            if not report.sites:
                return Contestant(what, problem="; ".join(m.reason for m in report.misses)), _never
            io.save(blocked, model)
        return self._worker(what, "onnxruntime", str(model), expected)

    def _torch(self, what: str, expected: Expected) -> tuple[Contestant, _Run]:
        device = "cuda" if self.target.is_gpu else "cpu"
        if what == COMPILED and device == "cpu" and shutil.which(os.environ.get("CXX", "g++")) is None:
            return Contestant(what, problem="torch.compile needs a C++ compiler, and there is none"), _never
        job = self.folder / f"{TORCH_CALLS[what]}.json"
        said = {"spec": self.spec.to_dict(), "call": TORCH_CALLS[what], "device": device}
        job.write_text(json.dumps(said))
        return self._worker(what, "torch", str(job), expected)

    def _timed(
        self, c: Contestant, run: Callable[[int], tuple[Sequence[float], int]]
    ) -> Callable[[], tuple[Sequence[float], int]]:
        return lambda: run(self.plan.calls(c.first_ms, self.target.is_gpu))

    def _prepare(self) -> Expected:
        """Writes model and inputs. Returns what is right."""
        self.note(f"{self.case.name}: reference")
        self._write_model()
        operands = draw_operands(self.spec, 0)
        self.inputs.mkdir()
        for path, x in zip(self.paths, operands, strict=True):
            np.save(path, x)
        self.read_bytes = sum(x.nbytes for x in operands[1:3])
        self.io_bytes = sum(x.nbytes for x in operands) + _bytes(self.spec.out_shape, self.spec.dtype)
        return expect(self.spec, operands, budget=CHECKED_SCORES)

    def _write_model(self) -> None:
        """In f16 throughout on GPUs, which are slow in f32; onnxruntime's CPU kernels are for f32."""
        written = plain_model_in_halves if self._in_halves() else plain_model
        io.save(written(self.spec), self.model)

    def _in_halves(self) -> bool:
        return self.target.is_gpu and self.spec.dtype == "f16" and not self.spec.tensors and self.spec.sink is None

    def _named(self, what: str) -> str:
        """What a module is kept by."""
        return f"{what} in f16" if self._in_halves() else what

    def _options(self, vmfb: Path) -> dict[str, Any]:
        limits = {"timeout_s": self.plan.timeout_s, "memory_bytes": self.plan.memory_bytes}
        return {"function": function_of(vmfb), "device": self.target.device, "threads": self.plan.threads, **limits}

    def _check_module(self, c: Contestant, vmfb: Path, expected: Expected, tolerance: float | None) -> None:
        """Fills in error, memory and problem of a compiled module."""
        try:
            (result,), peak = run_module(vmfb, self.paths, 1, **self._options(vmfb))
        except RunError as e:
            c.problem = str(e)
            return
        c.peak_bytes, c.extra_bytes = peak, max(0, peak - self.base_bytes - self.io_bytes)
        _judge(c, expected, result, tolerance)

    def _module_run(self, vmfb: Path) -> Callable[[int], tuple[Sequence[float], int]]:
        def run(calls: int) -> tuple[Sequence[float], int]:
            # A GPU's clocks rise with its work, and short calls are timed better together.
            each, untimed = (min(20, calls), 10) if self.target.is_gpu else (1, 1)
            done = benchmark_module(
                vmfb, self.paths, repetitions=-(-calls // each), each=each, untimed=untimed, **self._options(vmfb)
            )
            return done.ms, done.peak_bytes

        return run

    def _stock(self, expected: Expected) -> tuple[Contestant, _Run]:
        """The fastest flags with right numbers; all that were tried are kept in `self.tried`."""
        tried: list[tuple[Contestant, Path]] = []
        for n, flags in enumerate(GPU_STOCK_FLAGS if self.target.is_gpu else STOCK_FLAGS):
            c, vmfb = Contestant(TRIED, " ".join(flags) or "defaults"), self.folder / f"stock{n}.vmfb"
            self.note(f"{self.case.name}: {STOCK} {c.flags}")
            try:
                c.compile_s = self._compiled_stock(flags, vmfb).seconds
                (first,), _ = self._module_run(vmfb)(1)
                calls = min(3, self.plan.calls(first))
                again = self._module_run(vmfb)(calls)[0] if calls > 1 else []
                c.samples = [(0, first), *((0, ms) for ms in again)]
                c.first_ms = float(c.median_ms or 0)
            except (CompileError, MissingDependencyError, RunError) as e:
                c.problem = without_log(str(e))
            tried.append((c, vmfb))
        self.tried = [c for c, _ in tried]
        ran = sorted((t for t in tried if not t[0].problem), key=lambda t: t[0].first_ms)
        for c, vmfb in ran:
            self._check_module(c, vmfb, expected, self.others_tolerance)
            if not c.problem:
                return dataclasses.replace(c, what=STOCK, samples=[]), self._module_run(vmfb)
        return Contestant(STOCK, problem=self.tried[0].problem), _never

    def _compiled_stock(self, flags: Sequence[str], vmfb: Path) -> Made:
        def build(out: Path) -> Made:
            imported = self.folder / "stock.mlir"
            if not imported.exists() and isinstance(refused := stock_import(self.model, self.folder), str):
                raise CompileError(refused)
            settings = {"flags": flags, "timeout_s": self.plan.timeout_s}
            compile_stock(imported, self.target, settings, out)
            return Made()

        return self.modules.get(self._named(STOCK), self.spec, self.target, flags, vmfb, build)

    def compiled(self, vmfb: Path) -> Made:
        """This project's module of the case's model. Raises CompileError, and MissingDependencyError without the compiler."""

        def build(out: Path) -> Made:
            done = compile_model(self.model, out, self.target)
            said = fused_sites(done.sites) + "".join(f"; left alone: {m.reason}" for m in done.misses)
            return Made(said, ", ".join(sorted({s.lossy for s in done.sites})))

        return self.modules.get(self._named(OURS), self.spec, self.target, (), vmfb, build)

    def build(self) -> list[str]:
        """Compiles what `run` would time. Returns the problems."""
        self._write_model()
        problems = []
        wanted = [(OURS, partial(self.compiled, self.folder / "ours.vmfb"))] * (OURS in self.who)
        flags = GPU_STOCK_FLAGS if self.target.is_gpu else STOCK_FLAGS
        stock = [(STOCK, partial(self._compiled_stock, f, self.folder / "stock.vmfb")) for f in flags]
        for what, make in wanted + stock * (STOCK in self.who):
            self.note(f"{self.case.name}: {what}")
            try:
                make()
            except CompileError as e:
                problems.append(f"{self.case.name}: {what}: {without_log(str(e))}")
        return problems

    def _ours(self, expected: Expected) -> tuple[Contestant, _Run]:
        c, vmfb = Contestant(OURS), self.folder / "ours.vmfb"
        try:
            made = self.compiled(vmfb)
        except (CompileError, MissingDependencyError) as e:
            return Contestant(OURS, problem=without_log(str(e))), _never
        c.compile_s, c.flags = made.seconds, made.said
        if there := elsewhere(made):
            c.flags += f"; compiled elsewhere by {there}"
        self._check_module(c, vmfb, dataclasses.replace(expected, lossy=made.lossy), None)
        if not c.problem:
            c.first_ms = float(self._module_run(vmfb)(1)[0][0])
        return c, self._module_run(vmfb)

    def _worker(self, what: str, kind: str, argument: str, expected: Expected) -> tuple[Contestant, _Run]:
        c = Contestant(what)
        worker = self._start(kind, argument)
        path = self.folder / "out.npz"
        try:
            done: WorkerRun = worker.start(1, path)
        except RunError as e:
            c.problem = str(e)
            return c, _never
        c.peak_bytes, c.extra_bytes, c.flags, c.first_ms = done.peak_bytes, done.extra_bytes, done.how, done.ms[0]
        with np.load(path) as archive:
            _judge(c, expected, archive[archive.files[0]], self.others_tolerance)
        return c, worker.timed

    def _copy(self) -> tuple[Contestant, _Run]:
        worker = self._start("copy", str(COPY_BYTES))
        c = Contestant(COPY, f"{COPY_BYTES >> 20} MiB")
        c.first_ms = worker.start(1).ms[0]
        return c, worker.timed

    def _start(self, kind: str, argument: str) -> Worker:
        plan, session = self.plan, self.session if kind == "torch" else None
        return Worker(kind, argument, self.inputs, plan.threads, plan.timeout_s, plan.memory_bytes, session)


_Run = Callable[[int], tuple[Sequence[float], int]]


def _never(calls: int) -> tuple[Sequence[float], int]:
    raise AssertionError("a contestant with a problem is not run")


def _judge(c: Contestant, expected: Expected, result: Any, tolerance: float | None) -> None:
    """Sets the error, and the problem where it is too large (`tolerance` None: what the kernel's element type allows)."""
    seen = expected.compare(result)
    c.error = seen.error
    if seen.problem and (tolerance is None or not seen.error <= tolerance):
        c.problem = f"wrong numbers: {seen.problem}"


TINY = cases.case("tiny", Sq=8, Skv=8, D=4, Dv=4)


def base_memory(target: Target, plan: Plan, modules: KeptModules | None = None) -> int:
    """Peak resident bytes of an IREE program with a tiny attention in it; 0 where it cannot be compiled here."""
    with scratch_folder() as folder:
        tiny = CaseBench(TINY, target, plan, folder, 0, lambda m: None, modules=modules)
        tiny._prepare()
        vmfb = folder / "tiny.vmfb"
        try:
            tiny.compiled(vmfb)
        except MissingDependencyError:
            return 0  # then no module of a case can be compiled either
        return run_module(vmfb, tiny.paths, 1, **tiny._options(vmfb))[1] - tiny.io_bytes


def build_modules(
    wanted: Sequence[Case],
    target: Target,
    plan: Plan,
    modules: KeptModules,
    who: Sequence[str] = TABLE,
    note: Callable[[str], None] = lambda message: None,
) -> list[str]:
    """Compiles all that `bench_attention` would time of the cases, and runs none of it. Returns what could not be compiled."""
    problems = []
    for case in (TINY, *wanted):
        with scratch_folder() as folder:
            bench = CaseBench(case, target, plan, folder, 0, note, (OURS,) if case is TINY else who, modules)
            problems += bench.build()
    return problems


def bench_attention(
    wanted: Sequence[Case],
    prefix: Path,
    target: Target | str = "cpu-host",
    plan: Plan | None = None,
    *,
    fresh: bool = False,
    who: Sequence[str] = TABLE,
    note: Callable[[str], None] = lambda message: None,
    modules: KeptModules | None = None,
) -> list[CaseResult]:
    """All cases with the contestants `who`, those that an interrupted run with the same plan, machine and
    versions has finished read from PREFIX.partial.

    What is not installed here is a problem of its contestants. Raises OnnxFaError.
    """
    plan = plan or Plan()
    target = parse_target(target) if isinstance(target, str) else target
    check_writable(f"{prefix}.csv")
    partial = Path(f"{prefix}.partial")
    if fresh:
        shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(exist_ok=True)
    facts = machine_facts(plan.threads)
    head = {
        "plan": asdict(plan),
        "target": [target.name, target.kernels, target.lossy],
        "who": list(who),
        "cpu": facts["cpu"],
        "versions": facts["versions"],
    }
    results: dict[str, CaseResult] = {}
    for case in wanted:
        found = _read_partial(partial / f"{case.name}.json", head)
        if found:
            results[case.name] = found
    left = {c.name: expected_seconds(c, plan) for c in wanted if c.name not in results}
    if results:
        note(f"{len(results)} cases of an interrupted run are used (--fresh measures them again)")
    note(f"{len(left)} cases, about {_minutes(sum(left.values()))}")
    base_bytes = base_memory(target, plan, modules) if left else 0
    guessed = spent = 0.0
    # On a CPU every batch of calls has a process of its own, whose peak memory is told.
    with Session(package_environment(), plan.timeout_s) if target.is_gpu else nullcontext() as session:
        for case in wanted:
            if case.name in results:
                continue
            with scratch_folder() as folder:
                done = CaseBench(case, target, plan, folder, base_bytes, note, who, modules, session).run()
            write_whole(partial / f"{case.name}.json", json.dumps({"head": head, "result": done.to_dict()}))
            results[case.name] = done
            guessed, spent = guessed + left.pop(case.name), spent + done.seconds
            note(
                f"{case.name}: done in {done.seconds:.0f} s, about {_minutes(sum(left.values()) * spent / guessed)} left"
            )
    return [results[c.name] for c in wanted]


def _read_partial(path: Path, head: Mapping[str, Any]) -> CaseResult | None:
    if not path.is_file():
        return None
    data = json.loads(path.read_text())
    return CaseResult.from_dict(data["result"]) if data["head"] == json.loads(json.dumps(head)) else None


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


TABLE_HEAD = (
    *("case", "onnx_fa ms", "stock IREE ms", "onnxruntime ms", "torch ms"),
    *("to best of onnxruntime and torch", "to stock IREE", "MiB: onnx_fa", "stock", "onnxruntime", "torch"),
    *("of copy bandwidth", "error", "remarks"),
)


def table_row(r: CaseResult) -> tuple[str, ...]:
    """A row under TABLE_HEAD. Memory is beyond inputs and outputs."""

    def cell(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    by = {c.what: c for c in r.contestants if c.what != TRIED}
    order = (OURS, STOCK, ORT, TORCH)
    ours = r.median(OURS)

    def ratio(other: float | None) -> float | None:
        return ours / other if ours is not None and other else None

    extra = [by[w].extra_bytes if w in by else None for w in order]
    remarks = [f"{w}: {by[w].problem}" for w in order if w in by and by[w].problem]
    remarks += [by[w].flags for w in (OURS, TORCH) if w in by and not by[w].problem and by[w].flags]
    return (
        r.title,
        *(cell(r.median(w), ".2f") for w in order),
        cell(ratio(r.best_other), ".2f"),
        cell(ratio(r.median(STOCK)), ".2f"),
        *(cell(None if b is None else b / 2**20, ".1f") for b in extra),
        cell(r.of_bandwidth(OURS), ".0%"),
        cell(by[OURS].error, ".1e"),
        "; ".join(remarks),
    )


def write_results(results: Sequence[CaseResult], prefix: Path, plan: Plan, *, with_plot: bool = True) -> list[Path]:
    """Raw samples as CSV, everything as JSON, the table as Markdown, bars as PNG. Raises OnnxFaError."""
    facts = machine_facts(plan.threads) | {"method": METHOD}
    table = markdown_table(TABLE_HEAD, [table_row(r) for r in results])
    ratios = [o / b for r in results if (o := r.median(OURS)) is not None and (b := r.best_other)]
    summary = f"\n\nMedian ratio to the best of onnxruntime and torch: {median(ratios):.2f}." if ratios else ""
    return write_case_files(results, prefix, facts, table + summary, plot if with_plot else None)


def write_case_files(
    results: Sequence[CaseResult],
    prefix: Path,
    facts: Mapping[str, Any],
    text: str,
    draw: Callable[[Path, Path], None] | None,
) -> list[Path]:
    """`write_files` of the contestants that count."""
    samples = [(r.title, c) for r in results for c in r.contestants if c.what != TRIED]
    data = {"machine": facts, "cases": [r.to_dict() for r in results]}
    return write_files(prefix, facts, samples, data, text, draw)


def main(argv: Sequence[str] | None = None) -> int:
    """The command of scripts/bench_attention.sh. Returns 1 where onnx_fa was wrong or did not run, 2 for bad input."""
    parser = argparse.ArgumentParser(prog="bench_attention.sh", description=main.__doc__)
    parser.add_argument("--out", default="benchmarks/attention", metavar="PREFIX")
    parser.add_argument(
        "--case", action="append", default=[], metavar="NAME", help="one of onnx_fa/cases.py; repeatable"
    )
    parser.add_argument("--quick", action="store_true", help="a few small cases, few calls (to another PREFIX)")
    parser.add_argument("--all-quick", action="store_true", help="all cases, few calls")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--target", default="cpu-host")
    parser.add_argument("--fresh", action="store_true", help="do not go on with an interrupted run")
    parser.add_argument("--no-plot", action="store_true")
    args = parser.parse_args(argv)
    if args.threads < 1 or args.rounds < 0:
        parser.error("--threads and --rounds must be at least 1")
    plan = dataclasses.replace(QUICK if args.quick or args.all_quick else Plan(), threads=args.threads)
    if args.rounds:
        plan = dataclasses.replace(plan, rounds=args.rounds, slow_rounds=min(args.rounds, plan.slow_rounds))
    prefix = Path(f"{args.out}-quick" if args.quick or args.all_quick else args.out)
    tag = "quick" if args.quick else "table"
    try:
        wanted = [cases.find(n) for n in args.case] or [c for c in cases.CASES if {tag, "table"} <= c.tags]
        results = bench_attention(wanted, prefix, args.target, plan, fresh=args.fresh, note=_say)
        written = write_results(results, prefix, plan, with_plot=not args.no_plot)
    except OnnxFaError as e:
        print(f"bench_attention: error: {' '.join(str(e).split())}", file=sys.stderr)
        return e.exit_code
    except KeyboardInterrupt:
        print("bench_attention: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    shutil.rmtree(f"{prefix}.partial")
    print(text_table(TABLE_HEAD, [table_row(r) for r in results]))
    print("wrote " + ", ".join(map(str, written)))
    return 1 if any(c.what == OURS and c.problem for r in results for c in r.contestants) else 0


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
