"""What several commands print: sites, notes, reports."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from onnx_fa.files import write_whole
from onnx_fa.printable import printable, printable_lines
from onnx_fa.spec.target import Target
from onnx_fa.tables import text_table

if TYPE_CHECKING:
    from onnx_fa.forms.report import SiteReport


def note(args: argparse.Namespace, message: str) -> None:
    """Progress and summaries go to standard error; -q silences them."""
    if args.verbose >= 0:
        print(printable_lines(message), file=sys.stderr, flush=True)


def write_json(path: str, data: dict[str, Any]) -> None:
    write_whole(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def print_sites(sites: Sequence[SiteReport]) -> None:
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
    print_beside(sites)


def print_beside(sites: Sequence[SiteReport]) -> None:
    for s in sites:
        if s.beside:
            print(printable(f"{s.name}: {s.beside}"))


def print_lossy(args: argparse.Namespace, target: Target, sites: Sequence[SiteReport]) -> None:
    """What an option that changes results came to."""
    if word := target.lossy:
        count = sum(word in s.lossy for s in sites)
        told = f"; `onnx-fa verify --{word.replace(' ', '-')}` says how far outputs move" * bool(count)
        note(args, f"{word} in {count} sites{told}")
