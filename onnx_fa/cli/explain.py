"""`onnx-fa explain`: every attention of a model, and every softmax left alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_fa.cli.outputs import check_outputs, print_result, write_json
from onnx_fa.cli.printing import print_beside
from onnx_fa.files import write_whole
from onnx_fa.printable import printable
from onnx_fa.tables import text_table

if TYPE_CHECKING:
    from onnx_fa.spec.attention import AttentionSpec


def run_explain(args: argparse.Namespace) -> None:
    from onnx_fa.forms.rewrite import explain as find

    check_outputs(args, texts=[args.report], files=[args.html])
    if args.html:
        from onnx_fa.explainer.page import page

        report, html = page(args.model, Path(args.model).name)
        write_whole(args.html, html)
    else:
        report = find(args.model, passes=True)
    if args.report:
        write_json(args.report, report.to_dict())
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
        print_result(args, text_table(head, rows))
    for reason in dict.fromkeys(s.passes.reason for s in report.sites if s.passes and s.passes.reason):
        print_result(args, printable(reason))
    print_beside(args, report.sites)
    print_result(args, f"{len(rows)} attention site{'s' * (len(rows) != 1)} found, {len(report.misses)} left alone")
    if linear := report.linear_attentions:
        print_result(args, f"{len(linear)} LinearAttention, without scores to rewrite; compile gives each a kernel")
    if report.misses:
        print_result(
            args, "\n" + text_table(("left alone", "op", "reason"), [(m.node, m.op, m.reason) for m in report.misses])
        )


def _spec_cells(spec: AttentionSpec) -> tuple[str, ...]:
    from onnx_fa.spec.words import score_words, shape_words

    q, k, v, out = map(shape_words, spec.canonical_shapes)
    mask = ", ".join(score_words(spec)) or "none"
    layouts = " ".join("".join(map(str, p)) for p in (spec.q_layout, spec.k_layout, spec.v_layout, spec.o_layout))
    return f"{q} -> {out}", f"{k}, {v}", f"{spec.scale:.6g}", mask, spec.empty_row, layouts
