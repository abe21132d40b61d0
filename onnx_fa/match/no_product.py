"""Why what reads probabilities is no product of them with V."""

from __future__ import annotations

import onnx_ir as ir

from onnx_fa.graph.ops import FUSED_MATMULS, op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match.hints import refuse_rank, say_sizes
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import Patterns
from onnx_fa.match.walk_up import parse_score

_PRODUCTS = frozenset(["MatMul", "Gemm", "Einsum", *FUSED_MATMULS])
_MAX_NODES = 16
"""Nodes that are looked at above a sum of probabilities, and behind it."""


def refuse_product(view: GraphView, prob: ir.Value, node: ir.Node) -> NoMatch:
    """The reason why `node`, which reads the probabilities, is no product of them with V."""
    op = op_of(node)
    if op not in _PRODUCTS:
        return NoMatch(f"the softmax result feeds {op}, not a matmul with V", node)
    for value in [x for x in node.inputs[:2] if x is not None]:
        if view.shape(value) is None:
            return refuse_rank(view, "the probabilities" if value is prob else "V", value, node)
    shapes = [list(view.shape(x) or ()) for x in node.inputs if x is not None]
    if op == "Einsum":
        equation = node.attributes["equation"].as_string()
        hint = say_sizes(view, [d for shape in shapes for d in shape])
        what = f"an Einsum {equation!r} of {' and '.join(map(str, shapes))} is no product of the probabilities with V alone"
        return NoMatch(f"{what} that sums over keys provably as many{hint}", node)
    if op == "Gemm":
        return NoMatch(
            "the product of the probabilities with V is a Gemm that adds its C, too; write C as an Add behind it", node
        )
    short = next((shape for shape in shapes if len(shape) < 2), None)
    if short is not None:
        return NoMatch(
            f"the probabilities are multiplied by a vector {short}, not by V, which has an axis of its own", node
        )
    return NoMatch(
        f"the softmax result feeds a {op} whose transBatch attributes move the batch dims; write them as a Transpose",
        node,
    )


def refuse_combined(view: GraphView, patterns: Patterns, node: ir.Node) -> NoMatch | None:
    """Why the sum or difference of two softmaxes that `node` makes could not be parted into two products with V (`distribute`).
    None where it is none."""
    softmaxes = [_softmax_above(i) for i in node.inputs]
    first, second = softmaxes if len(softmaxes) == 2 else (None, None)
    if op_of(node) not in ("Sub", "Add") or first is None or second is None:
        return None
    what = "difference of two softmaxes (differential attention)" if op_of(node) == "Sub" else "sum of two softmaxes"
    for softmax in (first, second):
        scores = softmax.inputs[0]
        assert scores is not None, "a Softmax has an input"
        try:
            parse_score(view, scores, patterns)
        except NoMatch as e:
            label = softmax.name or f"Softmax:{softmax.outputs[0].name}"
            return NoMatch(
                f"V is multiplied by the {what}, of which {label} is no attention by itself: {e.reason}", node
            )
    return NoMatch(f"the {what} {_name_readers(view, node.outputs[0])}", node)


def _softmax_above(value: ir.Value | None) -> ir.Node | None:
    """The softmax that makes the value, or one of the factors of a product of few."""
    stack, seen = [value], {value}
    while stack and len(seen) <= _MAX_NODES:
        node = value.producer() if (value := stack.pop()) is not None else None
        if node is not None and op_of(node) == "Softmax":
            return node
        above = [i for i in dict.fromkeys(node.inputs) if i not in seen] if node and op_of(node) == "Mul" else []
        seen.update(above)
        stack += above
    return None


def _name_readers(view: GraphView, value: ir.Value) -> str:
    """What stands behind a sum of probabilities in the way of a product with V for each of them."""
    for _ in range(_MAX_NODES):
        readers = view.users(value)
        if value.is_graph_output():
            return "is an output of the model too, so that it cannot be parted into two attentions"
        if len(readers) != 1:
            names = ", ".join(r.name or r.op_type for r in readers[:3]) or "nothing"
            return f"is read by {names}, not by one product with V, so that it cannot be parted into two attentions"
        if op_of(readers[0]) in _PRODUCTS or not readers[0].outputs:
            break
        value = readers[0].outputs[0]
    return "multiplies V, and cannot be parted into two attentions"
