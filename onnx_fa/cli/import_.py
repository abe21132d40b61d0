"""`onnx-fa import`: a model as MLIR, with kernels in place."""

from __future__ import annotations

import argparse

from onnx_fa.cli.outputs import STDOUT, check_outputs, write_json
from onnx_fa.cli.printing import check_strict, note, note_left_alone, print_lossy
from onnx_fa.cli.targets import read_target
from onnx_fa.files import write_whole


def run_import(args: argparse.Namespace) -> None:
    from onnx_fa.iree.compile import MODEL_FLAGS, import_model
    from onnx_fa.iree.compiler import merge_flags

    target = read_target(args)
    check_outputs(args, texts=[args.output, args.report])
    done = import_model(args.model, target, values=dict(args.set))
    if args.output == STDOUT:
        print(done.text)
    else:
        write_whole(args.output, done.text)
    if args.report:
        write_json(args.report, done.report.to_dict())
    if args.output != STDOUT:
        found = len(done.sites) + len(done.misses)
        note(args, f"{args.output}: {found} found, {len(done.sites)} with a kernel, {len(done.misses)} left alone")
        note_left_alone(args, done.misses)
        print_lossy(args, target, done.sites)
        flags = merge_flags(target.flags, MODEL_FLAGS.get(target.backend, ()), done.flags)
        note(args, f"compile it with: iree-compile {' '.join(flags)} {args.output} -o MODULE.vmfb")
    check_strict(args, done.misses)
