"""What a command writes: where it may, the JSON of --report, and what a plot needs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from onnx_fa.errors import MissingDependencyError, OnnxFaError
from onnx_fa.files import check_writable, write_whole

STDOUT = "-"
"""As a file's name: standard output."""


def check_outputs(
    args: argparse.Namespace, *, files: Sequence[str | None] = (), texts: Sequence[str | None] = ()
) -> None:
    """Before the work: raises OnnxFaError for a path that cannot be written, that is the model which the command reads (unless
    --force is given), or for two results on standard output. Only `texts` may be "-", which is that; None is no output."""
    if STDOUT in files:
        raise OnnxFaError("-: this cannot go to standard output: give a file")
    if list(texts).count(STDOUT) > 1:
        raise OnnxFaError("-: only one result can go to standard output")
    for path in (p for p in (*files, *texts) if p and p != STDOUT):
        check_writable(path)
        if not getattr(args, "force", False) and _same_file(path, args.model):
            force = ", or --force to overwrite it" * hasattr(args, "force")
            raise OnnxFaError(f"{path}: is the model that is read: give another file{force}")


def _same_file(path: str, model: str) -> bool:
    return os.path.exists(path) and os.path.exists(model) and os.path.samefile(path, model)


def write_json(path: str, data: dict[str, Any]) -> None:
    """The JSON of --report; "-" is standard output."""
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    if path == STDOUT:
        sys.stdout.write(text)
    else:
        write_whole(path, text)


def print_result(args: argparse.Namespace, text: str) -> None:
    """A command's result for people: on standard output, but on standard error where --report has taken that for its JSON."""
    print(text, file=sys.stderr if args.report == STDOUT else sys.stdout)


def results_prefix(args: argparse.Namespace, kind: str, endings: Sequence[str] = (".csv",)) -> Path:
    """Where the files of a model's measurements go, less their endings: by the model's name where none is given. Raises OnnxFaError
    where one with these endings could not be written: before anything is measured."""
    prefix = Path(args.output or f"{Path(args.model).stem}.{kind}")
    for ending in endings:
        check_writable(f"{prefix}{ending}")
    return prefix


def check_plot(args: argparse.Namespace) -> None:
    """Raises MissingDependencyError where the plot could not be drawn: before anything is measured."""
    if not args.no_plot and find_spec("matplotlib") is None:
        raise MissingDependencyError(
            "matplotlib, for the plot, is not installed: pip install 'onnx-fa[plot]', or give --no-plot"
        )
