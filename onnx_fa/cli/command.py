"""The command line. One function per command; heavy imports are inside, so that --help and errors are quick."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from onnx_fa.cli.crash import crash_message
from onnx_fa.errors import ModelError, OnnxFaError, RunError
from onnx_fa.files import check_writable, scratch_folder, write_whole
from onnx_fa.printable import PrintableFormatter, printable, printable_lines
from onnx_fa.spec.target import KERNELS, TARGET_NAMES, Target, parse_target
from onnx_fa.tables import text_table

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from onnx_fa.forms.report import SiteReport
    from onnx_fa.spec.attention import AttentionSpec

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code: 0, 1 (compiler, run or mismatch), 2 (input or usage), 130
    (interrupted)."""
    args = _parser().parse_args(argv)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)  # so that a compiler at work is ended too
    _log_to_stderr(args.verbose)
    try:
        code: int = args.command(args) or 0
        sys.stdout.flush()
        return code
    except OnnxFaError as e:
        return _fail(str(e), e.exit_code)
    except BrokenPipeError:
        # The reader of a pipe has gone; what is left must not be flushed at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as e:
        return _fail(f"{e.filename or _subject(args) or 'standard output'}: {e.strerror or e}", 2)
    except MemoryError:
        return _fail("out of memory", 1)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except Exception as e:  # one line for the user, who can do nothing about it
        return _crash(e, _subject(args))


def _log_to_stderr(verbose: int) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter(logging.BASIC_FORMAT))
    level = [logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG][min(verbose + 1, 3)]
    logging.basicConfig(level=level, handlers=[handler])


def _subject(args: argparse.Namespace) -> str:
    """The file that a command was given."""
    return str(getattr(args, "model", None) or getattr(args, "module", None) or "")


def _crash(error: Exception, subject: str) -> int:
    *lines, last = crash_message(error, subject).split("\n")
    for line in lines:
        print(printable(line), file=sys.stderr)
    return _fail(last, 1)


def _terminate(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _fail(message: str, code: int) -> int:
    print(f"onnx-fa: error: {printable(' '.join(message.split()))}", file=sys.stderr)
    return code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        """Usage errors in the same one line as all others."""
        self.exit(2, f"onnx-fa: error: {message} (see `{self.prog} --help`)\n")


def _parser() -> argparse.ArgumentParser:
    from importlib.metadata import PackageNotFoundError, version

    try:
        number = version("onnx-fa")
    except PackageNotFoundError:  # run from a checkout that is not installed
        number = "(not installed)"
    parser = _Parser(prog="onnx-fa", description="Turns every attention of an ONNX model into one fused IREE dispatch.")
    parser.add_argument("--version", action="version", version=f"onnx-fa {number}")
    common = _Parser(add_help=False)
    common.add_argument("-v", "--verbose", action="count", default=0, help="more messages (-vv: all)")
    common.add_argument("-q", "--quiet", action="store_const", const=-1, dest="verbose", help="results and errors only")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, run: Callable[[argparse.Namespace], int | None], help_: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help_, description=help_, parents=[common])
        sub.set_defaults(command=run)
        return sub

    def target(sub: argparse.ArgumentParser, default: str | None = "cpu-host") -> None:
        sub.add_argument(
            "--target", default=default, metavar="NAME", help=f"one of {', '.join(TARGET_NAMES)} (default: {default})"
        )

    def kernels(sub: argparse.ArgumentParser) -> None:
        sub.add_argument(
            "--kernels",
            choices=KERNELS,
            default="auto",
            help="who makes the attention's code: IREE, Triton (CUDA only), or the first of Triton and IREE that can",
        )

    def lossy(sub: argparse.ArgumentParser) -> None:
        sub.add_argument(
            "--tf32", action="store_true", help="CUDA: attention in f32 may multiply in tf32, which changes results"
        )
        sub.add_argument(
            "--bf16-dot",
            action="store_true",
            help="CPUs with AVX512_BF16: attention may multiply in bf16, which changes results",
        )

    def dims(sub: argparse.ArgumentParser) -> None:
        sub.add_argument(
            "--dim", action="append", default=[], type=_dim, metavar="NAME=SIZE", help="size of a symbolic dim"
        )

    def flags(sub: argparse.ArgumentParser) -> None:
        sub.add_argument(
            "--iree-flag",
            action="append",
            default=[],
            metavar="FLAG",
            help="pass FLAG to iree-compile: --iree-flag=--iree-opt-level=O3",
        )

    sub = add("explain", explain, "show every attention found, and every softmax left alone and why")
    sub.add_argument("model")
    sub.add_argument("--report", metavar="FILE", help="write the same as JSON")
    sub.add_argument("--html", metavar="FILE", help="write a page with the graph around every site, before and after")

    sub = add("rewrite", rewrite, "write the model with its attention in one canonical form")
    sub.add_argument("model")
    sub.add_argument("-o", "--output", required=True)
    sub.add_argument("--form", choices=("decomposed", "attention", "blocked"), default="decomposed")
    sub.add_argument("--report", metavar="FILE", help="write what was found as JSON")
    sub.add_argument(
        "--int8-qk", action="store_true", help="multiply Q and K in int8 per token: changes results, and says how much"
    )
    sub.add_argument(
        "--spec", metavar="FILE", help="also write a transform spec, for stock iree-compile (needs --target)"
    )
    target(sub, None)

    sub = add("import", import_, "import to MLIR with kernels in place, as iree-import-onnx does without")
    sub.add_argument("model")
    sub.add_argument("-o", "--output", required=True, help="a file, or - for standard output")
    sub.add_argument("--report", metavar="FILE")
    target(sub)
    kernels(sub)
    lossy(sub)

    sub = add("compile", compile_, "compile to an IREE module with every attention fused")
    sub.add_argument("model")
    sub.add_argument("-o", "--output", required=True)
    sub.add_argument("--report", metavar="FILE")
    sub.add_argument("--keep-intermediates", metavar="DIR", help="keep the MLIR of the way there")
    sub.add_argument("--timeout", type=_seconds, default=1800, metavar="S", help="stop iree-compile after S seconds")
    flags(sub)
    target(sub)
    kernels(sub)
    lossy(sub)

    sub = add("run", run, "run a compiled module")
    sub.add_argument("module")
    sub.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]VALUE",
        help="FILE.npy, or like iree-run-module: 2x3xf32, 2x3xi64=7",
    )
    sub.add_argument(
        "--random-inputs", metavar="MODEL", help="random inputs that fit this ONNX model (and names for --input)"
    )
    sub.add_argument("--seed", type=int, default=0)
    sub.add_argument("--output", metavar="DIR", help="save outputs there as .npy")
    sub.add_argument("--device", help="of IREE's runtime, as iree-run-module takes it (default: the target's)")
    dims(sub)
    target(sub)

    sub = add("inspect", inspect, "say per site whether it is fused, from the compiler's own output")
    sub.add_argument("model", help=".onnx or .vmfb")
    sub.add_argument("--report", metavar="FILE")
    flags(sub)
    target(sub)
    kernels(sub)
    lossy(sub)

    sub = add("verify", verify, "compare original, rewritten and compiled model with each other and with float64")
    sub.add_argument("model")
    sub.add_argument("--seeds", type=int, default=3)
    sub.add_argument("--report", metavar="FILE", help="write the table as JSON")
    dims(sub)
    flags(sub)
    target(sub)
    kernels(sub)
    lossy(sub)

    sub = add("bench", bench, "time a model, or attention alone, against stock IREE, onnxruntime and PyTorch")
    sub.add_argument(
        "model", nargs="?", help="or --heads, --head-dim and --seq: attention alone, in all their combinations"
    )
    sub.add_argument("--heads", type=_numbers, default=[], metavar="N,N", help="of Q, K and V")
    sub.add_argument("--head-dim", type=_numbers, default=[], metavar="N,N")
    sub.add_argument("--seq", type=_numbers, default=[], metavar="N,N", help="lengths, of queries as of keys")
    sub.add_argument("--batch", type=int, default=1)
    sub.add_argument("--causal", action="store_true", help="with a causal mask")
    sub.add_argument("--dtype", choices=("f32", "f16"), help="(default: f32 on CPUs, f16 on GPUs)")
    sub.add_argument("--fresh", action="store_true", help="do not go on with an interrupted sweep")
    sub.add_argument(
        "--modules", metavar="DIR", help="of a sweep: keep compiled modules there, and use those that are there"
    )
    sub.add_argument(
        "--build-only", action="store_true", help="fill --modules for a machine that has a device, but no compiler"
    )
    sub.add_argument(
        "-o",
        "--output",
        metavar="PREFIX",
        help="writes PREFIX.csv, .json, .png, .md (default: ./<model>.bench, ./attention.bench)",
    )
    sub.add_argument("--rounds", type=int, help="(default: 7 of a model, 4 of attention alone)")
    sub.add_argument("--threads", type=int, default=2)
    sub.add_argument("--no-plot", action="store_true", help="do not write the PNG")
    dims(sub)
    sub.add_argument(
        "--target",
        metavar="NAME",
        help=f"one of {', '.join(TARGET_NAMES)} (default: cpu-host, and for attention alone also cuda, if there is a device)",
    )
    kernels(sub)
    lossy(sub)

    sub = add("tune", tune, "measure tiles and compile options on this machine, for the tuning database")
    sub.add_argument("model", nargs="?", help="tune for the attentions of this ONNX model")
    sub.add_argument(
        "--case", action="append", default=[], metavar="NAME", help="a case of onnx_fa/cases.py; repeatable"
    )
    sub.add_argument("--out", metavar="FILE", help="the database to write (default: the package's own for the target)")
    sub.add_argument("--body", default="", metavar="NAME", help="of the kernel (default: the one that compile takes)")
    sub.add_argument("--rounds", type=int, default=5)
    sub.add_argument("--calls", type=int, default=5, help="timed calls per round")
    sub.add_argument("--candidates", type=int, default=16, help="most sets of tiles tried per stage")
    sub.add_argument("--threads", type=int, default=2)
    sub.add_argument("--jobs", type=int, default=1, help="compile so many at once (timing is never parallel)")
    sub.add_argument("--timeout", type=_seconds, default=60, metavar="S", help="stop each compiler after S seconds")
    sub.add_argument("--memory", type=float, default=4, metavar="GIB", help="memory limit of each compiler")
    sub.add_argument("--fresh", action="store_true", help="do not go on with an interrupted run")
    dims(sub)
    target(sub)
    kernels(sub)
    from onnx_fa.zoo import command as zoo

    sub = commands.add_parser("zoo", help="run a collection of models, and compare with a baseline")
    zoo.add(sub, common)
    return parser


def _dim(text: str) -> tuple[str, int]:
    name, _, size = text.rpartition("=")
    if not name or not size.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SIZE")
    return name, int(size)


def _numbers(text: str) -> list[int]:
    parts = text.split(",")
    if not all(p.isdigit() and int(p) > 0 for p in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers above 0, as 8,32")
    return [int(p) for p in parts]


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _target(args: argparse.Namespace, *, runs: bool = False) -> Target:
    """The target named, with what is to be said about it; `runs`: raises TargetError where this machine has no such device."""
    asked = {option: getattr(args, option, False) for option in ("tf32", "bf16_dot")}
    target = parse_target(args.target, args.kernels, **asked)
    if runs and target.is_gpu:
        _device(target.device)
    if target.note:
        _note(args, target.note)
    return target


def _device(name: str) -> None:
    from onnx_fa.iree.run import require_device

    require_device(name)


def explain(args: argparse.Namespace) -> None:
    from onnx_fa.forms.rewrite import explain as find

    for path in filter(None, (args.report, args.html)):
        check_writable(path)
    if args.html:
        from onnx_fa.explainer.page import page

        report, html = page(args.model, Path(args.model).name)
        write_whole(args.html, html)
    else:
        report = find(args.model, passes=True)
    if args.report:
        _write_json(args.report, report.to_dict())
    head = (
        "site",
        "spelling",
        "variant",
        "type",
        "q -> out",
        "k, v",
        "scale",
        "mask",
        "empty row",
        "layouts q k v out",
        "passes over k, v",
    )
    rows = [
        (
            s.name,
            f"{s.op} ({s.form})",
            s.variant,
            s.spec.dtype,
            *_spec_cells(s.spec),
            s.passes.words if s.passes else "?",
        )
        for s in report.sites
    ]
    if rows:
        print(text_table(head, rows))
    for reason in dict.fromkeys(s.passes.reason for s in report.sites if s.passes and s.passes.reason):
        print(printable(reason))
    _print_beside(report.sites)
    print(f"{len(rows)} attention site{'s' * (len(rows) != 1)} found, {len(report.misses)} left alone")
    if report.misses:
        print("\n" + text_table(("left alone", "op", "reason"), [(m.node, m.op, m.reason) for m in report.misses]))


def _spec_cells(spec: AttentionSpec) -> tuple[str, ...]:
    from onnx_fa.spec.words import score_words, shape_words

    q, k, v, out = map(shape_words, spec.canonical_shapes)
    mask = ", ".join(score_words(spec)) or "none"
    layouts = " ".join("".join(map(str, p)) for p in (spec.q_layout, spec.k_layout, spec.v_layout, spec.o_layout))
    return f"{q} -> {out}", f"{k}, {v}", f"{spec.scale:.6g}", mask, spec.empty_row, layouts


def rewrite(args: argparse.Namespace) -> None:
    from onnx_fa.forms.rewrite import rewrite_in_place
    from onnx_fa.graph import io

    if args.spec and not args.target:
        raise OnnxFaError("--spec needs --target: kernels are per target")
    if args.spec and args.form != "decomposed":
        raise OnnxFaError("--spec needs --form decomposed: that is the form it recognises")
    target = parse_target(args.target) if args.target else None
    for path in filter(None, (args.output, args.report, args.spec)):
        check_writable(path)
    model = io.load(args.model)
    original = model.clone() if args.int8_qk else None
    report, sites = rewrite_in_place(model, args.form, int8_qk=args.int8_qk)
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
        _write_json(args.report, report.to_dict())
    _note(args, f"{args.output}: {len(report.sites)} sites in form {args.form}, {len(report.misses)} left alone")
    if original is not None:
        from onnx_fa.verifier.verifier import rewrite_error

        lossy = sum(bool(s.lossy) for s in report.sites)
        for name, error in rewrite_error(original, model).items():
            print(printable(f"int8 QK in {lossy} sites: output {name} differs by {error:.2e} (2-norm, relative)"))


def import_(args: argparse.Namespace) -> None:
    from onnx_fa.iree.compile import MODEL_FLAGS, import_model, merge_flags

    target = _target(args)
    for path in filter(lambda p: p and p != "-", (args.output, args.report)):
        check_writable(path)
    done = import_model(args.model, target)
    if args.output == "-":
        print(done.text)
    else:
        write_whole(args.output, done.text)
    if args.report:
        _write_json(args.report, done.report.to_dict())
    if args.output != "-":
        _note(args, f"{args.output}: {len(done.sites)} sites as kernels, {len(done.report.misses)} left alone")
        _say_lossy(args, target, done.sites)
        flags = merge_flags(target.flags, MODEL_FLAGS.get(target.backend, ()), done.flags)
        _note(args, f"compile it with: iree-compile {' '.join(flags)} {args.output} -o MODULE.vmfb")


def compile_(args: argparse.Namespace) -> None:
    from onnx_fa.iree.compile import compile_model

    target = _target(args)
    for path in filter(None, (args.output, args.report)):
        check_writable(path)
    keep = Path(args.keep_intermediates) if args.keep_intermediates else None
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
    done = compile_model(
        args.model,
        Path(args.output),
        target,
        keep_intermediates=keep,
        flags=tuple(args.iree_flag),
        timeout_s=args.timeout,
    )
    if args.report:
        _write_json(args.report, done.to_dict())
    fused = sum(s.fused is True for s in done.sites)
    _note(
        args,
        f"{args.output}: {len(done.sites)} sites, {fused} of them one fused dispatch, {len(done.misses)} left alone",
    )
    _say_lossy(args, target, done.sites)


def _say_lossy(args: argparse.Namespace, target: Target, sites: Sequence[SiteReport]) -> None:
    """What an option that changes results came to."""
    if word := target.lossy:
        count = sum(word in s.lossy for s in sites)
        told = f"; `onnx-fa verify --{word.replace(' ', '-')}` says how far outputs move" * bool(count)
        _note(args, f"{word} in {count} sites{told}")


def run(args: argparse.Namespace) -> None:
    import numpy as np

    from onnx_fa.iree.run import load_module, require_device

    device = args.device or parse_target(args.target).device
    require_device(device)
    if args.output and not Path(args.output).parent.is_dir():
        raise OnnxFaError(f"{args.output}: cannot be written: no folder {Path(args.output).parent}")
    arrays = _run_inputs(args)
    path = Path(args.module)
    if not path.is_file():
        raise RunError(f"{path}: no such file")
    outputs = load_module(path, device)(*arrays)
    if args.output:
        Path(args.output).mkdir(exist_ok=True)
    for n, out in enumerate(outputs):
        finite = np.isfinite(out) if out.dtype.kind == "f" else np.ones(out.shape, bool)
        kept = out[finite].astype(np.float64)
        stats = f" min {kept.min():.6g} mean {kept.mean():.6g} max {kept.max():.6g}" if kept.size else ""
        bad = f", {np.count_nonzero(~finite)} not finite" if not finite.all() else ""
        print(f"output {n}: {'x'.join(map(str, out.shape))}x{out.dtype}{stats}{bad}")
        if args.output:
            staged = Path(args.output) / f".output{n}.tmp.npy"
            np.save(staged, out)
            os.replace(staged, Path(args.output) / f"output{n}.npy")


def _run_inputs(args: argparse.Namespace) -> list[npt.NDArray[np.generic]]:
    named: dict[str, npt.NDArray[np.generic]] = {}
    if args.random_inputs:
        from onnx_fa.graph import io
        from onnx_fa.verifier.inputs import random_inputs

        named = random_inputs(io.load(args.random_inputs), seed=args.seed, dims=dict(args.dim))
    positional: list[npt.NDArray[np.generic]] = []
    for text in args.input:
        name, _, rest = text.partition("=")
        if name in named:
            named[name] = _parse_input(rest)
        elif rest and (rest.endswith(".npy") or "x" in rest) and not Path(text).exists():
            raise OnnxFaError(
                f"--input {text}: "
                + (
                    f"the model's inputs are {', '.join(named)}"
                    if named
                    else "names need --random-inputs MODEL; give values in order"
                )
            )
        else:
            positional.append(_parse_input(text))
    if named and positional:
        raise OnnxFaError("--input without a name cannot be mixed with --random-inputs")
    return [*named.values(), *positional]


_ELEMENTS = {
    **{f"{k}{n}": f"{w}{n}" for k, w in (("i", "int"), ("si", "int"), ("ui", "uint")) for n in (8, 16, 32, 64)},
    **{"f16": "float16", "f32": "float32", "f64": "float64", "i1": "bool", "bf16": "bfloat16"},
}


def _parse_input(text: str) -> npt.NDArray[np.generic]:
    """FILE.npy, or `2x3xf32`, `2x3xf32=1`, `2x2xi64=1 2 3 4`, `[..]` and commas allowed; no value means zeros."""
    import numpy as np

    if text.endswith(".npy"):
        try:
            array: npt.NDArray[np.generic] = np.load(text.removeprefix("@"), allow_pickle=False)
        except (OSError, ValueError, EOFError) as e:
            raise OnnxFaError(f"{text}: cannot be read as .npy: {e}") from e
        return array
    kind, _, values = text.partition("=")
    *dims, element = kind.split("x")
    if element not in _ELEMENTS or not all(d.isdigit() for d in dims):
        raise OnnxFaError(
            f"--input {text}: not a .npy file, nor SHAPExTYPE[=value] such as 1x16xi64=7; types: {', '.join(_ELEMENTS)}"
        )
    shape = tuple(map(int, dims))
    if element == "bf16":
        import ml_dtypes

        dtype = np.dtype(ml_dtypes.bfloat16)
    else:
        dtype = np.dtype(_ELEMENTS[element])
    words = values.translate(str.maketrans("[],", "   ")).split()
    try:
        read = np.array([float(w) if dtype.kind in "fV" else int(w) for w in words] or [0], dtype)
    except (ValueError, OverflowError) as e:
        raise OnnxFaError(f"--input {text}: {e}") from e
    count = int(np.prod(shape, dtype=np.int64))
    if read.size not in (1, count):
        raise OnnxFaError(f"--input {text}: {read.size} values for {count} elements; give one, or all")
    return np.broadcast_to(read[0], shape).copy() if read.size == 1 else read.reshape(shape)


def inspect(args: argparse.Namespace) -> None:
    if args.report:
        check_writable(args.report)
    path, target = Path(args.model), _target(args)
    if path.suffix == ".vmfb":
        _inspect_vmfb(path, args.report)
        return
    from onnx_fa.iree.compile import compile_model

    # The compiler's own output is read, so it has to run.
    with scratch_folder() as folder:
        done = compile_model(path, folder / "model.vmfb", target, flags=tuple(args.iree_flag))
    if args.report:
        _write_json(args.report, done.to_dict())
    _print_sites(done.sites)
    _say_lossy(args, target, done.sites)
    for buffer in done.inspection.buffers:
        print(printable(f"buffer of Sq x Skv size: {buffer}"))
    for miss in done.misses:
        print(printable(f"left alone: {miss.node} ({miss.op}): {miss.reason}"))
    print(f"{len(done.inspection.dispatches)} dispatches in all")


def _inspect_vmfb(path: Path, report: str | None) -> None:
    from onnx_fa.iree.inspect import inspect_vmfb

    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    if report:
        raise OnnxFaError("--report needs the .onnx: a .vmfb holds no sites, only kernels and dispatches")
    facts = inspect_vmfb(path)
    kernels = facts.kernels()
    print(printable(f"attention kernels: {', '.join(kernels) or 'none'}"))
    print("\n".join(printable(f"dispatch {name}") for name in facts.exports))


def _print_sites(sites: Sequence[SiteReport]) -> None:
    def cell(value: object) -> str:
        return "?" if value is None else {True: "yes", False: "NO"}[value] if isinstance(value, bool) else str(value)

    rows = [
        (
            s.name,
            s.variant,
            cell(s.fused),
            cell(s.dispatches),
            cell(s.largest_buffer_bytes),
            " ".join(f"{k}={v}" for k, v in (s.tiles or {}).items()) or "?",
        )
        for s in sites
    ]
    print(
        text_table(("site", "variant", "fused", "dispatches", "largest buffer", "tiles"), rows)
        if rows
        else "no attention sites"
    )
    by_tuning: dict[str, list[str]] = {}
    for s in sites:
        by_tuning.setdefault(s.tuning or "?", []).append(s.name)
    for tuning, names in by_tuning.items():
        print(printable(f"tiles of {', '.join(names)}: {tuning}"))
    _print_beside(sites)


def _print_beside(sites: Sequence[SiteReport]) -> None:
    for s in sites:
        if s.beside:
            print(printable(f"{s.name}: {s.beside}"))


def verify(args: argparse.Namespace) -> int:
    from onnx_fa.verifier.verifier import verify as check

    if args.seeds < 1:
        raise OnnxFaError("--seeds must be at least 1")
    target = _target(args, runs=True)
    if args.report:
        check_writable(args.report)
    report = check(
        args.model,
        target,
        seeds=args.seeds,
        dims=dict(args.dim),
        flags=tuple(args.iree_flag),
        progress=lambda m: _note(args, m),
    )
    if args.report:
        _write_json(args.report, report.to_dict())
    print(report.table())
    report.check()
    return 0


def bench(args: argparse.Namespace) -> int | None:
    from onnx_fa.benchmark.models import bench as measure

    if (args.rounds is not None and args.rounds < 1) or args.threads < 1 or args.batch < 1:
        raise OnnxFaError("--rounds, --threads and --batch must be at least 1")
    sizes = (args.heads, args.head_dim, args.seq)
    if (args.model is None) != all(sizes) or (args.model is not None and any(sizes)):
        raise OnnxFaError("give a model, or --heads, --head-dim and --seq")
    if args.model is None:
        return _bench_sweep(args)
    if args.modules or args.build_only:
        raise OnnxFaError("--modules and --build-only are for --heads, --head-dim and --seq")
    args.target = args.target or "cpu-host"
    target = _target(args, runs=True)
    prefix = Path(args.output or f"{Path(args.model).stem}.bench")
    check_writable(f"{prefix}.csv")
    result = measure(
        args.model,
        target,
        rounds=args.rounds or 7,
        threads=args.threads,
        dims=dict(args.dim),
        progress=lambda m: _note(args, m),
    )
    written = result.write(prefix, plot=not args.no_plot)
    print(result.table())
    _note(args, "wrote " + ", ".join(map(str, written)))
    return None


def _bench_sweep(args: argparse.Namespace) -> int:
    """Exit code 1 where onnx_fa was wrong or did not run."""
    import shutil

    from onnx_fa.benchmark import sweep as attention_sweep
    from onnx_fa.benchmark.attention import Plan, build_modules
    from onnx_fa.benchmark.kept_modules import KeptModules
    from onnx_fa.benchmark.models import OURS

    if args.build_only and not (args.modules and args.target):
        raise OnnxFaError("--build-only needs --modules and --target")
    names = [args.target] if args.target else ["cpu-host"]
    if not args.target:
        try:
            _device("cuda")
            names.append("cuda")
        except OnnxFaError as e:
            _note(args, f"not on CUDA: {e}")
    wanted = []
    for name in names:
        args.target = name
        target = _target(args, runs=not args.build_only)
        dtype = args.dtype or ("f16" if target.is_gpu else "f32")
        options = {"batch": args.batch, "causal": args.causal, "dtype": dtype, "target": name}
        wanted.append((target, attention_sweep.sweep_cases(args.heads, args.head_dim, args.seq, **options)))
    prefix = Path(args.output or "attention.bench")
    plan = Plan(threads=args.threads)
    if args.rounds:
        plan = dataclasses.replace(plan, rounds=args.rounds, slow_rounds=min(args.rounds, plan.slow_rounds))
    modules = KeptModules(Path(args.modules)) if args.modules else None
    say = partial(_note, args)
    if args.build_only and modules:
        ((target, of),) = wanted
        lacking = build_modules(of, target, plan, modules, attention_sweep.WHO, say)
        for problem in lacking:
            print(printable(f"not compiled: {problem}"))
        return 1 if lacking else 0
    results = attention_sweep.sweep(wanted, prefix, plan, fresh=args.fresh, note=say, modules=modules)
    written = attention_sweep.write(results, prefix, plan, with_plot=not args.no_plot)
    shutil.rmtree(f"{prefix}.partial")
    print(text_table(attention_sweep.HEAD, attention_sweep.rows(results)))
    for problem in attention_sweep.problems(results):
        print(printable(f"not timed: {problem}"))
    _note(args, "wrote " + ", ".join(map(str, written)))
    return 1 if any(c.what == OURS and c.problem for r in results for c in r.contestants) else 0


def tune(args: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from onnx_fa.tuning import command as tuning
    from onnx_fa.tuning.search import Settings

    if args.model and args.case:
        raise OnnxFaError("give a model or --case, not both")
    if not args.memory > 0:
        raise OnnxFaError("--memory must be above 0")
    target = _target(args, runs=True)
    settings = Settings(
        rounds=args.rounds,
        calls=args.calls,
        threads=args.threads,
        candidates=args.candidates,
        jobs=args.jobs,
        compile_timeout_s=args.timeout,
        compile_memory_bytes=int(args.memory * 2**30),
        body=args.body,
    )
    wanted = (
        tuning.cases_of_model(args.model, dict(args.dim), target)
        if args.model
        else tuning.table_cases(args.case, target)
    )
    columns = (TextColumn("{task.completed}/{task.total} cases"), BarColumn(20), TimeElapsedColumn())
    console = Console(stderr=True)
    shown = console.is_terminal and args.verbose >= 0
    with Progress(
        *columns, TextColumn("{task.description}", markup=False), console=console, transient=True, disable=not shown
    ) as bar:
        task = bar.add_task("", total=len(wanted))

        def advance(done: int, of: int) -> None:
            bar.update(task, completed=done, total=of, description="")
            if not shown and done:
                _note(args, f"{done} of {of} cases")

        path, entries, left_out = tuning.tune(
            wanted,
            target,
            Path(args.out) if args.out else None,
            settings,
            fresh=args.fresh,
            note=lambda m: bar.update(task, description=m),
            advance=advance,
        )
    head = ("case", "family", "tried", "refused", "best tiles", "default to best")
    rows = []
    for e in entries:
        best = e.choices[0]
        tiles = " ".join([*(f"{k}={v}" for k, v in best.tiles.items()), *best.flags])
        default = e.measured["default_cost"]
        ratio = "-" if default is None else f"{default:.3f}"
        rows.append((e.case.partition(":")[0], str(e.family), len(e.choices), len(e.refused), tiles, ratio))
    print(text_table(head, rows))
    for reason in left_out:
        print(printable(f"left out: {reason}"))
    spread = max(e.measured["spread"] for e in entries)
    if spread > tuning.QUIET:
        _note(args, f"times of one candidate spread by {spread:.0%}: was the machine idle?")
    _note(args, f"wrote {path}")


def _write_json(path: str, data: dict[str, Any]) -> None:
    write_whole(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def _note(args: argparse.Namespace, message: str) -> None:
    """Progress and summaries go to standard error; -q silences them."""
    if args.verbose >= 0:
        print(printable_lines(message), file=sys.stderr, flush=True)
