"""`onnx-fa bench --ablate`: every optimisation of the kernels off by itself."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
from functools import partial
from pathlib import Path

from onnx_fa.cli.printing import note
from onnx_fa.cli.targets import read_target
from onnx_fa.errors import OnnxFaError
from onnx_fa.printable import printable
from onnx_fa.tables import text_table


def bench_ablation(args: argparse.Namespace) -> int:
    """Exit code 1 where onnx_fa, with or without an optimisation, was wrong or did not run."""
    from onnx_fa.benchmark.ablation import HEAD, failed, plan_ablation, rows, write
    from onnx_fa.benchmark.case_result import Plan
    from onnx_fa.benchmark.kept_modules import KeptModules

    if args.build_only and not args.modules:
        raise OnnxFaError("--build-only needs --modules")
    args.target = args.target or "cpu-host"
    target = read_target(args, runs=not args.build_only)
    wanted = plan_ablation(target, args.case, args.switch, forms=not args.no_forms)
    prefix = Path(args.output or f"ablation-{args.target}.bench")
    plan, say = Plan(threads=args.threads), partial(note, args)
    if args.rounds:
        plan = dataclasses.replace(plan, rounds=args.rounds, slow_rounds=min(args.rounds, plan.slow_rounds))
    modules = KeptModules(Path(args.modules)) if args.modules else None
    if args.build_only and modules:
        lacking = wanted.build(plan, modules, say)
        for problem in lacking:
            print(printable(f"not compiled: {problem}"))
        return 1 if lacking else 0
    results = wanted.run(prefix, plan, fresh=args.fresh, note=say, modules=modules)
    written = write(results, prefix, plan, with_plot=not args.no_plot)
    shutil.rmtree(f"{prefix}.partial")
    print(text_table(HEAD, rows(results)))
    note(args, "wrote " + ", ".join(map(str, written)))
    return 1 if failed(results) else 0
