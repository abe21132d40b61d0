"""`onnx-fa derive`: how the loop over keys of every attention follows from the model's own arithmetic."""

from __future__ import annotations

import argparse
from pathlib import Path

from onnx_fa.cli.outputs import check_outputs, print_result, write_json
from onnx_fa.cli.targets import read_target
from onnx_fa.errors import OnnxFaError
from onnx_fa.files import write_whole
from onnx_fa.printable import printable


def run_derive(args: argparse.Namespace) -> None:
    from onnx_fa.explainer.derivation import derivation_page, lines_of, tell
    from onnx_fa.forms.rewrite import explain

    check_outputs(args, texts=[args.report], files=[args.html])
    sites = explain(args.model).sites
    chosen = [s for s in sites if not args.site or s.name == args.site]
    if args.site and args.site.isdigit() and not chosen:
        chosen = list(sites[int(args.site) : int(args.site) + 1])
    if args.site and not chosen:
        names = ", ".join(s.name for s in sites) or "none"
        raise OnnxFaError(f"no site {args.site!r}: the model's are {names}")
    target = read_target(args, runs=False)
    told = [tell(s.name, s.spec, target) for s in chosen]
    if args.html:
        write_whole(args.html, derivation_page(Path(args.model).name, told))
    if args.report:
        write_json(args.report, {"sites": [t.to_dict() for t in told]})
    for t in told:
        print_result(args, "\n".join(map(printable, lines_of(t))))
    print_result(args, f"{len(told)} attention site{'s' * (len(told) != 1)} derived")
