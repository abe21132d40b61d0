"""`onnx-fa verify`: original, rewritten and compiled model compared with each other and with float64."""

from __future__ import annotations

import argparse

from onnx_fa.cli.outputs import check_outputs, print_result, write_json
from onnx_fa.cli.printing import note
from onnx_fa.cli.targets import read_target
from onnx_fa.errors import OnnxFaError


def run_verify(args: argparse.Namespace) -> int:
    from onnx_fa.verifier.verifier import verify as check

    if args.seeds < 1:
        raise OnnxFaError("--seeds must be at least 1")
    target = read_target(args, runs=True)
    check_outputs(args, texts=[args.report])
    report = check(
        args.model,
        target,
        seeds=args.seeds,
        dims=dict(args.dim),
        values=dict(args.set),
        flags=tuple(args.iree_flag),
        progress=lambda m: note(args, m),
    )
    if args.report:
        write_json(args.report, report.to_dict())
    print_result(args, report.table())
    report.check()
    return 0
