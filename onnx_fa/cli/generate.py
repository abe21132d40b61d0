"""`onnx-fa generate`: tokens behind a prompt, and how fast they come."""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_fa.cli.outputs import check_outputs, print_result, write_json
from onnx_fa.cli.phases import Phases
from onnx_fa.cli.printing import note
from onnx_fa.cli.targets import read_target
from onnx_fa.errors import OnnxFaError
from onnx_fa.tables import text_table

if TYPE_CHECKING:
    from onnx_fa.generate.budget import Budget
    from onnx_fa.generate.compare import Contestant, Job
    from onnx_fa.generate.modules import Module


def run_generate(args: argparse.Namespace) -> None:
    from onnx_fa.generate.compare import Job

    if args.tokens < 1:
        raise OnnxFaError(f"--tokens {args.tokens}: at least one is generated")
    if not args.prompt_ids:
        raise OnnxFaError("--prompt-ids: no token")
    check_outputs(args, texts=[args.report])
    job = Job(tuple(args.prompt_ids), args.tokens, 1, args.threads)
    made, told, modules, budget = run_job(args, job)
    if args.report:
        write_json(args.report, report_of(made, modules, budget, job))
    print_result(args, " ".join(map(str, made[0].tokens)))
    note(args, told)
    note(args, speeds(made, len(job.prompt)))
    note_details(args, made, modules, budget)


def run_job(args: argparse.Namespace, job: Job) -> tuple[list[Contestant], str, tuple[Module, Module], Budget | None]:
    """Compiles the model that `args` names and lets all generate: what they made, how the tokens compare, the modules, and what a
    token costs on a CPU. Raises RunError where the tokens are others."""
    from onnx_fa.generate.compare import check_tokens, run_contestants
    from onnx_fa.generate.layout import find_files
    from onnx_fa.generate.modules import build_modules
    from onnx_fa.generate.worker import KINDS, OURS
    from onnx_fa.graph import io
    from onnx_fa.graph.accuracy_levels import rounding_error
    from onnx_fa.iree.drivers import is_on_host
    from onnx_fa.verifier.once import model_tolerance

    target = read_target(args, runs=True)
    files = find_files(Path(args.model))
    phases = Phases(args)
    kept = nullcontext(args.modules) if args.modules else tempfile.TemporaryDirectory(prefix="onnx_fa-")
    with kept as folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        modules = build_modules(files, target, Path(folder), timeout_s=args.timeout, progress=phases.begin)
        kinds = (OURS,) if args.no_compare else KINDS
        made = run_contestants(files, Path(args.model), modules, target.device, job, kinds, phases.begin)
        phases.end()
        model = io.load(files.step)
        told = check_tokens(made, model_tolerance(model), rounding_error(model))
        budget = _budget(files.step, modules[1], job) if is_on_host(target.device) else None
    return made, told, modules, budget


def _budget(path: Path, step: Module, job: Job) -> Budget:
    from onnx_fa.generate.budget import measure_budget

    threads = job.threads or len(os.sched_getaffinity(0))
    return measure_budget(path, step, len(job.prompt) + job.count, threads)


def report_of(
    made: list[Contestant], modules: tuple[Module, Module], budget: Budget | None, job: Job
) -> dict[str, Any]:
    """The JSON of --report."""
    return {
        "prompt": list(job.prompt),
        "contestants": [asdict(c) for c in made],
        "caches": [{"name": c.past, "in_place": c.grown} for c in modules[1].caches],
        "copied": dict(modules[1].copied),
        "budget": asdict(budget) if budget else None,
    }


def note_details(
    args: argparse.Namespace, made: list[Contestant], modules: tuple[Module, Module], budget: Budget | None
) -> None:
    """What a token costs, who did not run, and which caches are copied."""
    if budget is not None:
        note(args, budget_words(budget, made[0]))
    for c in made:
        if c.problem:
            note(args, f"{c.kind} did not run: {c.problem}")
    grown = sum(cache.grown for cache in modules[1].caches)
    note(args, f"{grown} of {len(modules[1].caches)} caches are written in place")
    for name, reason in modules[1].copied.items():
        note(args, f"copied at each token: {name}: {reason}")


def speeds(made: list[Contestant], prompt: int) -> str:
    """Tokens a second of the prompt and behind it, and memory, of each contestant."""
    rows = []
    for c in made:
        if c.problem:
            rows.append((c.kind, *["-"] * 4))
            continue
        step = c.step_s
        after = (f"{1 / step:.1f}", f"{step * 1e3:.2f}") if step else ("-", "-")
        rows.append((c.kind, f"{prompt / c.prompt_s:.1f}", *after, f"{c.peak_bytes / 1e6:.0f} MB"))
    return text_table(("", "prompt tokens/s", "tokens/s", "ms a token", "memory"), rows)


def budget_words(budget: Budget, ours: Contestant) -> str:
    """What a token must read, and how near ours come to that."""
    shares = f"{budget.weights / 1e6:.1f} MB of weights and {budget.caches / 1e6:.1f} MB of caches"
    bound = f"{budget.bandwidth / 1e9:.1f} GB/s, {budget.seconds * 1e3:.2f} ms"
    step = ours.step_s
    near = "" if step is None else f"; it takes {step * 1e3:.2f} ms ({budget.seconds / step:.0%} of that speed)"
    return f"a token reads {shares}: at this machine's {bound}{near}"
