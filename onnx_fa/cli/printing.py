"""What several commands print: sites, notes, what was left alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from onnx_fa.cli.outputs import print_result
from onnx_fa.errors import LeftAloneError
from onnx_fa.printable import printable, printable_lines
from onnx_fa.spec.target import Target
from onnx_fa.tables import text_table

if TYPE_CHECKING:
    from onnx_fa.forms.report import SiteReport
    from onnx_fa.iree.kernel_report import LinearAttentionReport, LinearReport, NormReport
    from onnx_fa.kernels.tiles.origin import Origin
    from onnx_fa.match.misses import Miss

_NODES_SHOWN = 3
"""Names of nodes in one line, where there may be hundreds."""


def note(args: argparse.Namespace, message: str) -> None:
    """Progress and summaries go to standard error; -q silences them."""
    if args.verbose >= 0:
        print(printable_lines(message), file=sys.stderr, flush=True)


def note_left_alone(args: argparse.Namespace, misses: Sequence[Miss]) -> None:
    """Why each was left alone: a line per reason, with the nodes that it holds for (with -v all of them)."""
    nodes: dict[str, list[str]] = {}
    for miss in misses:
        nodes.setdefault(miss.reason, []).append(f"{miss.node} ({miss.op})")
    for reason, names in nodes.items():
        shown = names if args.verbose > 0 else names[:_NODES_SHOWN]
        more = f" and {len(names) - len(shown)} more" * (len(names) > len(shown))
        note(args, printable(f"left alone: {', '.join(shown)}{more}: {reason}"))


def check_strict(args: argparse.Namespace, misses: Sequence[Miss]) -> None:
    """Raises LeftAloneError with --strict where anything was left alone."""
    if args.strict and misses:
        first = misses[0]
        raise LeftAloneError(
            f"--strict: {len(misses)} left alone, the first: {first.node} ({first.op}): {first.reason}"
        )


def print_sites(args: argparse.Namespace, sites: Sequence[SiteReport]) -> None:
    def cell(value: object) -> str:
        words: dict[object, str] = {None: "?", True: "yes", False: "NO"}
        return words[value] if value is None or isinstance(value, bool) else str(value)

    rows = [
        (
            s.name,
            s.variant,
            cell(s.fused),
            cell(s.dispatches),
            cell(s.largest_buffer_bytes),
            tile_words(s),
        )
        for s in sites
    ]
    print_result(
        args,
        text_table(("site", "variant", "fused", "dispatches", "largest buffer", "tiles"), rows)
        if rows
        else "no attention sites",
    )
    by_tuning: dict[str, list[str]] = {}
    for s in sites:
        by_tuning.setdefault(s.tuning or "?", []).append(s.name)
    for tuning, names in by_tuning.items():
        print_result(args, printable(f"tiles of {', '.join(names)}: {tuning}"))
    print_beside(args, sites)


def print_linear(args: argparse.Namespace, sites: Sequence[LinearReport]) -> None:
    """A table of the linear sites, those that are alike in one row."""
    from onnx_fa.iree.kernel_report import grouped
    from onnx_fa.spec.linear_words import follows, weight_words

    rows = [
        (len(g.names), g.size, weight_words(g.spec), ", ".join(follows(g.spec)) or "-", g.maker, _tiles(g.origin))
        for g in grouped(sites)
    ]
    head = ("linear sites", "rows x K x N", "weight", "then", "kernel", "tiles")
    print_result(args, text_table(head, rows) if rows else "no linear sites")
    sizes: dict[tuple[str, str], list[str]] = {}
    for g in grouped(sites):
        if g.origin.tuning:
            sizes.setdefault(("tiles of" if g.kernel else "the compiler's for", g.origin.tuning), []).append(g.size)
    for (what, tuning), of in sizes.items():
        print_result(args, printable(f"{what} {', '.join(dict.fromkeys(of))}: {tuning}"))


def _tiles(origin: Origin) -> str:
    return " ".join(f"{k}={v}" for k, v in origin.tiles) or "-"


def origin_words(origin: Origin) -> str:
    """Tiles and where they are from, behind the name of a kernel; "" where nothing is known."""
    return "".join(f"; {words}" for words in (_tiles(origin) if origin.tiles else "", origin.tuning) if words)


def print_norms(args: argparse.Namespace, sites: Sequence[NormReport]) -> None:
    """A table of the norms that may have kernels, those that are alike in one row."""
    from onnx_fa.iree.kernel_report import grouped
    from onnx_fa.spec.norm_words import norm_kind

    if rows := [(len(g.names), g.size, g.spec.dtype, norm_kind(g.spec), g.maker) for g in grouped(sites)]:
        print_result(args, text_table(("norms", "rows x N", "type", "kind", "kernel"), rows))


def print_linear_attention(args: argparse.Namespace, sites: Sequence[LinearAttentionReport]) -> None:
    """A table of the linear attentions, those that are alike in one row."""
    from onnx_fa.iree.kernel_report import grouped
    from onnx_fa.spec.linear_attention import rule_words

    if rows := [(len(g.names), g.size, rule_words(g.spec), g.maker) for g in grouped(sites)]:
        print_result(args, text_table(("linear attentions", "states x D x Dv", "rule", "kernel"), rows))


def tile_words(site: SiteReport) -> str:
    return " ".join(f"{k}={v}" for k, v in (site.tiles or {}).items()) or "?"


def print_beside(args: argparse.Namespace, sites: Sequence[SiteReport]) -> None:
    for s in sites:
        if s.beside:
            print_result(args, printable(f"{s.name}: {s.beside}"))


def print_lossy(args: argparse.Namespace, target: Target, sites: Sequence[SiteReport]) -> None:
    """What an option that changes results came to."""
    if word := target.lossy:
        count = sum(word in s.lossy for s in sites)
        told = f"; `onnx-fa verify --{word.replace(' ', '-')}` says how far outputs move" * bool(count)
        note(args, f"{word} in {count} sites{told}")
