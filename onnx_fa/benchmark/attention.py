"""Single sites, one by one: stock IREE with its best flags, onnx_fa, onnxruntime and torch, in one run, interleaved. `onnx-fa
bench --case NAME`, `--heads ...` (sweep.py) and

    python -m onnx_fa.benchmark.attention --out PREFIX [--quick] [--case NAME ...] [--threads N] [--rounds N] [--fresh]
    python -m onnx_fa.benchmark.attention --out PREFIX --drawn SEED:COUNT [--modules DIR [--build-only]]

Every case of the tables (`spec/site_case.py`) becomes a plain ONNX model (`forms/plain_site.py`), which stock IREE, onnx_fa and
onnxruntime take, and PyTorch calls (`torch_sdpa.py`, `torch_linear.py`). Numbers are compared with the float64 reference before
anything is timed. A finished case is kept in PREFIX.partial until the files are written, so that the same command goes on after an
interruption.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from onnx_fa.benchmark.case_bench import TABLE, TINY, TRIED, CaseBench, base_memory
from onnx_fa.benchmark.case_result import OF_DRAWN, QUICK, CaseResult, Plan, expected_seconds
from onnx_fa.benchmark.histogram import of_drawn, write_histogram
from onnx_fa.benchmark.kept_modules import KeptModules
from onnx_fa.benchmark.models import (
    ORT,
    STOCK,
    TORCH,
    write_files,
)
from onnx_fa.benchmark.ort_ops import ORT_OPS
from onnx_fa.benchmark.plot import OURS, plot
from onnx_fa.benchmark.worker_process import package_environment
from onnx_fa.benchmark.worker_session import Sessions
from onnx_fa.errors import OnnxFaError
from onnx_fa.files import check_writable, scratch_folder, write_whole
from onnx_fa.machine import machine_facts
from onnx_fa.spec import cases
from onnx_fa.spec.drawn_cases import draw_cases
from onnx_fa.spec.site_case import SiteCase, find_case
from onnx_fa.spec.target import Target, parse_target
from onnx_fa.tables import markdown_table, text_table

OF_DRAWN_CASES = (OURS, ORT, *ORT_OPS, TORCH)
"""Who is timed on drawn cases."""
METHOD = (
    "interleaved rounds, medians; IREE by iree-benchmark-module, what is short on local-sync, others in a child process; all "
    "checked against float64 first; memory is what a call needs beyond inputs and outputs"
)


def build_modules(
    wanted: Sequence[SiteCase],
    target: Target,
    plan: Plan,
    modules: KeptModules,
    who: Sequence[str] = TABLE,
    note: Callable[[str], None] = lambda message: None,
    variants: Mapping[str, Target] | None = None,
) -> list[str]:
    """Compiles all that `bench_attention` would time of the cases, and runs none of it. Returns what could not be compiled."""
    problems = []
    for case, named in ((TINY, (OURS,)), *((case, who) for case in wanted)):
        with scratch_folder() as folder:
            bench = CaseBench(case, target, plan, folder, 0, note, named, modules, variants=variants)
            problems += bench.build()
    return problems


def bench_attention(
    wanted: Sequence[SiteCase],
    prefix: Path,
    target: Target | str = "cpu-host",
    plan: Plan | None = None,
    *,
    fresh: bool = False,
    who: Sequence[str] = TABLE,
    note: Callable[[str], None] = lambda message: None,
    modules: KeptModules | None = None,
    variants: Mapping[str, Target] | None = None,
) -> list[CaseResult]:
    """All cases with the contestants `who` (of which `variants` are this project for other targets), those that an interrupted run
    with the same plan, machine and versions has finished read from PREFIX.partial.

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
    # On a CPU every batch of calls has a process of its own, whose peak memory is told, unless the plan says otherwise.
    kept = target.is_gpu or plan.keep_processes
    with Sessions(package_environment(), plan.timeout_s) if kept else nullcontext() as session:
        for case in wanted:
            if case.name in results:
                continue
            with scratch_folder() as folder:
                done = CaseBench(case, target, plan, folder, base_bytes, note, who, modules, session, variants).run()
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
    order = (OURS, STOCK, ORT, r.torch)
    ours = r.median(OURS)

    def ratio(other: float | None) -> float | None:
        return ours / other if ours is not None and other else None

    extra = [by[w].extra_bytes if w in by else None for w in order]
    remarks = [f"{w}: {by[w].problem}" for w in order if w in by and by[w].problem]
    remarks += [by[w].flags for w in (OURS, r.torch) if w in by and not by[w].problem and by[w].flags]
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
    if any("drawn" in r.name for r in results):
        samples = [(r.title, c) for r in results for c in r.contestants]
        data = {"machine": facts, "cases": [r.to_dict() for r in results]}
        text = of_drawn({r.title: _medians(r) for r in results}, problems_of(results))
        return write_files(prefix, facts, samples, data, text, write_histogram if with_plot else None)
    table = markdown_table(TABLE_HEAD, [table_row(r) for r in results])
    ratios = [o / b for r in results if (o := r.median(OURS)) is not None and (b := r.best_other)]
    summary = f"\n\nMedian ratio to the best of onnxruntime and torch: {median(ratios):.2f}." if ratios else ""
    return write_case_files(results, prefix, facts, table + summary, plot if with_plot else None)


def _medians(result: CaseResult) -> dict[str, float]:
    return {c.what: c.median_ms for c in result.contestants if not c.problem and c.median_ms is not None}


def problems_of(results: Sequence[CaseResult]) -> list[str]:
    """What was wrong, or did not run though it is for the case."""
    found = [
        (r, c) for r in results for c in r.contestants if c.problem and not (c.what in ORT_OPS and ": " in c.problem)
    ]
    return [f"{r.title}: {c.what}: {c.problem}" for r, c in found]


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
        "--case", action="append", default=[], metavar="NAME", help="one of `onnx-fa cases`; repeatable"
    )
    parser.add_argument("--quick", action="store_true", help="a few small cases, few calls (to another PREFIX)")
    parser.add_argument("--all-quick", action="store_true", help="all cases, few calls")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--target", default="cpu-host")
    parser.add_argument("--fresh", action="store_true", help="do not go on with an interrupted run")
    parser.add_argument("--no-plot", action="store_true")
    parser.add_argument(
        "--drawn", default="", metavar="SEED:COUNT", help="attentions drawn at random, and onnxruntime's own ops beside"
    )
    parser.add_argument("--modules", type=Path, metavar="DIR", help="where compiled modules are kept")
    parser.add_argument("--build-only", action="store_true", help="compile to --modules, time nothing")
    args = parser.parse_args(argv)
    if args.threads < 1 or args.rounds < 0:
        parser.error("--threads and --rounds must be at least 1")
    if args.build_only and not args.modules:
        parser.error("--build-only needs --modules")
    if args.drawn and not re.fullmatch(r"\d+:[1-9]\d*", args.drawn):
        parser.error("--drawn takes SEED:COUNT, as 0:100")
    quick = args.quick or args.all_quick
    usual = OF_DRAWN if args.drawn else Plan()
    plan = dataclasses.replace(QUICK if quick else usual, threads=args.threads)
    if args.rounds:
        plan = dataclasses.replace(plan, rounds=args.rounds, slow_rounds=min(args.rounds, plan.slow_rounds))
    prefix = Path(f"{args.out}-quick" if quick else args.out)
    tag = "quick" if args.quick else "table"
    try:
        wanted: list[SiteCase] = [find_case(n) for n in args.case] or [
            c for c in cases.CASES if {tag, "table"} <= c.tags
        ]
        if args.drawn:
            wanted = list(draw_cases("cpu", *map(int, args.drawn.split(":"))))
        who = OF_DRAWN_CASES if args.drawn else TABLE
        modules = KeptModules(args.modules) if args.modules else None
        if modules is not None and args.build_only:
            problems = build_modules(wanted, parse_target(args.target), plan, modules, who, _say)
            print("\n".join([*problems, f"{args.modules}: modules of {len(wanted)} cases"]))
            return 1 if problems else 0
        results = bench_attention(
            wanted, prefix, args.target, plan, fresh=args.fresh, who=who, note=_say, modules=modules
        )
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
