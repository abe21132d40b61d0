"""Options that several commands have, and how their values are read."""

from __future__ import annotations

import argparse

from onnx_fa.spec.target import KERNELS, TARGET_NAMES


def add_model(sub: argparse.ArgumentParser, help_: str = "an ONNX file") -> None:
    sub.add_argument("model", metavar="MODEL", help=help_)


def add_report(sub: argparse.ArgumentParser, what: str = "sites and what was left alone") -> None:
    sub.add_argument("--report", metavar="FILE", help=f"write {what} as JSON; - is standard output")


def add_strict(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--strict",
        action="store_true",
        help="exit with 1 if anything was left alone, also a softmax of no attention; outputs are written all the same",
    )


def add_target(
    sub: argparse.ArgumentParser, default: str | None = "cpu-host", what: str = "what the code is for"
) -> None:
    shown = "" if default is None else f" (default: {default})"
    sub.add_argument(
        "--target", default=default, metavar="NAME", help=f"{what}: one of {', '.join(TARGET_NAMES)}{shown}"
    )


def add_kernels(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--kernels",
        choices=KERNELS,
        default="auto",
        help="who makes the attention's code: IREE, Triton (CUDA only), or the first of Triton and IREE that can "
        "(default: %(default)s)",
    )


def add_lossy(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--tf32", action="store_true", help="CUDA: attention in f32 may multiply in tf32, which changes results"
    )
    sub.add_argument(
        "--bf16-dot",
        action="store_true",
        help="CPUs with AVX512_BF16: attention may multiply in bf16, which changes results",
    )


def add_dims(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--dim",
        action="append",
        default=[],
        type=parse_dim,
        metavar="NAME=SIZE",
        help="size of a symbolic dim of the model's inputs; repeatable",
    )


def add_values(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        type=parse_value,
        metavar="NAME=VALUE",
        help="fix an input of one element, as use_cache_branch=1: the compiled function does not take it, and of an If that it "
        "decides the branch is compiled; repeatable",
    )


def add_iree_flags(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--iree-flag",
        action="append",
        default=[],
        metavar="FLAG",
        help="pass FLAG to iree-compile: --iree-flag=--iree-opt-level=O3; repeatable",
    )


def parse_dim(text: str) -> tuple[str, int]:
    name, _, size = text.rpartition("=")
    if not name or not size.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SIZE")
    return name, int(size)


def parse_value(text: str) -> tuple[str, bool | int | float]:
    name, _, value = text.rpartition("=")
    if name and value.lower() in ("true", "false"):
        return name, value.lower() == "true"
    for kind in (int, float):
        try:
            if name:
                return name, kind(value)
        except ValueError:
            continue
    raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE with a number, true or false")


def parse_parameters(text: str) -> tuple[str, str]:
    """(scope, file)"""
    scope, _, path = text.rpartition("=")
    if not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not SCOPE=FILE")
    return scope, path


def parse_count(text: str) -> int:
    """A whole number from 1 on."""
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return count


def parse_numbers(text: str) -> list[int]:
    parts = text.split(",")
    if not all(p.isdigit() and int(p) > 0 for p in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers above 0, as 8,32")
    return [int(p) for p in parts]


def parse_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds
