"""bench: stock IREE with its best flags against onnx_fa against onnxruntime, in one run, interleaved.

IREE modules, stock and ours alike, are timed with the wheel's iree-benchmark-module; onnxruntime and torch in a child
of their own (`bench_worker`). Every round starts each contestant once, so that a slow minute of the machine hits all
of them, and every child reports its peak resident memory.
"""

from __future__ import annotations

import csv
import io as text_io
import json
import os
import sys
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
from onnx import TensorProto, helper, numpy_helper

from onnx_fa import io
from onnx_fa.backend import limits
from onnx_fa.backend.compile import compile_model, iree_compile
from onnx_fa.backend.run import benchmark_module, run_module
from onnx_fa.errors import CompileError, MissingDependencyError, RunError
from onnx_fa.files import scratch_folder, write_whole
from onnx_fa.inputs import Array, random_inputs
from onnx_fa.machine import machine_facts
from onnx_fa.plot import COLUMNS, plot
from onnx_fa.table import markdown_table, text_table
from onnx_fa.target import Target, parse_target

STOCK = "stock IREE"
OURS = "onnx_fa"
ORT = "onnxruntime"
TORCH = "torch SDPA"

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
"""What stock IREE is tried with; its result is the best of them."""


@dataclass
class Contestant:
    """One thing that is timed. `samples` are (round, ms). `problem` says why there are none. Memory in bytes, of the
    child."""

    what: str
    flags: str = ""
    samples: list[tuple[int, float]] = field(default_factory=list)
    peak_bytes: int = 0
    compile_s: float | None = None
    error: float | None = None
    problem: str = ""

    @property
    def median_ms(self) -> float | None:
        return median(ms for _, ms in self.samples) if self.samples else None


@dataclass(frozen=True)
class BenchResult:
    """All contestants of one model, and the circumstances."""

    model: str
    contestants: tuple[Contestant, ...]
    machine: dict[str, Any]

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
    paths = [Path(f"{prefix}.{end}") for end in ("csv", "json", "md", "png")]
    machine = results[0].machine
    out = text_io.StringIO()
    out.write(f"# {machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, {machine['date']}\n")
    out.write(f"# {' '.join(f'{k} {v}' for k, v in machine['versions'].items())}\n")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in results:
        for c in result.contestants:
            writer.writerows((result.model, c.what, c.flags, r, f"{ms:.6f}") for r, ms in c.samples)
    write_whole(paths[0], out.getvalue())
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
    write_whole(paths[1], json.dumps(summary, indent=1) + "\n")
    circumstances = f"{machine['cpu']}, {machine['threads']} threads, {machine['date']}; {machine['method']}"
    table = markdown_table(TABLE_HEAD, [row for r in results for row in r.rows()])
    write_whole(paths[2], f"{table}\n\n{circumstances}\n")
    if with_plot:
        plot(paths[0], paths[3])
    return paths if with_plot else paths[:3]


def bench(
    model: io.ModelLike,
    target: Target | str = "cpu-host",
    *,
    rounds: int = 7,
    calls: int = 3,
    threads: int = 2,
    dims: Mapping[str, int] | None = None,
    stock_flags: Sequence[Sequence[str]] = STOCK_FLAGS,
    name: str | None = None,
    memory_bytes: int = 12 << 30,
    timeout_s: float = 600,
    extra: Sequence[tuple[str, str]] = (),
    progress: Callable[[str], None] = lambda message: None,
) -> BenchResult:
    """Times `calls` calls of each contestant in each of `rounds` rounds, on the same random inputs (seed 0).

    A contestant that cannot be built or run keeps its place in the table, with the reason. `extra` are further workers
    of `bench_worker`: (kind, argument). Raises ModelError, and MissingDependencyError without onnxruntime.
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
        field_: list[tuple[Contestant, _Run]] = []
        want, runner = _worker("onnxruntime", str(path), folder, threads, timeout_s, memory_bytes)
        reference = Contestant(ORT)
        progress("onnxruntime: first run")
        try:
            expected = want()
        except RunError as e:
            reference.problem, expected = str(e), []
        outputs = len(loaded.graph.outputs)

        def module(contestant: Contestant, build: Callable[[Path], object]) -> None:
            progress(f"compiling: {contestant.what} {contestant.flags}")
            vmfb = folder / f"module{len(field_)}.vmfb"
            start = time.monotonic()
            try:
                build(vmfb)
                contestant.compile_s = time.monotonic() - start
                function = _function(vmfb)
                inputs = list(arrays.values())
                options: dict[str, Any] = {"function": function, "device": target.device, "threads": threads}
                options |= {"timeout_s": timeout_s, "memory_bytes": memory_bytes}
                got, peak = run_module(vmfb, inputs, outputs, **options)
                contestant.peak_bytes = peak
                contestant.error = _difference(got, expected)
            except (CompileError, RunError) as e:
                contestant.problem = _without_log(str(e))

            def run() -> tuple[Sequence[float], int]:
                done = benchmark_module(vmfb, inputs, repetitions=calls, **options)
                return done.ms, done.peak_bytes

            field_.append((contestant, run))

        imported = _stock_import(path, folder)
        for flags in stock_flags:
            contestant = Contestant(STOCK, " ".join(flags) or "defaults")
            if isinstance(imported, str):
                contestant.problem = imported
                field_.append((contestant, _never))
                break  # the importer refuses it: flags make no difference
            settings = {"flags": tuple(flags), "timeout_s": timeout_s}
            module(contestant, partial(_compile_stock, imported, target, settings))
        ours = Contestant(OURS)
        sites: list[Any] = []

        def build_ours(out: Path) -> None:
            done = compile_model(path, out, target)
            sites.extend(done.sites)

        module(ours, build_ours)
        if sites:
            fused = sum(s.fused is True for s in sites)
            bodies = ", ".join(dict.fromkeys(str((s.tiles or {}).get("body", "?")) for s in sites))
            ours.flags = f"{fused} of {len(sites)} sites fused ({bodies})"
        field_.append((reference, lambda: runner(calls)))
        for kind, argument in extra:
            other, timed = _worker(kind, argument, folder, threads, timeout_s, memory_bytes)
            contestant = Contestant(TORCH if kind == "torch-sdpa" else kind)
            try:
                contestant.error = _difference(other(), expected)
            except RunError as e:
                contestant.problem = str(e)
            field_.append((contestant, lambda timed=timed: timed(calls)))  # type: ignore[misc]
        _rounds(field_, rounds, progress)
    return BenchResult(label, tuple(c for c, _ in field_), machine_facts(threads) | {"method": METHOD})


_Run = Callable[[], tuple[Sequence[float], int]]


def _never() -> tuple[Sequence[float], int]:
    raise AssertionError("a contestant with a problem is not run")


def _rounds(field_: Sequence[tuple[Contestant, _Run]], rounds: int, progress: Callable[[str], None]) -> None:
    """Interleaved: every contestant once per round, in turn from another one on."""
    for n in range(rounds):
        progress(f"round {n + 1} of {rounds}")
        start = n % len(field_)
        for contestant, run in (*field_[start:], *field_[:start]):
            if contestant.problem:
                continue
            try:
                times, peak = run()
            except RunError as e:
                contestant.problem = str(e)
                continue
            contestant.samples += [(n, ms) for ms in times]
            contestant.peak_bytes = max(contestant.peak_bytes, peak)


def _worker(
    kind: str, argument: str, folder: Path, threads: int, timeout_s: float, memory_bytes: int
) -> tuple[Callable[[], list[Array]], Callable[[int], tuple[list[float], int]]]:
    """(a call that returns the results, a call that times `n` calls) of a `bench_worker`. Both raise RunError."""

    def start(calls: int, *more: str) -> tuple[list[float], int]:
        command = [
            sys.executable,
            "-m",
            "onnx_fa.bench_worker",
            kind,
            argument,
            str(folder / "inputs.npz"),
            str(threads),
        ]
        # The package may come from a checkout that only this process knows of.
        paths = [str(Path(__file__).resolve().parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        done = limits.run_limited(
            [*command, str(calls), *more], timeout_s=timeout_s, memory_bytes=memory_bytes, env=env
        )
        if done.ending != "ok":
            last = [line for line in done.stderr.splitlines() if line.strip()]
            raise RunError(
                f"{kind} {done.describe(timeout_s, memory_bytes)}: {last[-1][:200] if last else 'no message'}"
            )
        return [float(ms) for ms in json.loads(done.stdout.splitlines()[-1])["ms"]], done.peak_bytes

    def results() -> list[Array]:
        path = folder / f"{kind}.out.npz"
        start(0, str(path))
        with np.load(path) as archive:
            return [archive[n] for n in archive.files]

    return results, start


def _compile_stock(source: Path, target: Target, settings: Mapping[str, Any], output: Path) -> None:
    iree_compile(source, output, target, **settings)


def _stock_import(path: Path, folder: Path) -> Path | str:
    """The model through iree-import-onnx, or the reason why that fails."""
    output = folder / "stock.mlir"
    # The wheel's own program, as a user would run it.
    command = [sys.executable, "-m", "iree.compiler.tools.import_onnx", str(path), "-o", str(output)]
    done = limits.run_limited(command, timeout_s=300, memory_bytes=12 << 30)
    if done.ending == "ok" and output.exists():
        return output
    last = [line for line in done.stderr.splitlines() if line.strip()]
    return f"iree-import-onnx {done.describe(300, 12 << 30)}: {last[-1][:160] if last else 'no message'}"


def _function(vmfb: Path) -> str:
    """The function that a module of one model exports. Raises RunError."""
    import iree.runtime as rt

    instance = rt.VmInstance()
    module = rt.VmModule.copy_buffer(instance, vmfb.read_bytes())
    names = [n for n in module.function_names if not n.startswith("__") and not n.endswith("$async")]
    if len(names) != 1:
        raise RunError(f"the module exports {', '.join(names) or 'no function'}, not one")
    return str(names[0])


def _difference(got: Sequence[Array], want: Sequence[Array]) -> float | None:
    """The largest difference over the largest magnitude, over all outputs; None when there is nothing to compare
    with."""
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


def _without_log(message: str) -> str:
    """A compiler's message without the name of its log: the folder goes with the run."""
    return message.partition("; command and messages")[0]


@dataclass(frozen=True)
class AttentionCase:
    """One attention by itself: f32, q (B, Hq, Sq, D), k and v (B, Hq, Skv, D), scale 1/sqrt(D); causal masks by an
    additive constant."""

    H: int
    S: int
    D: int
    B: int = 1
    Skv: int = 0
    causal: bool = False

    @property
    def name(self) -> str:
        skv = f" Skv{self.Skv}" if self.Skv else ""
        return f"B{self.B} H{self.H} S{self.S}{skv} D{self.D}" + (" causal" if self.causal else "")


ATTENTION_CASES = (
    AttentionCase(8, 1024, 64),
    AttentionCase(8, 1024, 64, causal=True),
    AttentionCase(8, 2048, 64),
    AttentionCase(8, 4096, 64),
    AttentionCase(16, 1024, 128),
    AttentionCase(32, 1, 128, Skv=2048),
)


def attention_model(case: AttentionCase) -> onnx.ModelProto:
    """The plain spelling: Transpose, MatMul, Mul, (Add of a constant triangular mask), Softmax, MatMul; opset 18."""
    skv = case.Skv or case.S
    shapes = {
        "q": (case.B, case.H, case.S, case.D),
        "k": (case.B, case.H, skv, case.D),
        "v": (case.B, case.H, skv, case.D),
    }
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    constants = [numpy_helper.from_array(np.array(case.D**-0.5, np.float32), "scale")]
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], "transpose_k", perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["qk"], "qk"),
        helper.make_node("Mul", ["qk", "scale"], ["score"], "scale_score"),
    ]
    if case.causal:
        mask = np.triu(np.full((case.S, skv), np.finfo(np.float32).min, np.float32), 1)
        constants.append(numpy_helper.from_array(mask, "causal"))
        nodes.append(helper.make_node("Add", ["score", "causal"], ["masked"], "add_mask"))
    nodes += [
        helper.make_node("Softmax", ["masked" if case.causal else "score"], ["p"], "softmax", axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["out"], "pv"),
    ]
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, shapes["q"])
    graph = helper.make_graph(nodes, "attention", inputs, [out], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def bench_attention(
    cases: Sequence[AttentionCase] = ATTENTION_CASES,
    target: Target | str = "cpu-host",
    *,
    rounds: int = 5,
    calls: int = 3,
    threads: int = 2,
    stock_flags: Sequence[Sequence[str]] = STOCK_FLAGS,
    progress: Callable[[str], None] = lambda message: None,
) -> list[BenchResult]:
    """`bench` of single attentions; torch's SDPA takes part where torch is installed."""
    results = []
    for case in cases:
        extra = [("torch-sdpa", f"{int(case.causal)},{case.D**-0.5!r}")] if find_spec("torch") else []
        progress(case.name)
        results.append(
            bench(
                attention_model(case),
                target,
                rounds=rounds,
                calls=calls,
                threads=threads,
                stock_flags=stock_flags,
                name=case.name,
                extra=extra,
                progress=progress,
            )
        )
    return results


def main(argv: Sequence[str]) -> None:
    """`python -m onnx_fa.benchmark PREFIX [THREADS [ROUNDS]]`: bench_attention on all its cases."""
    prefix, threads, rounds = (*argv, *("2", "5")[len(argv) - 1 :])
    results = bench_attention(
        threads=int(threads), rounds=int(rounds), progress=lambda message: print(message, file=sys.stderr, flush=True)
    )
    written = write_results(results, Path(prefix))
    print(text_table(TABLE_HEAD, [row for r in results for row in r.rows()]))
    print("wrote " + ", ".join(map(str, written)))


if __name__ == "__main__":
    main(sys.argv[1:])
