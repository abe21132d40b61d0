"""The main job on real exports: rewrite, compile, inspect, verify, benchmark. Called by demo.sh.

Writes demo.{csv,json,md,png} to build/demo, which git ignores; with --update to benchmarks/demo, whose figures the docs show.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from onnx_fa.benchmark.models import ORT, STOCK, STOCK_FLAGS, BenchResult, bench, write_results
from onnx_fa.benchmark.plot import OURS
from onnx_fa.errors import OnnxFaError
from onnx_fa.iree.compile import compile_model
from onnx_fa.models.export import ExportError, export_path
from onnx_fa.spec.target import parse_target
from onnx_fa.verifier.verifier import verify

MODELS = ("bert", "gpt", "llama", "vit")
EXPORTS = (("dynamo", 18), ("dynamo", 23), ("torchscript", 17))
ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "demo"
COMMITTED = ROOT / "benchmarks" / "demo"
HEAD = ("export", "fused", "verified", "error", "stock IREE", "onnxruntime", "onnx_fa", "to stock", "to ort", "")
INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ended, as shells have it."""
Say = Callable[[str], None]


def ratio(result: BenchResult, to: str) -> str:
    value = result.ratio(OURS, to)
    return "-" if value is None else f"{value:.2f}"


def milliseconds(result: BenchResult, what: str) -> str:
    best = result.best(what)
    return "-" if best is None or best.median_ms is None else f"{best.median_ms:.1f}"


def one(
    name: str, exporter: str, opset: int, table: Table, results: list[BenchResult], all_flags: bool, say: Say
) -> bool:
    """One export through the whole chain; a row of the table. Returns whether everything was as it should be."""
    label = f"{name} {exporter} {opset}"
    try:
        say(f"{label}: export")
        path = export_path(name, exporter, opset)  # type: ignore[arg-type]
    except ExportError as e:
        table.add_row(label, *["-"] * 8, f"[dim]{e}[/dim]")
        return True
    target = parse_target("cpu-host")
    say(f"{label}: compile and inspect")
    with tempfile.TemporaryDirectory() as folder:
        compiled = compile_model(path, Path(folder) / "m.vmfb", target)
    fused = sum(s.fused is True for s in compiled.sites)
    total = len(compiled.sites) + len(compiled.misses)
    say(f"{label}: verify")
    checked = verify(path, target, seeds=1)
    # Stock IREE cannot compile opset 23, and the third export holds the same computation as the first. Of its flag sets the
    # first two won on every model when all were tried (--all-flags), so that a quick run needs no more.
    quick = STOCK_FLAGS[:2] if (exporter, opset) == EXPORTS[0] else ()
    flags = STOCK_FLAGS if all_flags else quick
    result = bench(
        path,
        target,
        rounds=3,
        calls=3,
        stock_flags=flags,
        name=f"{name}-{exporter}{opset}",
        progress=lambda m: say(f"{label}: {m}"),
    )
    results.append(result)
    errors = [c.error for c in checked.checks if c.what.startswith("IREE") and c.error is not None]
    ok = fused == total and checked.ok
    table.add_row(
        label,
        f"{fused}/{total}",
        "[green]ok[/green]" if checked.ok else "[red]MISMATCH[/red]",
        f"{max(errors):.0e}" if errors else "-",
        milliseconds(result, STOCK),
        milliseconds(result, ORT),
        milliseconds(result, OURS),
        ratio(result, STOCK),
        ratio(result, ORT),
        "" if ok else "[red]look at the report[/red]",
    )
    return ok


class Steps:
    """Says which step of which export is going on: a bar on a terminal, a line for every step elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._start = time.monotonic()
        self._console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
        )
        self.bar = Progress(*columns, console=self._console, disable=not self._console.is_terminal)
        self._task: TaskID = self.bar.add_task("", total=total)

    def say(self, step: str) -> None:
        self.bar.update(self._task, description=step)
        if not self._console.is_terminal:
            seconds = time.monotonic() - self._start
            print(f"{seconds:5.0f} s  {self._done + 1}/{self._total}  {step}", file=sys.stderr, flush=True)

    def end_of_export(self) -> None:
        self._done += 1
        self.bar.advance(self._task)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, help=f"some of {', '.join(MODELS)} (default: all)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--out", type=Path, default=OUT, help="folder for the results (default: build/demo)")
    where.add_argument(
        "--update", dest="out", action="store_const", const=COMMITTED, help="write to benchmarks/demo instead"
    )
    parser.add_argument(
        "--all-flags", action="store_true", help="time stock IREE with all its flag sets on every export"
    )
    return parser.parse_args()


def _run(models: list[str], all_flags: bool, table: Table, results: list[BenchResult]) -> bool:
    """All exports of the models, each a row of the table; whether all was as it should be."""
    good = True
    steps = Steps(len(models) * len(EXPORTS))
    with steps.bar:
        for name in models:
            for exporter, opset in EXPORTS:
                try:
                    good &= one(name, exporter, opset, table, results, all_flags, steps.say)
                except OnnxFaError as e:
                    table.add_row(f"{name} {exporter} {opset}", *["-"] * 8, f"[red]{e}[/red]")
                    good = False
                steps.end_of_export()
    return good


def main() -> int:
    args = _arguments()
    # The exporters warn about graphs that they fail to fold ("Evaluation failed: ..."); they write these graphs all the same.
    for name in ("onnxscript", "onnx_ir", "torch.onnx"):
        logging.getLogger(name).setLevel(logging.ERROR)
    stock = (
        None
        if args.all_flags
        else "stock IREE: on dynamo 18 alone; it has no opset 23, torchscript 17 computes the same"
    )
    table = Table(
        title="ms per call: 2 threads, medians; 'to stock' and 'to ort' below 1: onnx_fa is faster", caption=stock
    )
    for head in HEAD:
        table.add_column(head, justify="left" if head in ("export", "") else "right", no_wrap=head == "export")
    results: list[BenchResult] = []
    start = time.monotonic()
    good, interrupted = False, False
    try:
        good = _run(list(args.models), args.all_flags, table, results)
    except KeyboardInterrupt:
        interrupted = True
    Console(width=118).print(table)
    if interrupted and args.out == COMMITTED:
        print("interrupted: benchmarks/demo stays as it was")
    elif results:
        args.out.mkdir(parents=True, exist_ok=True)
        for path in write_results(results, args.out / "demo"):
            print(path)
    print(f"{time.monotonic() - start:.0f} s{', interrupted' if interrupted else ''}")
    if interrupted:
        return INTERRUPTED
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
