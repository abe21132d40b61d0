"""The options of `onnx-fa bench`."""

from __future__ import annotations

import argparse

from onnx_fa.cli.options import add_dims, add_kernels, add_lossy, parse_numbers, parse_seconds
from onnx_fa.spec.switches import Switch
from onnx_fa.spec.target import TARGET_NAMES


def add_bench(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="an ONNX file; or --heads, --head-dim and --seq: attention alone, in all their combinations",
    )
    _add_sweep(sub)
    _add_ablation(sub)
    sub.add_argument(
        "-o",
        "--output",
        metavar="PREFIX",
        help="writes PREFIX.csv, .json, .png, .md (default: ./<model>.bench, ./<model>.profile, "
        "./attention.bench, ./cases.bench, ./ablation-<target>.bench)",
    )
    sub.add_argument(
        "--rounds",
        type=int,
        metavar="N",
        help="rounds in which each contestant is timed (default: 7 of a model, 4 of a site alone), or calls of --profile "
        "(default: 20)",
    )
    sub.add_argument(
        "--threads", type=int, default=2, metavar="N", help="threads of every contestant (default: %(default)s)"
    )
    sub.add_argument(
        "--profile",
        action="store_true",
        help="say where the time of a call of MODEL goes: attention, linear sites, other dispatches, between them (CPUs)",
    )
    sub.add_argument("--no-plot", action="store_true", help="do not write the PNG")
    sub.add_argument(
        "--prompt", type=int, default=0, metavar="N", help="of a decoder with caches: time a prompt of N random tokens"
    )
    sub.add_argument("--generate", type=int, default=0, metavar="N", help="and N tokens after it, one by one")
    sub.add_argument(
        "--timeout",
        type=parse_seconds,
        default=1800,
        metavar="S",
        help="of --prompt: stop iree-compile after S seconds (default: %(default)s)",
    )
    add_dims(sub)
    sub.add_argument(
        "--target",
        metavar="NAME",
        help=f"one of {', '.join(TARGET_NAMES)} (default: cpu-host, and for attention alone also cuda, if there is a device)",
    )
    add_kernels(sub)
    add_lossy(sub)


def _add_ablation(sub: argparse.ArgumentParser) -> None:
    """Options of `--ablate`."""
    sub.add_argument(
        "--ablate",
        action="store_true",
        help="time a table of attentions with each optimisation off by itself, and stock IREE on every form of ONNX",
    )
    sub.add_argument(
        "--case",
        action="append",
        default=[],
        metavar="NAME",
        help="a site alone, one of `onnx-fa cases` (with --ablate: an attention); repeatable",
    )
    sub.add_argument(
        "--switch",
        action="append",
        default=[],
        choices=[s.word for s in Switch],
        help="of --ablate: this optimisation alone; repeatable",
    )
    sub.add_argument("--no-forms", action="store_true", help="of --ablate: without stock IREE")


def _add_sweep(sub: argparse.ArgumentParser) -> None:
    """Options of attention alone."""
    for name, help_ in (
        ("--heads", "of Q, K and V"),
        ("--head-dim", "size of a head"),
        ("--seq", "lengths, of queries as of keys"),
    ):
        sub.add_argument(name, type=parse_numbers, default=[], metavar="N,N", help=help_)
    sub.add_argument("--batch", type=int, default=1, metavar="N", help="of attention alone (default: %(default)s)")
    sub.add_argument("--causal", action="store_true", help="with a causal mask")
    sub.add_argument("--dtype", choices=("f32", "f16"), help="of Q, K and V (default: f32 on CPUs, f16 on GPUs)")
    sub.add_argument("--fresh", action="store_true", help="do not go on with an interrupted sweep")
    sub.add_argument(
        "--modules",
        metavar="DIR",
        help="of a sweep, --case or --ablate: keep compiled modules there, and use those that are there",
    )
    sub.add_argument(
        "--build-only", action="store_true", help="fill --modules for a machine that has a device, but no compiler"
    )
