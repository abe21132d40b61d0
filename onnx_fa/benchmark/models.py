"""bench: stock IREE with its best flags against onnx_fa against onnxruntime, in one run, interleaved.

IREE modules, stock and ours alike, are timed with the wheel's iree-benchmark-module; onnxruntime and torch in a child
of their own (`worker.py`). Every round starts each contestant once, so that a slow minute of the machine hits all
of them, and every child reports its peak resident memory.
"""

from __future__ import annotations

import csv
import io as text_io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnx_fa.benchmark.plot import COLUMNS, OURS, plot
from onnx_fa.benchmark.stock import compile_stock, stock_import, without_log
from onnx_fa.benchmark.worker_process import Worker
from onnx_fa.errors import CompileError, MissingDependencyError, RunError
from onnx_fa.files import scratch_folder, write_whole
from onnx_fa.forms.report import SiteReport
from onnx_fa.graph import io
from onnx_fa.iree.archives import copy_module
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.run import benchmark_module, exported_by, run_module
from onnx_fa.machine import machine_facts
from onnx_fa.spec.target import Target, parse_target
from onnx_fa.tables import markdown_table, text_table
from onnx_fa.verifier.inputs import Array, random_inputs

STOCK = "stock IREE"
ORT = "onnxruntime"
TORCH = "torch SDPA"
EAGER = "torch eager"
COMPILED = "torch.compile"
BLOCKED = "blocked form"
"""The site as a Loop over blocks of keys, in onnxruntime: stock IREE's compiler crashes on it."""

METHOD = (
    "interleaved rounds, medians; IREE by iree-benchmark-module, others in a child process; memory is the child's peak"
)

_STACK = "--iree-llvmcpu-stack-allocation-limit=131072"
STOCK_FLAGS: tuple[tuple[str, ...], ...] = (
    (),
    ("--iree-opt-data-tiling", _STACK),
    ("--iree-opt-level=O3", _STACK),
    ("--iree-opt-level=O3", "--iree-opt-data-tiling=false", _STACK),
)
"""What stock IREE is tried with on CPUs; its result is the best of them."""
GPU_STOCK_FLAGS: tuple[tuple[str, ...], ...] = ((), ("--iree-opt-level=O3",))
"""The same on GPUs."""


@dataclass
class Contestant:
    """One thing that is timed. `samples` are (round, ms). `problem` says why there are none. Memory in bytes: `peak_bytes` of the
    child, `extra_bytes` beyond inputs and outputs. `first_ms` is an untimed look, to choose how many calls to time."""

    what: str
    flags: str = ""
    samples: list[tuple[int, float]] = field(default_factory=list)
    peak_bytes: int = 0
    compile_s: float | None = None
    error: float | None = None
    problem: str = ""
    extra_bytes: int | None = None
    first_ms: float = 0.0

    @property
    def median_ms(self) -> float | None:
        return median(ms for _, ms in self.samples) if self.samples else None


@dataclass(frozen=True)
class BenchResult:
    """All contestants of one model, and the circumstances."""

    model: str
    contestants: tuple[Contestant, ...]
    machine: dict[str, Any]

    def __repr__(self) -> str:
        times = (f"{c.what} " + ("-" if c.median_ms is None else f"{c.median_ms:.3g} ms") for c in self.contestants)
        return f"BenchResult({self.model!r}, {', '.join(times)})"

    def best(self, what: str) -> Contestant | None:
        """The fastest contestant of that name, None when none of them ran."""
        ran = [c for c in self.contestants if c.what == what and c.samples]
        return min(ran, key=lambda c: c.median_ms or 0.0, default=None)

    def ratio(self, what: str, to: str) -> float | None:
        a, b = self.best(what), self.best(to)
        return a.median_ms / b.median_ms if a and b and a.median_ms is not None and b.median_ms else None

    def rows(self) -> list[tuple[str, ...]]:
        stock = self.best(STOCK)
        rows: list[tuple[str, ...]] = []
        for c in self.contestants:
            ms = c.median_ms
            ratio = "-" if ms is None or stock is None or not stock.median_ms else f"{ms / stock.median_ms:.2f}x"
            low = f"{min(t for _, t in c.samples):.3f}" if c.samples else "-"
            rows.append(
                (
                    self.model,
                    c.what + (" (best)" if c is stock else ""),
                    "-" if ms is None else f"{ms:.3f}",
                    low,
                    str(len(c.samples)),
                    ratio,
                    f"{c.peak_bytes / 2**20:.0f}" if c.peak_bytes else "-",
                    "-" if c.compile_s is None else f"{c.compile_s:.1f}",
                    "-" if c.error is None else f"{c.error:.1e}",
                    c.problem or c.flags,
                )
            )
        return rows

    def table(self) -> str:
        return text_table(TABLE_HEAD, self.rows())

    def write(self, prefix: Path, *, plot: bool = True) -> list[Path]:
        """`prefix` with .csv, .json, .md and .png. Returns what was written."""
        return write_results([self], prefix, with_plot=plot)


TABLE_HEAD = (
    "model",
    "what",
    "median ms",
    "min ms",
    "calls",
    "to stock",
    "peak MiB",
    "compile s",
    "error",
    "flags or problem",
)


def write_results(results: Sequence[BenchResult], prefix: Path, *, with_plot: bool = True) -> list[Path]:
    """Raw samples as CSV, circumstances as JSON, the table as Markdown, bars as PNG. Raises OnnxFaError, and
    MissingDependencyError without matplotlib (the other files are written first)."""
    summary = [
        {
            "model": r.model,
            "machine": r.machine,
            "contestants": [
                {
                    **{k: v for k, v in vars(c).items() if k != "samples"},
                    "median_ms": c.median_ms,
                    "calls": len(c.samples),
                }
                for c in r.contestants
            ],
        }
        for r in results
    ]
    table = markdown_table(TABLE_HEAD, [row for r in results for row in r.rows()])
    samples = [(r.model, c) for r in results for c in r.contestants]
    return write_files(prefix, results[0].machine, samples, summary, table, plot if with_plot else None)


def write_files(
    prefix: Path,
    machine: Mapping[str, Any],
    contestants: Sequence[tuple[str, Contestant]],
    data: Any,
    text: str,
    draw: Callable[[Path, Path], None] | None,
) -> list[Path]:
    """What every benchmark leaves: `prefix`.csv with the samples of all (model, contestant), .json with `data`, .md with `text` and
    the circumstances, .png as `draw` (CSV, PNG) makes it of the CSV. Returns the paths. Raises OnnxFaError."""
    paths = [Path(f"{prefix}.{end}") for end in ("csv", "json", "md", "png")]
    out = text_io.StringIO()
    where = ", ".join(filter(None, (machine.get("gpu"), machine["cpu"])))
    out.write(f"# {where}, {machine['cores']} cores, {machine['threads']} threads, {machine['date']}\n")
    out.write(f"# {' '.join(f'{k} {v}' for k, v in machine['versions'].items())}\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for model, c in contestants:
        extra = "" if c.extra_bytes is None else c.extra_bytes
        writer.writerows((model, c.what, c.flags, n, f"{ms:.6f}", extra) for n, ms in c.samples)
    write_whole(paths[0], out.getvalue())
    write_whole(paths[1], json.dumps(data, indent=1) + "\n")
    circumstances = f"{where}, {machine['threads']} threads, {machine['date']}; {machine['method']}"
    write_whole(paths[2], f"{text}\n\n{circumstances}\n")
    if draw is None:
        return paths[:3]
    draw(paths[0], paths[3])
    return paths


_Run = Callable[[], tuple[Sequence[float], int]]


def _never() -> tuple[Sequence[float], int]:
    raise AssertionError("a contestant with a problem is not run")


class _Modules:
    """The contestants that are IREE modules, with how each is timed. `options` are those of every run; `expected` is what
    onnxruntime made of the same `inputs`, nothing where it failed."""

    def __init__(
        self,
        folder: Path,
        inputs: Sequence[Array],
        expected: Sequence[Array],
        outputs: int,
        calls: int,
        options: dict[str, Any],
        progress: Callable[[str], None],
    ) -> None:
        self.folder, self.inputs, self.expected, self.outputs = folder, inputs, expected, outputs
        self.calls, self.options, self.progress = calls, options, progress
        self.field: list[tuple[Contestant, _Run]] = []

    def add_stock(self, path: Path, target: Target, tried: Sequence[Sequence[str]], timeout_s: float) -> None:
        """Stock IREE, once for each set of flags."""
        imported = stock_import(path, self.folder)
        for flags in tried:
            contestant = Contestant(STOCK, " ".join(flags) or "defaults")
            if isinstance(imported, str):
                contestant.problem = imported
                self.field.append((contestant, _never))
                return  # the importer refuses it: flags make no difference
            settings = {"flags": tuple(flags), "timeout_s": timeout_s}
            self._add(contestant, partial(compile_stock, imported, target, settings))

    def add_ours(self, path: Path, target: Target, compiled: Path | None) -> None:
        """This project's module: `compiled`, or made here."""
        sites: list[SiteReport] = []

        def build(out: Path) -> None:
            if compiled is not None:
                copy_module(compiled, out)
            else:
                sites.extend(compile_model(path, out, target).sites)

        contestant = Contestant(OURS)
        self._add(contestant, build)
        if sites:
            contestant.flags = fused_sites(sites)

    def add_made(self, what: str, made: Path) -> None:
        """Another module of the model, made elsewhere."""
        self._add(Contestant(what), lambda out: copy_module(made, out))

    def _add(self, contestant: Contestant, build: Callable[[Path], object]) -> None:
        """Builds and checks a module; one that cannot be built or run says so. All run on the driver that ours asks for."""
        self.progress(f"compiling: {contestant.what} {contestant.flags}".rstrip())
        vmfb = self.folder / f"module{len(self.field)}.vmfb"
        start = time.monotonic()
        try:
            build(vmfb)
            contestant.compile_s = time.monotonic() - start
            function, device = exported_by(vmfb, self.options["device"])
            if contestant.what == OURS:
                self.options["device"] = device
            got, peak = run_module(vmfb, self.inputs, self.outputs, function=function, **self.options)
            contestant.peak_bytes = peak
            contestant.error = _difference(got, self.expected)
        except (CompileError, RunError) as e:
            contestant.problem = without_log(str(e))
            self.field.append((contestant, _never))
            return

        def run() -> tuple[Sequence[float], int]:
            done = benchmark_module(vmfb, self.inputs, repetitions=self.calls, function=function, **self.options)
            return done.ms, done.peak_bytes

        self.field.append((contestant, run))


def bench(
    model: io.ModelLike,
    target: Target | str = "cpu-host",
    *,
    rounds: int = 7,
    calls: int = 3,
    threads: int = 2,
    dims: Mapping[str, int] | None = None,
    stock_flags: Sequence[Sequence[str]] | None = None,
    name: str | None = None,
    compiled: Path | None = None,
    others: Mapping[str, Path] | None = None,
    memory_bytes: int = 12 << 30,
    timeout_s: float = 600,
    progress: Callable[[str], None] = lambda message: None,
) -> BenchResult:
    """Times `calls` calls of each contestant in each of `rounds` rounds, on the same random inputs (seed 0). `compiled` is what
    `compile_model` made of it, which is compiled here otherwise; `others` are more of its modules, by the names that they get.

    A contestant that cannot be built or run keeps its place in the table, with the reason. Raises ModelError, and
    MissingDependencyError without onnxruntime.
    """
    target = parse_target(target) if isinstance(target, str) else target
    if find_spec("onnxruntime") is None:
        raise MissingDependencyError("onnxruntime is not installed: pip install 'onnx-fa[ort]'")
    loaded = io.load(model)
    label = name or (
        Path(str(model)).stem if not isinstance(model, (ir.Model, onnx.ModelProto)) else loaded.graph.name or "model"
    )
    arrays = random_inputs(loaded, dims=dims)
    with scratch_folder() as folder:
        path = folder / "model.onnx"
        io.save(loaded, path)
        np.savez(folder / "inputs.npz", **arrays)  # type: ignore[arg-type]
        worker = Worker("onnxruntime", str(path), folder / "inputs.npz", threads, timeout_s, memory_bytes)
        reference = Contestant(ORT)
        progress("onnxruntime: first run")
        try:
            expected = worker.results(folder)
        except RunError as e:
            reference.problem, expected = str(e), []
        options = {"device": target.device, "threads": threads, "timeout_s": timeout_s, "memory_bytes": memory_bytes}
        modules = _Modules(folder, list(arrays.values()), expected, len(loaded.graph.outputs), calls, options, progress)
        modules.add_ours(path, target, compiled)
        if stock_flags is None:
            stock_flags = GPU_STOCK_FLAGS if target.is_gpu else STOCK_FLAGS
        modules.add_stock(path, target, stock_flags, timeout_s)
        for what, made in (others or {}).items():
            modules.add_made(what, made)
        modules.field.sort(key=lambda played: played[0].what != STOCK)
        field_ = [*modules.field, (reference, lambda: worker.timed(calls))]
        play_rounds(field_, rounds, progress)
        facts = machine_facts(threads) | {"method": METHOD, "device": options["device"]}
    return BenchResult(label, tuple(c for c, _ in field_), facts)


def fused_sites(sites: Sequence[SiteReport]) -> str:
    """How many sites are fused, in words, with their kernels' bodies and what makes these less exact than their operands."""
    fused = sum(s.fused is True for s in sites)
    bodies = [" ".join(filter(None, (str((s.tiles or {}).get("body", "?")), s.lossy))) for s in sites]
    return f"{fused} of {len(sites)} sites fused ({', '.join(dict.fromkeys(bodies))})"


SETTLE_S = 0.25
"""Before a contestant's calls: threads of the one before it, in onnxruntime and PyTorch, look for more work until they sleep."""


def play_rounds(field_: Sequence[tuple[Contestant, _Run]], rounds: int, progress: Callable[[str], None]) -> None:
    """Interleaved: every contestant once per round, in turn from another one on. Each finds processors that are idle."""
    for n in range(rounds):
        progress(f"round {n + 1} of {rounds}")
        start = n % len(field_)
        for contestant, run in (*field_[start:], *field_[:start]):
            if contestant.problem:
                continue
            time.sleep(SETTLE_S)
            try:
                times, peak = run()
            except RunError as e:
                contestant.problem = str(e)
                continue
            contestant.samples += [(n, ms) for ms in times]
            contestant.peak_bytes = max(contestant.peak_bytes, peak)


def _difference(got: Sequence[Array], want: Sequence[Array]) -> float | None:
    """The largest difference over the largest magnitude, over all outputs; None when there is nothing to compare with."""
    if not want:
        return None
    worst = 0.0
    for a, b in zip(got, want, strict=True):
        if a.shape != b.shape or (np.isnan(a) != np.isnan(b)).any():
            raise RunError(f"results differ from onnxruntime's: shape {a.shape} or NaN places, not {b.shape}")
        x, y = np.nan_to_num(a.astype(np.float64)), np.nan_to_num(b.astype(np.float64))
        scale = float(np.max(np.abs(y), initial=0.0)) or 1.0
        worst = max(worst, float(np.max(np.abs(x - y), initial=0.0)) / scale)
    return worst
