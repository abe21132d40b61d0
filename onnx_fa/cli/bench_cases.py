"""`onnx-fa bench --case`: sites of the tables alone, timed against others."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
from functools import partial
from pathlib import Path

from onnx_fa.cli.outputs import check_plot
from onnx_fa.cli.printing import note
from onnx_fa.cli.targets import read_target
from onnx_fa.errors import OnnxFaError
from onnx_fa.printable import printable
from onnx_fa.tables import text_table


def bench_cases(args: argparse.Namespace) -> int:
    """Exit code 1 where onnx_fa was wrong or did not run."""
    from onnx_fa.benchmark.attention import TABLE_HEAD, bench_attention, build_modules, table_row, write_results
    from onnx_fa.benchmark.case_result import Plan
    from onnx_fa.benchmark.kept_modules import KeptModules
    from onnx_fa.benchmark.plot import OURS
    from onnx_fa.spec.site_case import find_case

    if args.build_only and not (args.modules and args.target):
        raise OnnxFaError("--build-only needs --modules and --target")
    args.target = args.target or "cpu-host"
    target = read_target(args, runs=not args.build_only)
    wanted = [find_case(name) for name in dict.fromkeys(args.case)]
    plan = Plan(threads=args.threads)
    if args.rounds:
        plan = dataclasses.replace(plan, rounds=args.rounds, slow_rounds=min(args.rounds, plan.slow_rounds))
    say, modules = partial(note, args), KeptModules(Path(args.modules)) if args.modules else None
    if args.build_only and modules:
        lacking = build_modules(wanted, target, plan, modules, note=say)
        for problem in lacking:
            print(printable(f"not compiled: {problem}"))
        return 1 if lacking else 0
    check_plot(args)
    prefix = Path(args.output or "cases.bench")
    results = bench_attention(wanted, prefix, target, plan, fresh=args.fresh, note=say, modules=modules)
    written = write_results(results, prefix, plan, with_plot=not args.no_plot)
    shutil.rmtree(f"{prefix}.partial")
    print(text_table(TABLE_HEAD, [table_row(r) for r in results]))
    note(args, "wrote " + ", ".join(map(str, written)))
    return 1 if any(c.what == OURS and c.problem for r in results for c in r.contestants) else 0
