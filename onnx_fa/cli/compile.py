"""`onnx-fa compile`: a model as an IREE module."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_fa.cli.iree_lines import note_lines
from onnx_fa.cli.outputs import check_outputs, write_json
from onnx_fa.cli.phases import Phases
from onnx_fa.cli.printing import check_strict, note, note_left_alone, origin_words, print_lossy, tile_words
from onnx_fa.cli.targets import read_target
from onnx_fa.errors import OnnxFaError
from onnx_fa.spec.target import spread

if TYPE_CHECKING:
    from onnx_fa.iree.compile import CompileReport


def run_compile(args: argparse.Namespace) -> None:
    from onnx_fa.graph.fixed_inputs import fix_inputs
    from onnx_fa.graph.free_dims import fix_dims
    from onnx_fa.iree.compile import compile_model
    from onnx_fa.iree.kernel_report import summary

    target = read_target(args, runs=args.check)
    if args.split and args.devices == 1:
        raise OnnxFaError("--split says how sites are cut for several devices: give --devices N too")
    spread(target, args.devices)  # before anything is read: whether the target has several
    check_outputs(args, files=[args.output], texts=[args.report])
    keep = Path(args.keep_intermediates) if args.keep_intermediates else None
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
    phases = Phases(args)
    done = compile_model(
        args.model,
        Path(args.output),
        target,
        keep_intermediates=keep,
        flags=tuple(args.iree_flag),
        dims=dict(args.dim),
        values=dict(args.set),
        timeout_s=args.timeout,
        parameters=args.parameters,
        devices=args.devices,
        split=args.split or "keys",
        progress=phases.begin,
    )
    phases.end()
    if args.report:
        write_json(args.report, done.to_dict())
    _note_details(args, done)
    fused = sum(s.fused is True for s in done.sites)
    found = len(done.sites) + len(done.misses)
    note(
        args,
        f"{args.output}: {found} found, {len(done.sites)} with a kernel, {fused} of them one fused dispatch, "
        f"{len(done.misses)} left alone",
    )
    if args.devices > 1:
        _note_places(args, done)
    note(args, f"{args.output}: {summary(done.linear)}")
    if done.norms:
        note(args, f"{args.output}: {summary(done.norms, 'norm')}")
    if done.linear_attention:
        note(args, f"{args.output}: {summary(done.linear_attention, 'linear attention')}")
    if done.archive is not None:
        size = done.archive.stat().st_size / 1e6
        note(args, f"{done.archive}: the weights, {size:.0f} MB; the module does not run without them")
    if done.note:
        note(args, f"compiled {done.note}")
    note_left_alone(args, done.misses)
    print_lossy(args, target, done.sites)
    model = fix_dims(fix_inputs(args.model, dict(args.set)), dict(args.dim))
    note_lines(args, Path(args.output), model, spread(target, args.devices))
    if args.check:
        from onnx_fa.verifier.once import check_once

        how = check_once(model, Path(args.output), spread(target, args.devices), [site.lossy for site in done.sites])
        note(args, f"{args.output}: one run on random inputs equals onnxruntime's{how}")
    check_strict(args, done.misses)


def _note_places(args: argparse.Namespace, done: CompileReport) -> None:
    """On which device each part of a site is, as far as the compiled program says it."""
    for site in done.sites:
        where = f"on {site.device}" if site.device else "NOT on the device that it was placed on"
        note(args, f"{site.name}: {where}{'; ' * bool(site.beside)}{site.beside}")


def _note_details(args: argparse.Namespace, done: CompileReport) -> None:
    """With -v the flags, each site's tiles and the kinds of linear sites, with -vv also the program's dispatches."""
    from onnx_fa.iree.kernel_report import grouped
    from onnx_fa.spec.linear_words import follows, weight_words
    from onnx_fa.spec.norm_words import norm_kind

    if args.verbose > 0:
        note(args, f"command: {shlex.join(done.command)}")
        for site in done.sites:
            note(args, f"{site.name}: {tile_words(site)}; {site.tuning}")
        for group in grouped(done.linear):
            then = "".join(f", then {', '.join(words)}" for words in [follows(group.spec)] if words)
            made = f"{group.maker}{origin_words(group.origin)}"
            note(args, f"{len(group.names)} of {group.size}, weight {weight_words(group.spec)}{then}: {made}")
        for norm in grouped(done.norms):
            note(
                args,
                f"{len(norm.names)} of {norm.size}, {norm_kind(norm.spec)}: {norm.maker}{origin_words(norm.origin)}",
            )
    if args.verbose > 1:
        for dispatch in done.inspection.dispatches:
            note(args, f"dispatch {dispatch.export}: {', '.join(dispatch.results)}")
        for name, stack in done.inspection.stacks.items():
            note(args, f"executable {name}: {'?' if stack is None else stack} bytes of stack per workgroup")
