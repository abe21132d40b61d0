"""`onnx-fa cases`: the sites that `tune`, `bench` and `verify` take by name."""

from __future__ import annotations

import argparse

from onnx_fa.tables import text_table


def list_cases(args: argparse.Namespace) -> None:
    from onnx_fa.spec.linear import LinearSpec
    from onnx_fa.spec.site_case import ALL

    rows = []
    for case in ALL:
        kind = "linear" if isinstance(case.spec, LinearSpec) else "attention"
        if args.kind in (None, kind) and set(args.tag) <= case.tags:
            rows.append((case.name, kind, case.title, " ".join(sorted(case.tags))))
    print(text_table(("case", "kind", "what", "tags"), rows))
