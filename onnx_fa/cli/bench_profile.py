"""`onnx-fa bench MODEL --profile`: where the time of a call goes."""

from __future__ import annotations

import argparse

from onnx_fa.cli.outputs import results_prefix
from onnx_fa.cli.printing import note
from onnx_fa.cli.targets import read_target
from onnx_fa.errors import OnnxFaError
from onnx_fa.spec.target import parse_target


def bench_profile(args: argparse.Namespace) -> int:
    """Compiles the model, profiles calls of it, prints and writes where their time goes. Raises OnnxFaError."""
    from onnx_fa.benchmark.time_parts import measure, write

    others = {
        "--ablate": args.ablate,
        "--heads": args.heads,
        "--head-dim": args.head_dim,
        "--seq": args.seq,
        "--prompt": args.prompt,
        "--generate": args.generate,
        "--modules": args.modules,
        "--build-only": args.build_only,
        "--case": args.case,
        "--switch": args.switch,
        "--no-forms": args.no_forms,
    }
    if given := [name for name, value in others.items() if value]:
        raise OnnxFaError(f"--profile is of a model as a whole, it takes no {given[0]}")
    if args.model is None:
        raise OnnxFaError("--profile needs a model")
    args.target = args.target or "cpu-host"
    if parse_target(args.target).is_gpu:
        raise OnnxFaError(f"--profile is for CPUs: the times of single dispatches are not read on {args.target}")
    target = read_target(args, runs=True)
    prefix = results_prefix(args, "profile")
    done = measure(
        args.model,
        target,
        calls=args.rounds or 20,
        threads=args.threads,
        dims=dict(args.dim),
        progress=lambda m: note(args, m),
    )
    written = write([done], prefix)
    print(done.table())
    print(f"\n{done.longest()}")
    note(args, "wrote " + ", ".join(map(str, written)))
    return 0
