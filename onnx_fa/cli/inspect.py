"""`onnx-fa inspect`: per site whether it is fused, from the compiler's own output."""

from __future__ import annotations

import argparse
from pathlib import Path

from onnx_fa.cli.outputs import check_outputs, print_result, write_json
from onnx_fa.cli.printing import print_linear, print_linear_attention, print_lossy, print_norms, print_sites
from onnx_fa.cli.targets import read_target
from onnx_fa.errors import ModelError, OnnxFaError
from onnx_fa.files import scratch_folder
from onnx_fa.printable import printable


def run_inspect(args: argparse.Namespace) -> None:
    check_outputs(args, texts=[args.report])
    path, target = Path(args.model), read_target(args)
    if path.suffix == ".vmfb":
        _inspect_vmfb(path, args.report)
        return
    from onnx_fa.iree.compile import compile_model

    # The compiler's own output is read, so it has to run.
    with scratch_folder() as folder:
        done = compile_model(path, folder / "model.vmfb", target, flags=tuple(args.iree_flag))
    if args.report:
        write_json(args.report, done.to_dict())
    print_sites(args, done.sites)
    print_linear(args, done.linear)
    print_norms(args, done.norms)
    print_linear_attention(args, done.linear_attention)
    print_lossy(args, target, done.sites)
    for buffer in done.inspection.buffers:
        print_result(args, printable(f"buffer of Sq x Skv size: {buffer}"))
    for miss in done.misses:
        print_result(args, printable(f"left alone: {miss.node} ({miss.op}): {miss.reason}"))
    print_result(args, f"{len(done.inspection.dispatches)} dispatches in all")


def _inspect_vmfb(path: Path, report: str | None) -> None:
    from onnx_fa.iree.vmfb_facts import inspect_vmfb

    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    if report:
        raise OnnxFaError("--report needs the .onnx: a .vmfb holds no sites, only kernels and dispatches")
    facts = inspect_vmfb(path)
    print(printable(f"attention kernels: {', '.join(facts.kernels()) or 'none'}"))
    print(printable(f"kernels of linear sites: {', '.join(facts.linear()) or 'none'}"))
    print(printable(f"kernels of norms: {', '.join(facts.norms()) or 'none'}"))
    print(printable(f"kernels of linear attentions: {', '.join(facts.linear_attentions()) or 'none'}"))
    print("\n".join(printable(f"dispatch {name}") for name in facts.exports))
