"""`onnx-fa bench`: a model, or sites alone, timed against others."""

from __future__ import annotations

import argparse
import dataclasses
from functools import partial
from pathlib import Path

from onnx_fa.cli.outputs import check_plot, results_prefix
from onnx_fa.cli.printing import note
from onnx_fa.cli.targets import read_target, require_device
from onnx_fa.errors import OnnxFaError
from onnx_fa.printable import printable
from onnx_fa.tables import text_table


def run_bench(args: argparse.Namespace) -> int:
    """Exit code 1 where onnx_fa was wrong or did not run."""
    from onnx_fa.benchmark.models import bench as measure
    from onnx_fa.benchmark.plot import OURS

    if (args.rounds is not None and args.rounds < 1) or args.threads < 1 or args.batch < 1:
        raise OnnxFaError("--rounds, --threads and --batch must be at least 1")
    sizes = (args.heads, args.head_dim, args.seq)
    if args.profile:
        from onnx_fa.cli.bench_profile import bench_profile

        return bench_profile(args)
    if args.ablate:
        if args.model is not None or any(sizes):
            raise OnnxFaError("--ablate has cases of its own: give no model, and no sizes")
        if not args.build_only:
            check_plot(args)
        from onnx_fa.cli.bench_ablate import bench_ablation

        return bench_ablation(args)
    if args.switch or args.no_forms:
        raise OnnxFaError("--switch and --no-forms are for --ablate")
    if args.case:
        if args.model is not None or any(sizes):
            raise OnnxFaError("--case names sites of their own: give no model, and no sizes")
        from onnx_fa.cli.bench_cases import bench_cases

        return bench_cases(args)
    if (args.model is None) != all(sizes) or (args.model is not None and any(sizes)):
        raise OnnxFaError("give a model, or --heads, --head-dim and --seq, or --case")
    if args.model is None:
        return _bench_sweep(args)
    if args.prompt or args.generate:
        from onnx_fa.cli.bench_generate import bench_generation

        return bench_generation(args)
    if args.modules or args.build_only:
        raise OnnxFaError("--modules and --build-only are for --case, and for --heads, --head-dim and --seq")
    args.target = args.target or "cpu-host"
    target = read_target(args, runs=True)
    check_plot(args)
    prefix = results_prefix(args, "bench")
    result = measure(
        args.model,
        target,
        rounds=args.rounds or 7,
        threads=args.threads,
        dims=dict(args.dim),
        progress=lambda m: note(args, m),
    )
    written = result.write(prefix, plot=not args.no_plot)
    print(result.table())
    note(args, "wrote " + ", ".join(map(str, written)))
    return 1 if any(c.what == OURS and c.problem for c in result.contestants) else 0


def _bench_sweep(args: argparse.Namespace) -> int:
    """Exit code 1 where onnx_fa was wrong or did not run."""
    import shutil

    from onnx_fa.benchmark import sweep as attention_sweep
    from onnx_fa.benchmark.attention import build_modules
    from onnx_fa.benchmark.case_result import Plan
    from onnx_fa.benchmark.kept_modules import KeptModules
    from onnx_fa.benchmark.plot import OURS

    if args.build_only and not (args.modules and args.target):
        raise OnnxFaError("--build-only needs --modules and --target")
    names = [args.target] if args.target else ["cpu-host"]
    if not args.target:
        try:
            require_device("cuda")
            names.append("cuda")
        except OnnxFaError as e:
            note(args, f"not on CUDA: {e}")
    wanted = []
    for name in names:
        args.target = name
        target = read_target(args, runs=not args.build_only)
        dtype = args.dtype or ("f16" if target.is_gpu else "f32")
        options = {"batch": args.batch, "causal": args.causal, "dtype": dtype, "target": name}
        wanted.append((target, attention_sweep.sweep_cases(args.heads, args.head_dim, args.seq, **options)))
    prefix = Path(args.output or "attention.bench")
    plan = Plan(threads=args.threads)
    if args.rounds:
        plan = dataclasses.replace(plan, rounds=args.rounds, slow_rounds=min(args.rounds, plan.slow_rounds))
    if not args.build_only:
        check_plot(args)
    modules = KeptModules(Path(args.modules)) if args.modules else None
    say = partial(note, args)
    if args.build_only and modules:
        ((target, of),) = wanted
        lacking = build_modules(of, target, plan, modules, attention_sweep.WHO, say)
        for problem in lacking:
            print(printable(f"not compiled: {problem}"))
        return 1 if lacking else 0
    results = attention_sweep.sweep(wanted, prefix, plan, fresh=args.fresh, note=say, modules=modules)
    written = attention_sweep.write(results, prefix, plan, with_plot=not args.no_plot)
    shutil.rmtree(f"{prefix}.partial")
    print(text_table(attention_sweep.HEAD, attention_sweep.rows(results)))
    for problem in attention_sweep.problems(results):
        print(printable(f"not timed: {problem}"))
    note(args, "wrote " + ", ".join(map(str, written)))
    return 1 if any(c.what == OURS and c.problem for r in results for c in r.contestants) else 0
