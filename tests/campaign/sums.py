"""A reading of sums of exponentials and of masked probabilities, which divide these (tests/campaign/readings.py)."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h

from .changes import MOVES, PRODUCTS, ROUNDS, Graph, asks_for_nan


def divides_anew(g: Graph, node: onnx.NodeProto, own: str, kind: int) -> str | None:
    """Exponentials or masked probabilities by their sum, before or behind the product with V, are the softmax of what the mask
    keeps, also where that sum is nothing, infinite or NaN."""
    if node.op_type not in ("Div", "Mul"):
        return None
    pairs = [tuple(node.input), tuple(reversed(node.input))]
    for divided, by in pairs[: 1 + (node.op_type == "Mul")]:
        total = by if node.op_type == "Div" else _inverted(g, by)
        summed = _summed(g, total)
        multiples = _multiples(g, summed.input[0]) if summed is not None else set[str]()
        if total is None or summed is None or divided not in multiples:
            continue
        axis, logits = _axis(g, summed), _logits(g, summed.input[0])
        if logits is None or axis is None or (g.opset < 13 and axis != -1):
            return None
        least = float(np.finfo(np.float16 if kind == T.FLOAT16 else h.tensor_dtype_to_np_dtype(g.widest)).tiny) * 16
        sums = g.wide(total)
        some = g.op("And", g.op("Greater", sums, g.wide_number(least)), g.op("Less", sums, g.wide_number(np.inf)))
        kept = g.op("Cast", g.op("Softmax", g.wide(logits), axis=axis), to=g.types.get(summed.input[0], kind))
        return g.op("Where", some, own, _remade(g, divided, summed.input[0], kept, multiples))
    return None


def _multiples(g: Graph, source: str) -> set[str]:
    """The source and what is made of it by moving, rounding, masking and multiplying it by something else, such as V."""
    found = {source}
    for node in g.model.graph.node:
        of = [i for i, x in enumerate(node.input) if x in found]
        if len(of) != 1 or node.domain not in ("", "com.microsoft"):
            continue
        rest = [g.constants.get(x) for i, x in enumerate(node.input) if i not in (0, *of)]
        is_masked = node.op_type == "Where" and of != [0] and all(x is not None and not x.any() for x in rest)
        is_product = node.op_type == "Mul" or (node.op_type in PRODUCTS and len(node.input) == 2)
        if is_masked or is_product or (node.op_type in (*MOVES, *ROUNDS) and of == [0]):
            found.add(node.output[0])
    return found


def _remade(g: Graph, value: str, source: str, other: str, multiples: set[str]) -> str:
    """A multiple of the source as one of another."""
    if value == source:
        return other
    node = g.made[value]
    return g.again(node, *(_remade(g, x, source, other, multiples) if x in multiples else x for x in node.input))


def _inverted(g: Graph, value: str) -> str | None:
    node = g.producer(value, "Reciprocal")
    return None if node is None else node.input[0]


def _summed(g: Graph, value: str | None) -> onnx.NodeProto | None:
    return g.producer(_in_front_of_moves(g, value), "ReduceSum")


def _in_front_of_moves(g: Graph, value: str | None) -> str | None:
    """What a value is before it is moved and rounded."""
    while (node := g.producer(value, *MOVES, *ROUNDS)) is not None:
        value = node.input[0]
    return value


def _axis(g: Graph, node: onnx.NodeProto) -> int | None:
    axes = next((list(a.ints) for a in node.attribute if a.name == "axes"), None)
    if len(node.input) > 1 and node.input[1] in g.constants:
        axes = [int(x) for x in g.constants[node.input[1]].reshape(-1)]
    return axes[0] if axes is not None and len(axes) == 1 else None


def _logits(g: Graph, p: str) -> str | None:
    """Numbers of whose exponentials `p` is a multiple per row, -inf where a mask made zeros."""
    node = g.made.get(p)
    if node is None or node.domain:
        return None
    if node.op_type == "Softmax":
        return node.input[0]
    if node.op_type == "Exp":
        inner = g.producer(node.input[0], "Sub", "LogSoftmax")
        if inner is not None and (inner.op_type == "LogSoftmax" or _is_of_a_row(g, inner.input[1])):
            return inner.input[0]
        return node.input[0]
    if node.op_type == "Where":
        return _kept(g, node)
    if node.op_type in ("Mul", "Div"):
        return _times(g, node)
    inside = _logits(g, node.input[0]) if node.op_type in (*MOVES, *ROUNDS) else None
    if inside is None or node.op_type in ROUNDS:
        return inside
    return g.again(node, inside, *node.input[1:])


def _is_of_a_row(g: Graph, value: str) -> bool:
    """Whether the value is a maximum or a log-sum-exp: what else is subtracted may be a mask."""
    return g.producer(_in_front_of_moves(g, value), "ReduceMax", "ReduceLogSumExp") is not None


def _kept(g: Graph, node: onnx.NodeProto) -> str | None:
    condition, yes, no = node.input
    for p, keeps in ((yes, True), (no, False)):
        inside = _logits(g, p)
        if inside is not None:
            if asks_for_nan(g, condition):
                return inside
            pair = (g.wide(inside), g.wide_number(-np.inf))
            return g.op("Where", condition, *(pair if keeps else reversed(pair)))
    return None


def _times(g: Graph, node: onnx.NodeProto) -> str | None:
    a, b = node.input
    if node.op_type == "Div" or _inverted(g, b) is not None:
        return _logits(g, a)
    for p, mask in ((a, b), (b, a)):
        inside = _logits(g, p)
        if inside is not None:
            return g.op("Where", g.op("Cast", mask, to=T.BOOL), g.wide(inside), g.wide_number(-np.inf))
    return None
