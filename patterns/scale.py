"""Score layers: a constant scalar factor, by Mul or Div, in either operand order."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnx_fa.graph_view import GraphView
from onnx_fa.match import Peel, Scale


def scale(view: GraphView, value: ir.Value) -> Iterator[Peel]:
    node = view.producer(value, "Mul", "Div")
    if node is None:
        return
    a, b = node.inputs
    if a is None or b is None:
        return
    factor = view.scalar(b)
    if factor is not None and _same_rank(view, value, a):
        if node.op_type == "Mul":
            yield Peel(Scale(factor), a)
        elif factor != 0:
            yield Peel(Scale(1.0 / factor), a)
    factor = view.scalar(a)
    if factor is not None and node.op_type == "Mul" and _same_rank(view, value, b):
        yield Peel(Scale(factor), b)


def _same_rank(view: GraphView, out: ir.Value, score: ir.Value) -> bool:
    """A scalar spelled with many dims ([[[[c]]]]) must not raise the score's rank."""
    a, b = view.shape(out), view.shape(score)
    return a is None or b is None or len(a) == len(b)
