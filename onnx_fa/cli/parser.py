"""The parser: one small function per command adds its options."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx_fa
from onnx_fa.cli.bench import run_bench
from onnx_fa.cli.bench_options import add_bench
from onnx_fa.cli.cases import list_cases
from onnx_fa.cli.compile import run_compile
from onnx_fa.cli.derive import run_derive
from onnx_fa.cli.explain import run_explain
from onnx_fa.cli.generate import run_generate
from onnx_fa.cli.import_ import add_import, run_import
from onnx_fa.cli.inspect import run_inspect
from onnx_fa.cli.options import (
    add_dims,
    add_iree_flags,
    add_kernels,
    add_lossy,
    add_model,
    add_report,
    add_strict,
    add_target,
    add_values,
    parse_count,
    parse_numbers,
    parse_parameters,
    parse_seconds,
)
from onnx_fa.cli.rewrite import run_rewrite
from onnx_fa.cli.run import run_run
from onnx_fa.cli.tune import run_tune
from onnx_fa.cli.verify import run_verify
from onnx_fa.iree.archives import PARAMETERS


@dataclass(frozen=True)
class Command:
    """One command: `run` takes the parsed arguments and returns the exit code, None for 0."""

    name: str
    help: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        """Usage errors in the same one line as all others."""
        self.exit(2, f"onnx-fa: error: {message} (see `{self.prog} --help`)\n")


def make_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line. Its results have `command`, the function to call, and `verbose`, from -1 up."""
    parser = Parser(prog="onnx-fa", description="Turns every attention of an ONNX model into one fused IREE dispatch.")
    parser.add_argument(
        "--version", action="version", version=f"onnx-fa {onnx_fa.__version__}", help="show the version and exit"
    )
    common = Parser(add_help=False)
    common.add_argument(
        "-v",
        "--verbose",
        action="count",
        default=0,
        help="phases with seconds, flags, tiles; -vv: dispatches too",
    )
    common.add_argument("-q", "--quiet", action="store_const", const=-1, dest="verbose", help="results and errors only")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = commands.add_parser(command.name, help=command.help, description=command.help, parents=[common])
        sub.set_defaults(command=command.run)
        command.add_options(sub)
    from onnx_fa.zoo import command as zoo

    zoo.add(commands.add_parser("zoo", help="run a collection of models, and compare with a baseline"), common)
    return parser


def _add_explain(sub: argparse.ArgumentParser) -> None:
    add_model(sub)
    add_report(sub, "the same")
    sub.add_argument("--html", metavar="FILE", help="write a page with the graph around every site, before and after")


def _add_derive(sub: argparse.ArgumentParser) -> None:
    add_model(sub)
    sub.add_argument("--site", metavar="N", help="only the site of that name, or number from 0 (default: all)")
    add_report(sub, "the chains")
    sub.add_argument("--html", metavar="FILE", help="write a page with every step")
    add_target(sub, "cpu-host", "what the kernel is for")
    add_kernels(sub)


def _add_rewrite(sub: argparse.ArgumentParser) -> None:
    add_model(sub)
    sub.add_argument("-o", "--output", required=True, metavar="FILE", help="the ONNX file to write")
    sub.add_argument(
        "--form",
        choices=("decomposed", "attention", "blocked"),
        default="decomposed",
        help="standard ops in an order that compilers fuse, ONNX's Attention op, or a Loop over blocks of keys "
        "(default: %(default)s)",
    )
    add_report(sub)
    sub.add_argument(
        "--int8-qk", action="store_true", help="multiply Q and K in int8 per token: changes results, and says how much"
    )
    sub.add_argument(
        "--split-keys",
        type=parse_count,
        default=1,
        metavar="N",
        help="split the keys of every site into N partial sites, whose results are merged (default: %(default)s)",
    )
    sub.add_argument(
        "--site",
        action="append",
        default=[],
        metavar="NAME",
        help="of --split-keys: this site alone; repeatable (names as `onnx-fa explain` shows them)",
    )
    sub.add_argument(
        "--spec", metavar="FILE", help="also write a transform spec, for stock iree-compile (needs --target)"
    )
    add_target(sub, None, "what the kernels of --spec are for")
    add_strict(sub)
    sub.add_argument("--force", action="store_true", help="overwrite MODEL itself where --output names it")


def _add_compile(sub: argparse.ArgumentParser) -> None:
    add_model(sub)
    sub.add_argument("-o", "--output", required=True, metavar="FILE", help="the module to write (.vmfb)")
    add_report(sub)
    sub.add_argument("--keep-intermediates", metavar="DIR", help="keep the MLIR of the way there")
    sub.add_argument(
        "--timeout",
        type=parse_seconds,
        default=1800,
        metavar="S",
        help="stop iree-compile after S seconds (default: %(default)s)",
    )
    sub.add_argument(
        "--check",
        action="store_true",
        help="run the module once on random inputs: exit with 1 if a result is not onnxruntime's",
    )
    sub.add_argument(
        "--parameters",
        choices=PARAMETERS,
        default="auto",
        help="where weights go: into the module, into an archive beside it (.irpa), or there where they take more than 64 MiB "
        "(default: %(default)s)",
    )
    sub.add_argument(
        "--devices",
        type=parse_count,
        default=1,
        metavar="N",
        help="place a part of every site on each of N devices of the target (CPUs; default: %(default)s)",
    )
    sub.add_argument(
        "--split",
        choices=("keys", "heads", "queries"),
        help="of --devices: what sites are cut along (default: keys)",
    )
    add_iree_flags(sub)
    add_target(sub)
    add_kernels(sub)
    add_lossy(sub)
    add_dims(sub)
    add_values(sub)
    add_strict(sub)


def _add_run(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("module", metavar="MODULE", help="what `onnx-fa compile` wrote (.vmfb)")
    sub.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]VALUE",
        help="FILE.npy, or like iree-run-module: 2x3xf32, 2x3xi64=7; once per input, in the model's order",
    )
    sub.add_argument(
        "--random-inputs", metavar="MODEL", help="random inputs that fit this ONNX model (and names for --input)"
    )
    sub.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the random inputs, a number (default: %(default)s)"
    )
    sub.add_argument(
        "--parameters",
        action="append",
        default=[],
        type=parse_parameters,
        metavar="[SCOPE=]FILE",
        help="an archive of weights (.irpa), as iree-run-module takes it (default: the one that lies beside the module)",
    )
    sub.add_argument("--output", metavar="DIR", help="save outputs there as .npy")
    sub.add_argument(
        "--device",
        action="append",
        default=[],
        metavar="NAME",
        help="as iree-run-module takes it, once for each device that the module was compiled for (default: the target's)",
    )
    add_dims(sub)
    add_values(sub)
    add_target(sub, what="what the module was compiled for")


def _add_inspect(sub: argparse.ArgumentParser) -> None:
    add_model(sub, "an ONNX file, which is compiled, or a .vmfb")
    add_report(sub)
    add_iree_flags(sub)
    add_target(sub)
    add_kernels(sub)
    add_lossy(sub)


def _add_cases(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--kind", choices=("attention", "linear"), help="only sites of this kind")
    sub.add_argument("--tag", action="append", default=[], metavar="TAG", help="only cases with this tag; repeatable")


def _add_verify(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("model", nargs="?", metavar="MODEL", help="an ONNX file; or --case")
    sub.add_argument(
        "--case",
        action="append",
        default=[],
        metavar="NAME",
        help="a site alone, one of `onnx-fa cases`, on the operands of its table; repeatable",
    )
    sub.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="sets of random inputs to compare on (default: %(default)s)"
    )
    sub.add_argument(
        "--inputs",
        action="append",
        default=[],
        metavar="FILE.npz",
        help="compare on these arrays, by the names of the model's inputs, instead of on random ones; repeatable",
    )
    add_report(sub, "the table")
    add_dims(sub)
    add_values(sub)
    add_iree_flags(sub)
    add_target(sub)
    add_kernels(sub)
    add_lossy(sub)


def _add_generate(sub: argparse.ArgumentParser) -> None:
    add_model(sub, "a decoder with its caches: an ONNX file, or a folder of onnxruntime-genai or optimum")
    sub.add_argument(
        "--prompt-ids", type=parse_numbers, required=True, metavar="N,N", help="the tokens of the prompt, as numbers"
    )
    sub.add_argument("--tokens", type=int, default=16, metavar="N", help="how many to generate (default: %(default)s)")
    sub.add_argument("--modules", metavar="DIR", help="keep the compiled modules there")
    sub.add_argument("--no-compare", action="store_true", help="do not run onnxruntime beside")
    sub.add_argument("--threads", type=int, metavar="N", help="of every contestant (default: all)")
    sub.add_argument(
        "--timeout",
        type=parse_seconds,
        default=1800,
        metavar="S",
        help="stop each iree-compile after S seconds (default: %(default)s)",
    )
    add_report(sub, "tokens and times")
    add_target(sub)
    add_kernels(sub)
    add_lossy(sub)


def _add_tune(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "model", nargs="?", metavar="MODEL", help="tune for the attentions and products of this ONNX model"
    )
    sub.add_argument(
        "--case",
        action="append",
        default=[],
        metavar="NAME",
        help="one of `onnx-fa cases`; repeatable",
    )
    sub.add_argument("--out", metavar="FILE", help="the database to write (default: the package's own for the target)")
    sub.add_argument("--body", default="", metavar="NAME", help="of the kernel (default: the one that compile takes)")
    _add_tune_limits(sub)
    sub.add_argument("--fresh", action="store_true", help="do not go on with an interrupted run")
    add_dims(sub)
    add_target(sub)
    add_kernels(sub)


def _add_tune_limits(sub: argparse.ArgumentParser) -> None:
    """How long, and with how much of the machine."""
    for name, default, help_ in (
        ("--rounds", 5, "rounds in which each candidate is timed"),
        ("--calls", 5, "timed calls per round"),
        ("--candidates", 16, "most sets of tiles tried per stage"),
        ("--threads", 2, "threads of each call"),
        ("--jobs", 1, "compile so many at once (timing is never parallel)"),
    ):
        sub.add_argument(name, type=int, default=default, metavar="N", help=f"{help_} (default: %(default)s)")
    sub.add_argument(
        "--timeout",
        type=parse_seconds,
        default=60,
        metavar="S",
        help="stop each compiler after S seconds (default: %(default)s)",
    )
    sub.add_argument(
        "--memory", type=float, default=4, metavar="GIB", help="memory limit of each compiler (default: %(default)s)"
    )


COMMANDS = (
    Command("explain", "show every attention found, and every softmax left alone and why", _add_explain, run_explain),
    Command("derive", "show how the loop over keys follows from the model's own arithmetic", _add_derive, run_derive),
    Command("rewrite", "write the model with its attention in one canonical form", _add_rewrite, run_rewrite),
    Command("import", "import to MLIR with kernels in place, as iree-import-onnx does without", add_import, run_import),
    Command("compile", "compile to an IREE module with every attention fused", _add_compile, run_compile),
    Command("run", "run a compiled module", _add_run, run_run),
    Command("inspect", "say per site whether it is fused, from the compiler's own output", _add_inspect, run_inspect),
    Command(
        "verify",
        "compare original, rewritten and compiled model with each other and with float64",
        _add_verify,
        run_verify,
    ),
    Command("cases", "list the sites that verify, bench and tune take alone, by name", _add_cases, list_cases),
    Command(
        "bench",
        "time a model, or sites alone, against stock IREE, onnxruntime and PyTorch",
        add_bench,
        run_bench,
    ),
    Command("generate", "generate tokens with a decoder, beside onnxruntime", _add_generate, run_generate),
    Command("tune", "measure tiles and compile options on this machine, for the tuning database", _add_tune, run_tune),
)
"""In the order in which --help shows them."""
