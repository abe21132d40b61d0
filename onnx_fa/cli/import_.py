"""`onnx-fa import`: a model as MLIR, with kernels in place."""

from __future__ import annotations

import argparse

from onnx_fa.cli.printing import note, print_lossy, write_json
from onnx_fa.cli.targets import read_target
from onnx_fa.files import check_writable, write_whole


def run_import(args: argparse.Namespace) -> None:
    from onnx_fa.iree.compile import MODEL_FLAGS, import_model, merge_flags

    target = read_target(args)
    for path in filter(lambda p: p and p != "-", (args.output, args.report)):
        check_writable(path)
    done = import_model(args.model, target)
    if args.output == "-":
        print(done.text)
    else:
        write_whole(args.output, done.text)
    if args.report:
        write_json(args.report, done.report.to_dict())
    if args.output != "-":
        note(args, f"{args.output}: {len(done.sites)} sites as kernels, {len(done.report.misses)} left alone")
        print_lossy(args, target, done.sites)
        flags = merge_flags(target.flags, MODEL_FLAGS.get(target.backend, ()), done.flags)
        note(args, f"compile it with: iree-compile {' '.join(flags)} {args.output} -o MODULE.vmfb")
