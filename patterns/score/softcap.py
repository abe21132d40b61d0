"""Score layer: c * tanh(x / c), with the division spelled Div or Mul by the reciprocal."""

from __future__ import annotations

import math
from collections.abc import Iterator

import onnx_ir as ir

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match import Cap, Peel


def peel_softcap(view: GraphView, value: ir.Value) -> Iterator[Peel]:
    """c * tanh(x / c) with one constant c. A negative c is the same as its absolute value."""
    mul = view.producer(value, "Mul")
    if mul is None:
        return
    for inner, factor in (mul.inputs, reversed(mul.inputs)):
        cap = view.scalar(factor)
        tanh = view.producer(inner, "Tanh")
        if cap is None or tanh is None:
            continue
        div = view.producer(tanh.inputs[0], "Div", "Mul")
        if div is None:
            continue
        for score, by in (div.inputs, reversed(div.inputs)) if op_of(div) == "Mul" else (tuple(div.inputs),):
            c = view.scalar(by)
            if c and score is not None and math.isclose(1 / c if op_of(div) == "Mul" else c, cap, rel_tol=1e-6):
                yield Peel(Cap(abs(cap)), score)  # tanh is odd
