"""Score layers: a factor, by Mul or Div, in either operand order; a constant, or a value of the run with one number per row."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match import Factor, Peel, Scale


def peel_scale(view: GraphView, value: ir.Value) -> Iterator[Peel]:
    """score * c, c * score, score / c and -score, where c is one constant, or has one number per row."""
    node = view.producer(value, "Mul", "Div", "Neg")
    if node is None or node.inputs[0] is None:
        return
    if op_of(node) == "Neg":
        yield Peel(Scale(-1.0), node.inputs[0])
        return
    a, b = node.inputs
    if a is None or b is None:
        return
    for score, other in ((a, b), (b, a)):
        if not _same_rank(view, value, score) or (op_of(node) == "Div" and score is b):
            continue
        factor = view.scalar(other)
        if factor is None and view.const(score) is None and _one_per_row(view, other):
            yield Peel(Factor(other, op_of(node) == "Div"), score)
        elif factor is not None and op_of(node) == "Mul":
            yield Peel(Scale(factor), score)
        elif factor:
            yield Peel(Scale(1.0 / factor), score)


def _one_per_row(view: GraphView, value: ir.Value) -> bool:
    shape = view.shape(value)
    return shape is not None and shape[-1:] in ((), (1,))


def _same_rank(view: GraphView, out: ir.Value, score: ir.Value) -> bool:
    """A scalar spelled with many dims ([[[[c]]]]) must not raise the score's rank."""
    a, b = view.shape(out), view.shape(score)
    return a is None or b is None or len(a) == len(b)
