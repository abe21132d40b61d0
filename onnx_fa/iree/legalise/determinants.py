"""Det of small matrices by their minors. IREE eliminates without choosing pivots: NaN where one is 0."""

from __future__ import annotations

import numpy as np
import onnx

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.writer import GraphWriter

_MOST = 3


def determinant(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Raises ModelError for matrices of more than three rows, or of a number that only a run knows."""
    shape, hint = g.shape(node.input[0]), node.name or "Det"
    size = shape[-1] if shape else None
    if not isinstance(size, int) or not 0 < size <= _MOST:
        raise ModelError(f"node {node.name!r}: Det of more than {_MOST} rows: IREE's divides by pivots that may be 0")

    def minor(rows: list[int], columns: list[int], out: str | None = None) -> str:
        if len(rows) == 1:
            return element(rows[0], columns[0], out)
        total = ""
        for n, column in enumerate(columns):
            rest = minor(rows[1:], [c for c in columns if c != column])
            last = out if n == len(columns) - 1 else None
            part = g.add("Mul", [element(rows[0], column), rest], hint)
            total = g.add("Sub" if n % 2 else "Add", [total, part], hint, out=last) if total else part
        return total

    def element(row: int, column: int, out: str | None = None) -> str:
        at = (g.const(np.array(n, np.int64), hint) for n in (row, column))
        line = g.add("Gather", [node.input[0], next(at)], hint, axis=len(shape or []) - 2)
        return g.add("Gather", [line, next(at)], hint, out=out, axis=len(shape or []) - 2)

    places = list(range(size))
    minor(places, places, node.output[0])
    return True
