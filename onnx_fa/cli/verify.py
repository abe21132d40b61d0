"""`onnx-fa verify`: original, rewritten and compiled model compared with float64, or sites alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from onnx_fa.cli.outputs import check_outputs, print_result, write_json
from onnx_fa.cli.printing import note
from onnx_fa.cli.targets import read_target
from onnx_fa.errors import OnnxFaError


def run_verify(args: argparse.Namespace) -> int:
    from onnx_fa.verifier.given_inputs import read_arrays
    from onnx_fa.verifier.verifier import verify as check

    if args.seeds < 1:
        raise OnnxFaError("--seeds must be at least 1")
    if (args.model is None) != bool(args.case):
        raise OnnxFaError("give a model, or --case")
    if args.case:
        return _verify_cases(args)
    if args.inputs and args.dim:
        raise OnnxFaError("--dim is for random inputs: those of --inputs have sizes of their own")
    target = read_target(args, runs=True)
    check_outputs(args, texts=[args.report])
    inputs = {path: read_arrays(Path(path)) for path in args.inputs}
    report = check(
        args.model,
        target,
        seeds=args.seeds,
        dims=dict(args.dim),
        values=dict(args.set),
        inputs=inputs,
        flags=tuple(args.iree_flag),
        progress=lambda m: note(args, m),
    )
    if args.report:
        write_json(args.report, report.to_dict())
    print_result(args, report.table())
    report.check()
    return 0


def _verify_cases(args: argparse.Namespace) -> int:
    """All cases, and then the first that disagrees as the error."""
    from onnx_fa.spec.site_case import find_case
    from onnx_fa.verifier.case_checks import verify_case

    if args.dim or args.set or args.inputs:
        raise OnnxFaError("--dim, --set and --inputs are for a model: a case has sizes and operands of its own")
    target = read_target(args, runs=True)
    check_outputs(args, texts=[args.report])
    cases = [find_case(name) for name in dict.fromkeys(args.case)]
    reports = [verify_case(c, target, flags=tuple(args.iree_flag), progress=lambda m: note(args, m)) for c in cases]
    if args.report:
        write_json(args.report, {"cases": [r.to_dict() for r in reports]})
    for report in reports:
        print_result(args, f"{report.model}\n{report.table()}")
    for report in reports:
        report.check()
    return 0
