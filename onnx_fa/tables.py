"""Tables of text, for a terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_fa.printable import printable


def text_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their longest cell, two spaces apart, with a rule under the head."""
    cells = [[printable(c) for c in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells]
    return "\n".join([lines[0], "  ".join("-" * w for w in widths), *lines[1:]])


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(printable(c).replace("|", "\\|") for c in row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "| " + " | ".join("---" for _ in head) + " |", *lines[1:]])
