"""`onnx-fa tune`: tiles and compile options, measured on this machine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_fa.cli.printing import note
from onnx_fa.cli.targets import read_target
from onnx_fa.errors import OnnxFaError
from onnx_fa.printable import printable
from onnx_fa.tables import text_table

if TYPE_CHECKING:
    from onnx_fa.kernels.tiles.database import Entry
    from onnx_fa.spec.site_case import SiteCase
    from onnx_fa.spec.target import Target
    from onnx_fa.tuning.search import Settings


def run_tune(args: argparse.Namespace) -> None:
    from onnx_fa.tuning import command as tuning
    from onnx_fa.tuning.model_cases import cases_of_model
    from onnx_fa.tuning.search import Settings

    if args.model and args.case:
        raise OnnxFaError("give a model or --case, not both")
    if not args.memory > 0:
        raise OnnxFaError("--memory must be above 0")
    target = read_target(args, runs=True)
    settings = Settings(
        rounds=args.rounds,
        calls=args.calls,
        threads=args.threads,
        candidates=args.candidates,
        jobs=args.jobs,
        compile_timeout_s=args.timeout,
        compile_memory_bytes=int(args.memory * 2**30),
        body=args.body,
    )
    wanted = cases_of_model(args.model, dict(args.dim), target) if args.model else tuning.table_cases(args.case, target)
    path, entries, left_out = _tune_with_bar(args, wanted, target, settings)
    _print_entries(entries)
    for reason in left_out:
        print(printable(f"left out: {reason}"))
    spread = max(e.measured["spread"] for e in entries)
    if spread > tuning.QUIET:
        note(args, f"times of one candidate spread by {spread:.0%}: was the machine idle?")
    note(args, f"wrote {path}")


def _tune_with_bar(
    args: argparse.Namespace, wanted: Sequence[SiteCase], target: Target, settings: Settings
) -> tuple[Path, Sequence[Entry], Sequence[str]]:
    """Tunes with a progress bar on a terminal, and with a line per case elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from onnx_fa.tuning import command as tuning

    columns = (TextColumn("{task.completed}/{task.total} cases"), BarColumn(20), TimeElapsedColumn())
    console = Console(stderr=True)
    shown = console.is_terminal and args.verbose >= 0
    with Progress(
        *columns, TextColumn("{task.description}", markup=False), console=console, transient=True, disable=not shown
    ) as bar:
        task = bar.add_task("", total=len(wanted))

        def advance(done: int, of: int) -> None:
            bar.update(task, completed=done, total=of, description="")
            if not shown and done:
                note(args, f"{done} of {of} cases")

        return tuning.tune(
            wanted,
            target,
            Path(args.out) if args.out else None,
            settings,
            fresh=args.fresh,
            note=lambda m: bar.update(task, description=m),
            advance=advance,
        )


def _print_entries(entries: Sequence[Entry]) -> None:
    head = ("case", "family", "tried", "refused", "best tiles", "default to best")
    rows = []
    for e in entries:
        best = e.choices[0]
        tiles = " ".join([*(f"{k}={v}" for k, v in best.tiles.items()), *best.flags])
        default = e.measured["default_cost"]
        ratio = "-" if default is None else f"{default:.3f}"
        rows.append((e.case.partition(":")[0], str(e.family), len(e.choices), len(e.refused), tiles, ratio))
    print(text_table(head, rows))
