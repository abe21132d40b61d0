"""Options of `onnx-fa bench` for attention alone."""

from __future__ import annotations

import argparse

from onnx_fa.cli.options import parse_numbers
from onnx_fa.spec.switches import Switch


def add_ablation(sub: argparse.ArgumentParser) -> None:
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
        help="of --ablate: this case of onnx_fa/spec/cases.py; repeatable",
    )
    sub.add_argument(
        "--switch",
        action="append",
        default=[],
        choices=[s.word for s in Switch],
        help="of --ablate: this optimisation alone; repeatable",
    )
    sub.add_argument("--no-forms", action="store_true", help="of --ablate: without stock IREE")


def add_sweep(sub: argparse.ArgumentParser) -> None:
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
        help="of a sweep or --ablate: keep compiled modules there, and use those that are there",
    )
    sub.add_argument(
        "--build-only", action="store_true", help="fill --modules for a machine that has a device, but no compiler"
    )
