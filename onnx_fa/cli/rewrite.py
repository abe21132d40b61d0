"""`onnx-fa rewrite`: the model with its attention in one canonical form."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_fa.cli.iree_lines import note_lines
from onnx_fa.cli.outputs import check_outputs, write_json
from onnx_fa.cli.printing import check_strict, note, note_left_alone
from onnx_fa.errors import OnnxFaError
from onnx_fa.files import write_whole
from onnx_fa.printable import printable
from onnx_fa.spec.target import Target, parse_target

if TYPE_CHECKING:
    import onnx_ir as ir


def run_rewrite(args: argparse.Namespace) -> None:
    from onnx_fa.forms.rewrite import Split, rewrite_in_place
    from onnx_fa.graph import io

    if args.spec and not args.target:
        raise OnnxFaError("--spec needs --target: kernels are per target")
    if args.spec and args.form != "decomposed":
        raise OnnxFaError("--spec needs --form decomposed: that is the form it recognises")
    if args.split_keys > 1 and args.form != "decomposed":
        raise OnnxFaError("--split-keys needs --form decomposed: partial sites are written in that form")
    if args.split_keys > 1 and args.spec:
        raise OnnxFaError("--split-keys and --spec: the transform spec knows whole sites only; leave one of them out")
    if args.site and args.split_keys == 1:
        raise OnnxFaError("--site says which site's keys to split: give --split-keys too")
    target = parse_target(args.target) if args.target else None
    check_outputs(args, files=[args.output, args.spec], texts=[args.report])
    model = io.load(args.model)
    original = model.clone() if args.int8_qk else None
    split = Split(args.split_keys, tuple(args.site) or None)
    try:
        report, sites = rewrite_in_place(model, args.form, int8_qk=args.int8_qk, split=split)
    except ValueError as e:
        if not args.site:
            raise
        raise OnnxFaError(f"{args.model}: {e}") from e
    text = ""
    if args.spec and target:
        from onnx_fa.iree.stock_road import spec_for_model

        text = spec_for_model(
            model,
            sites,
            target,
            left_out=lambda s, e: print(
                printable(f"not in the spec, compiles unfused: {s.name}: {e}"), file=sys.stderr
            ),
        )
    io.save(model, args.output)
    if args.spec:
        write_whole(args.spec, text)
    if args.report:
        write_json(args.report, report.to_dict())
    in_parts = sum(s.parts > 1 for s in report.sites)
    sites_and_misses = f"{len(report.sites)} in form {args.form}, {len(report.misses)} left alone"
    if args.split_keys > 1:
        sites_and_misses += f", the keys of {in_parts} in {args.split_keys} parts"
    note(args, f"{args.output}: {len(report.sites) + len(report.misses)} found, {sites_and_misses}")
    note_left_alone(args, report.misses)
    if original is not None:
        from onnx_fa.verifier.verifier import rewrite_error

        lossy = sum(bool(s.lossy) for s in report.sites)
        for name, error in rewrite_error(original, model).items():
            print(printable(f"int8 QK in {lossy} sites: output {name} differs by {error:.2e} (2-norm, relative)"))
    if args.spec and target:
        _note_stock_road(args, model, text, target)
    check_strict(args, report.misses)


def _note_stock_road(args: argparse.Namespace, model: ir.Model, text: str, target: Target) -> None:
    """What to call of IREE's tools, and with which flags."""
    from onnx_fa.iree.stock_road import spec_flags

    imported, module = (Path(args.output).with_suffix(suffix) for suffix in (".mlir", ".vmfb"))
    spec = f"--iree-preprocessing-transform-spec-filename={args.spec}"
    for command in (
        ["iree-import-onnx", args.output, "-o", str(imported)],
        ["iree-compile", str(imported), spec, *target.flags, *spec_flags(text), "-o", str(module)],
    ):
        note(args, f"then: {shlex.join(command)}")
    note_lines(args, module, model, target)
