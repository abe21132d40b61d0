"""`onnx-fa import`: a model as MLIR, with kernels in place. Its options are those of iree-import-onnx, and some more."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_fa.cli.options import (
    add_kernels,
    add_lossy,
    add_model,
    add_report,
    add_strict,
    add_target,
    add_values,
)
from onnx_fa.cli.outputs import STDOUT, check_outputs, write_json
from onnx_fa.cli.printing import check_strict, note, note_left_alone, print_lossy
from onnx_fa.cli.targets import read_target
from onnx_fa.errors import OnnxFaError
from onnx_fa.files import write_whole
from onnx_fa.iree.archives import SCOPE

if TYPE_CHECKING:
    from onnx_fa.iree.compile import ImportedModule
    from onnx_fa.spec.target import Target


def add_import(sub: argparse.ArgumentParser) -> None:
    add_model(sub)
    sub.add_argument(
        "-o",
        "--output",
        "--output-file",
        default=STDOUT,
        metavar="FILE",
        help="the MLIR file to write (default: standard output)",
    )
    add_report(sub)
    add_target(sub)
    add_kernels(sub)
    add_lossy(sub)
    add_values(sub)
    add_strict(sub)
    _add_stock(sub.add_argument_group("as iree-import-onnx takes them"))
    _add_weights(sub.add_argument_group("weights, as iree-import-onnx takes them"))


def _add_stock(group: argparse._ArgumentGroup) -> None:
    yes_or_no = argparse.BooleanOptionalAction
    group.add_argument("--no-verify", action="store_true", help="do not look at the result before it is written")
    group.add_argument("--data-prop", action=yes_or_no, default=True, help="follow numbers in shape inference")
    group.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="where external data lies (default: the folder of MODEL)"
    )
    group.add_argument(
        "--opset-version", type=int, metavar="N", help="convert MODEL to this opset first, where its own is older"
    )
    group.add_argument(
        "--large-model", action=yes_or_no, default=False, help="without effect: weights are never read as a whole here"
    )


def _add_weights(group: argparse._ArgumentGroup) -> None:
    yes_or_no = argparse.BooleanOptionalAction
    group.add_argument(
        "--externalize-params",
        action=yes_or_no,
        default=False,
        help="large weights as parameters, in a file of their own",
    )
    group.add_argument(
        "--save-params",
        action=yes_or_no,
        default=True,
        help="write that file: <output>_params.irpa, or --save-params-to",
    )
    group.add_argument("--save-params-to", type=Path, metavar="FILE", help="the file of the weights (.irpa)")
    group.add_argument(
        "--params-scope", default=SCOPE, metavar="NAME", help="of the parameters' names (default: %(default)s)"
    )
    group.add_argument(
        "--num-elements-threshold",
        type=int,
        default=100,
        metavar="N",
        help="weights with fewer elements stay constants (default: %(default)s)",
    )
    group.add_argument(
        "--externalize-inputs-threshold",
        type=int,
        metavar="N",
        help="inputs from this one on (from 0) are parameters too",
    )
    group.add_argument(
        "--param-gb-threshold",
        type=float,
        metavar="GB",
        help="without effect: weights go from file to file, one at a time",
    )


def run_import(args: argparse.Namespace) -> None:
    from onnx_fa.graph.io import load, raise_opset
    from onnx_fa.iree.compile import import_model
    from onnx_fa.iree.weights import Externalize, write_archive

    target = read_target(args)
    check_outputs(args, texts=[args.output, args.report])
    archive = _archive(args)
    if archive is not None:
        check_outputs(args, files=[str(archive)])
    model = load(args.model, args.data_dir)
    if args.opset_version:
        model = raise_opset(model, args.opset_version)
    externalize = None
    if args.externalize_params:
        first = args.externalize_inputs_threshold
        externalize = Externalize(args.params_scope, args.num_elements_threshold, first)
    done = import_model(
        model,
        target,
        values=dict(args.set),
        externalize=externalize,
        verify=not args.no_verify,
        data_prop=args.data_prop,
    )
    if archive is not None:
        write_archive(done.parameters, archive)
    if args.output == STDOUT:
        print(done.text)
    else:
        write_whole(args.output, done.text)
    if args.report:
        write_json(args.report, done.to_dict())
    if args.output != STDOUT:
        _note_result(args, done, target, archive)
    check_strict(args, done.misses)


def _archive(args: argparse.Namespace) -> Path | None:
    """Where the weights go; None where they go nowhere. Raises OnnxFaError where nobody says."""
    if not (args.externalize_params and args.save_params):
        return None
    if args.save_params_to:
        return Path(args.save_params_to)
    if args.output == STDOUT:
        raise OnnxFaError("--externalize-params to standard output needs --save-params-to FILE or --no-save-params")
    return Path(args.output).with_name(f"{Path(args.output).stem}_params.irpa")


def _note_result(args: argparse.Namespace, done: ImportedModule, target: Target, archive: Path | None) -> None:
    from onnx_fa.iree.compile import MODEL_FLAGS
    from onnx_fa.iree.compiler import merge_flags
    from onnx_fa.iree.kernel_report import summary

    found = len(done.sites) + len(done.misses)
    note(args, f"{args.output}: {found} found, {len(done.sites)} with a kernel, {len(done.misses)} left alone")
    note(args, f"{args.output}: {summary(done.linear)}")
    if done.norms:
        note(args, f"{args.output}: {summary(done.norms, 'norm')}")
    note_left_alone(args, done.misses)
    print_lossy(args, target, done.sites)
    flags = merge_flags(target.flags, MODEL_FLAGS.get(target.backend, ()), done.flags)
    note(args, f"compile it with: iree-compile {' '.join(flags)} {args.output} -o MODULE.vmfb")
    if archive is not None:
        what = f"{len(done.parameters)} weights; run the module with --parameters={args.params_scope}={archive}"
        note(args, f"{archive}: {what}")
