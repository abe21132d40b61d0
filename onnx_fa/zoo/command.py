"""`onnx-fa zoo list|export|run|merge|compare`."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from onnx_fa.errors import OnnxFaError
from onnx_fa.printable import printable
from onnx_fa.spec.target import TARGET_NAMES, parse_target

OUTPUT = "zoo-results"
BASELINE = "zoo-baseline.json"


def add(parser: argparse.ArgumentParser, common: argparse.ArgumentParser) -> None:
    """Adds the five commands under `parser`."""
    kind: Any = type(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=kind)

    def command(name: str, run: Callable[[argparse.Namespace], int | None], help_: str) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = commands.add_parser(name, help=help_, description=help_, parents=[common])
        sub.set_defaults(command=run)
        sub.add_argument(
            "--zoo",
            metavar="FILE",
            help="a zoo (.toml), a list of models (.txt) or a config of iree-test-suites (.json) (default: the package's own zoo)",
        )
        return sub

    def choice(sub: argparse.ArgumentParser) -> None:
        sub.add_argument(
            "--models",
            type=Path,
            metavar="DIR",
            help="the folder of the models or tests, where a list or a config has names",
        )
        sub.add_argument(
            "--filter", action="append", default=[], metavar="NAME", help="entries with NAME in theirs, or a pattern"
        )
        sub.add_argument("--subset", action="store_true", help="the quick subset")
        sub.add_argument("--shard", type=_shard, metavar="I/N", help="the I-th of N parts of these, for a CI matrix")
        sub.add_argument(
            "--target",
            default="cpu-host",
            metavar="NAME",
            help=f"one of {', '.join(TARGET_NAMES)} (default: %(default)s)",
        )

    sub = command("list", list_, "show the models and what is expected of each")
    choice(sub)

    sub = command("export", export, "write the models as ONNX")
    choice(sub)
    _add_work(sub)

    sub = command(
        "run", run, "export, explain, rewrite, compile on both roads, inspect, check, verify and time every model"
    )
    choice(sub)
    _add_work(sub)
    sub.add_argument(
        "--scheduler",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="the steps go to the workers of this Dask scheduler; without ADDRESS, to --jobs workers on this machine",
    )
    sub.add_argument(
        "--store",
        metavar="URL",
        help="with --scheduler: a folder, or a URL of fsspec, that all workers reach (default: store in the results)",
    )
    sub.add_argument("--steps", metavar="A,B", help="only these steps, and what they need; check follows compile")
    sub.add_argument("--rounds", type=_positive, default=5, metavar="N", help="timed rounds (default: %(default)s)")
    sub.add_argument("--threads", type=_positive, default=2, metavar="N", help="threads (default: %(default)s)")
    baseline(sub)
    sub.add_argument("--update-baseline", action="store_true", help="write the results to the baseline")

    sub = command("merge", merge, "the results of all shards of a run as one")
    sub.add_argument("merged", type=Path, metavar="OUT", help="the folder of the merged results")
    sub.add_argument(
        "shards", type=Path, nargs="+", metavar="IN", help="a folder with the results of a shard (zoo run -o IN)"
    )
    baseline(sub, "that of --zoo, where it is given")
    sub.add_argument("--update-baseline", action="store_true", help="write the results to the baseline")

    sub = command("compare", compare, "compare results with a baseline; exit code 1 when something got worse")
    sub.add_argument("results", nargs="?", default=f"{OUTPUT}/results.jsonl", help="of zoo run (default: %(default)s)")
    baseline(sub)


def _add_work(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "-o", "--output", default=OUTPUT, metavar="DIR", help=f"results and work files (default: {OUTPUT})"
    )
    sub.add_argument(
        "--jobs",
        type=_positive,
        default=1,
        metavar="N",
        help="entries at a time, timing is never parallel (default: %(default)s)",
    )
    sub.add_argument(
        "--stretch",
        type=float,
        default=1.0,
        metavar="F",
        help="multiply all time limits by F (default: %(default)s)",
    )


def baseline(
    sub: argparse.ArgumentParser,
    default: str = f"beside the zoo {BASELINE}, beside a list LIST-baseline.json, if there is one",
) -> None:
    from onnx_fa.zoo.compare import BAND

    sub.add_argument("--baseline", metavar="FILE", help=f"default: {default}")
    sub.add_argument(
        "--band", type=float, default=BAND, metavar="SHARE", help="noise band of time ratios (default: %(default)s)"
    )


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _shard(text: str) -> Any:
    from onnx_fa.zoo.shards import parse_shard

    try:
        return parse_shard(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(str(e)) from e


def _entries(args: argparse.Namespace) -> list[Any]:
    from onnx_fa.zoo.collections import read
    from onnx_fa.zoo.entries import chosen

    parse_target(args.target)
    return chosen(read(_zoo(args), args.models), args.filter, args.target, args.subset)


def _zoo(args: argparse.Namespace) -> Path:
    from onnx_fa.zoo.entries import default_file

    return Path(args.zoo) if args.zoo else default_file()


def list_(args: argparse.Namespace) -> None:
    from onnx_fa.tables import text_table
    from onnx_fa.zoo.shards import part

    rows = []
    for e in part(_entries(args), args.shard):
        how = (
            " ".join([f"{e.exporter}{e.opset}", e.attn, e.quantize]).strip() if e.source not in ("path", "url") else "-"
        )
        rows.append((e.name, f"{e.source} {e.of}", how, e.expected, "yes" if e.subset else ""))
    print(text_table(("entry", "source", "export", "expected", "subset"), rows))
    print(f"{len(rows)} entries")


def export(args: argparse.Namespace) -> int:
    results = _run(args, ("export",))
    for r in results:
        said = r["steps"]["export"]
        print(printable(f"{r['name']}: {r['export']['model'] if said['ok'] else said['message']}"))
    steps = [r["steps"]["export"] for r in results]
    return 0 if all(said["ok"] or said["skipped"] for said in steps) else 1


def run(args: argparse.Namespace) -> int:
    from onnx_fa.zoo import compare as comparing
    from onnx_fa.zoo.stages import ALL_STEPS

    steps = tuple(filter(None, (args.steps or ",".join(ALL_STEPS)).split(",")))
    if unknown := set(steps) - set(ALL_STEPS):
        raise OnnxFaError(f"no step {sorted(unknown)[0]!r}: use some of {', '.join(ALL_STEPS)}")
    file = _baseline(args)
    was = comparing.read_baseline(file) if file.exists() and not args.update_baseline else None
    results = _run(args, steps)
    folder = Path(args.output)
    machine = json.loads((folder / "run.json").read_text())["machine"]
    return _finish(args, folder, results, machine, file, was)


def merge(args: argparse.Namespace) -> int:
    from onnx_fa.zoo import compare as comparing
    from onnx_fa.zoo.merge import merge as merge_shards

    # The shards do not say where their zoo is, so that there is no baseline where nobody names one.
    named = args.baseline or args.zoo
    if args.update_baseline and not named:
        raise OnnxFaError("--update-baseline: say which, with --baseline or --zoo")
    file = _baseline(args) if named else None
    was = comparing.read_baseline(file) if file and file.exists() and not args.update_baseline else None
    results, machine = merge_shards(args.merged, args.shards)
    return _finish(args, args.merged, results, machine, file, was)


def _finish(
    args: argparse.Namespace, folder: Path, results: list[Any], machine: Any, file: Path | None, was: Any
) -> int:
    """Writes and prints what a run found, against the baseline `was`, or as the new one in `file`. Returns the exit code."""
    from onnx_fa.tables import text_table
    from onnx_fa.zoo import compare as comparing
    from onnx_fa.zoo.report import HEAD, table, write_reports

    comparison = comparing.compare(results, was, args.band) if was is not None else None
    written = write_reports(folder, results, machine, comparison)
    print(text_table(HEAD, table(results)))
    for r in results:
        for p in r["problems"]:
            print(printable(f"{r['name']}: {p}"))
    if args.update_baseline and file is not None:
        comparing.write_baseline(file, results, machine)
        written.append(file)
    if comparison is not None:
        _print(comparison)
    if args.verbose >= 0:
        print("wrote " + ", ".join(map(str, [folder / "results.jsonl", *written])), file=sys.stderr)
    return 0 if all(r["ok"] for r in results) and (comparison is None or comparison.ok) else 1


def compare(args: argparse.Namespace) -> int:
    from onnx_fa.zoo import compare as comparing
    from onnx_fa.zoo.run import read_results

    file = _baseline(args)
    done = comparing.compare(read_results(Path(args.results)), comparing.read_baseline(file), args.band)
    _print(done)
    if done.missing and args.verbose >= 0:
        print(f"without a result: {', '.join(done.missing)}", file=sys.stderr)
    return 0 if done.ok else 1


def _baseline(args: argparse.Namespace) -> Path:
    if args.band < 0:
        raise OnnxFaError("--band must not be negative")
    if args.baseline and not Path(args.baseline).exists() and not getattr(args, "update_baseline", False):
        raise OnnxFaError(f"{args.baseline}: no such file")
    if args.baseline:
        return Path(args.baseline)
    zoo = _zoo(args)
    # Several lists may lie in one folder.
    return zoo.parent / (BASELINE if zoo.suffix == ".toml" else f"{zoo.stem}-baseline.json")


def _print(comparison: Any) -> None:
    for w in comparison.worse:
        print(printable(f"worse: {w}"))
    for b in comparison.better:
        print(printable(f"better: {b}"))
    if comparison.ok:
        print("nothing got worse")


def _run(args: argparse.Namespace, steps: tuple[str, ...]) -> list[Any]:
    """Runs with a progress bar and an ETA on a terminal; elsewhere with a line per entry, and one when it is timed."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from onnx_fa.zoo.run import run as run_all
    from onnx_fa.zoo.settings import Settings
    from onnx_fa.zoo.shards import part

    if not args.stretch > 0:
        raise OnnxFaError("--stretch must be above 0")
    times = {n: getattr(args, n) for n in ("rounds", "threads") if hasattr(args, n)}
    settings = Settings(steps=steps, jobs=args.jobs, factor=args.stretch, **times)
    whole = _entries(args)
    entries = part(whole, args.shard)
    console = Console(stderr=True)
    shown = console.is_terminal and args.verbose >= 0
    columns = (MofNCompleteColumn(), BarColumn(24), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    description = TextColumn("{task.description}", markup=False)
    with Progress(
        *columns, description, console=console, transient=True, disable=not shown, speed_estimate_period=600
    ) as bar:
        task = bar.add_task("", total=sum(len(settings.wanted_of(e)) for e in entries))
        left = {e.name: len([s for s in settings.wanted_of(e) if s != "bench"]) for e in entries}
        timed = 0

        def advance(entry: str, step: str, taken: bool) -> None:
            nonlocal timed
            bar.update(task, advance=1, description=f"{entry}: {step}")
            count, what = 0, ""
            if step == "bench":
                timed += 1
                count, what = timed, " timed"
            else:
                left[entry] -= 1
                if not left[entry]:
                    count = sum(n == 0 for n in left.values())
            if count and not shown and args.verbose >= 0:
                print(f"{count} of {len(entries)}{what}: {entry}", file=sys.stderr, flush=True)

        with _elsewhere(args, settings, entries) as elsewhere:
            return run_all(whole, args.target, Path(args.output), settings, advance, args.shard, elsewhere)


@contextlib.contextmanager
def _elsewhere(args: argparse.Namespace, settings: Any, entries: list[Any]) -> Iterator[Any]:
    """The cluster of `--scheduler`; None without."""
    if getattr(args, "scheduler", None) is None:
        if getattr(args, "store", None):
            raise OnnxFaError("--store: is for --scheduler")
        yield None
        return
    if args.scheduler and args.jobs != 1:
        raise OnnxFaError(
            "--jobs: the workers of a scheduler say how much they take; it is for --scheduler without ADDRESS"
        )
    from onnx_fa.zoo.cluster import cluster

    def say(line: str) -> None:
        print(printable(f"onnx-fa: {line}"), file=sys.stderr, flush=True)

    place = args.store or Path(args.output) / "store"
    steps = sorted({s for e in entries for s in settings.wanted_of(e)})
    with cluster(args.scheduler, args.jobs, place, args.target, steps, say) as found:
        yield found
