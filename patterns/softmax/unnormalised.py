"""Attention that no softmax over keys describes. It is named, so that nobody looks for it in vain, and left as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnx_fa.graph.moves import REGROUPS
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match import After, Anchor, NoMatch
from onnx_fa.patterns.softmax import in_place, rows
from onnx_fa.spec.terms import Dim

_BETWEEN = frozenset("Add Sub Mul Div Pow Where Cast Identity Dropout Reshape Clip".split())
_MAX_NODES = 32
"""Nodes between two products that are looked at."""


def refuse_unnormalised(view: GraphView, node: ir.Node) -> Anchor | None:
    """Raises NoMatch, at the product with V, for an attention without a softmax whose weights are the scores themselves, or no
    known function of theirs; None for every other node."""
    if op_of(node) != "MatMul" or view.producer(node.outputs[0]) is None:
        return None
    value = node.inputs[0]
    inner = _product(view, value, steps=4, between=_BETWEEN | in_place.FUNCTIONS)
    if inner is None or not in_place.is_of_the_run(view, node.inputs[1]) or not _is_transposed(view, inner.inputs[1]):
        return None
    shape = view.shape(node.inputs[1])
    if shape is None or len(shape) < 3:
        raise NoMatch("attention without softmax, whose V has no batch rows or heads of its own")
    between = list(_nodes_between(view, value, inner))
    if any(in_place.find_weights(view, n) or in_place.find_shares(view, n) for n in between):
        return None
    if any(_bends(view, n, inner) for n in between):
        raise NoMatch("attention without softmax, whose weights are no known function of one score")
    raise NoMatch(
        "attention without softmax (linear attention): nothing bends its scores, so that K^T V may come first"
    )


def _nodes_between(view: GraphView, value: ir.Value | None, product: ir.Node) -> Iterator[ir.Node]:
    """The nodes that make `value` of a product."""
    stack, seen = [value], {value}
    while stack and len(seen) < _MAX_NODES:
        at = stack.pop()
        node = view.producer(at)
        if node is None or at is None or node is product or not view.depends(at, product):
            continue
        yield node
        new = [i for i in node.inputs if i is not None and i not in seen]
        seen.update(new)
        stack += new


def _bends(view: GraphView, node: ir.Node, product: ir.Node) -> bool:
    """Whether a node makes something else than a linear function of the scores."""
    if op_of(node) in in_place.FUNCTIONS | {"Pow", "Max", "Min"}:
        return True
    reads = [i for i in node.inputs if i is not None and view.depends(i, product)]
    return len(reads) > 1 or any(i.dtype == ir.DataType.BOOL for i in reads)


def refuse_mixed_scores(view: GraphView, node: ir.Node) -> Anchor | None:
    """Raises NoMatch for a softmax of scores that a product mixes between heads (talking heads)."""
    value = node.inputs[0] if view.producer(node.outputs[0], "Softmax") is node else None
    for _ in range(8):
        inner = view.producer(value)
        if inner is None or value is None:
            return None
        if op_of(inner) in ("MatMul", "Einsum", "Conv"):
            weights = [i for i in inner.inputs[:2] if not _at_run_time(view, i)]
            rest = [i for i in inner.inputs[:2] if _at_run_time(view, i)]
            shape = view.shape(weights[0]) if weights else None
            square = shape is not None and len(shape) > 1 and shape[0] == shape[1] != 1
            if square and len(rest) == 1 and _product(view, rest[0], between=_BETWEEN | REGROUPS) is not None:
                raise NoMatch("the scores of different heads are mixed (talking heads)", inner)
            return None
        if op_of(inner) not in _BETWEEN | REGROUPS:
            return None
        value = inner.inputs[0]
    return None


def refuse_mixed_heads(view: GraphView, found: Anchor, value: ir.Value, users: Sequence[ir.Node]) -> After | None:
    """Raises NoMatch for probabilities that a product mixes between heads (talking heads), or of which only the largest stay."""
    shape = view.shape(value)
    heads = shape[-3] if shape is not None and len(shape) > 2 else None
    for user in users:
        readers = [user] if op_of(user) != "Transpose" else view.users(user.outputs[0])
        for product in readers:
            if op_of(product) not in ("MatMul", "Einsum"):
                continue
            if any(_mixes(view, i, heads) for i in product.inputs):
                raise NoMatch("the probabilities of different heads are mixed (talking heads)", product)
        weight = view.shape(user.inputs[1]) if op_of(user) == "Conv" else None
        # Where fewer channels come out, the convolution sums over them, as over the bins of a distance in detectors.
        if weight is not None and (heads is None or weight[0] == heads):
            raise NoMatch("the probabilities of different heads or keys are mixed by a convolution", user)
    return None


def _mixes(view: GraphView, value: ir.Value | None, heads: Dim | None) -> bool:
    """Whether a matmul's operand is a weight from heads to heads."""
    return not _at_run_time(view, value) and heads is not None and heads != 1 and view.shape(value) == (heads, heads)


def _product(
    view: GraphView, value: ir.Value | None, steps: int = 8, between: frozenset[str] = _BETWEEN
) -> ir.Node | None:
    """The matmul of two values of the run that `value` is made from by elementwise ops."""
    for _ in range(steps):
        node = view.producer(value)
        if node is None:
            return None
        if op_of(node) == "MatMul":
            return node if _at_run_time(view, node.inputs[0]) and _at_run_time(view, node.inputs[1]) else None
        if op_of(node) not in between:
            return None
        inputs = [i for i in node.inputs if i is not None and view.const(i) is None and i.dtype != ir.DataType.BOOL]
        if not inputs:
            return None
        value = inputs[0]
    return None


def _at_run_time(view: GraphView, value: ir.Value | None) -> bool:
    """Whether a value is no weight: neither constant nor a constant that is only cast or moved."""
    while value is not None:
        if value.const_value is not None and not value.is_graph_input():
            return False  # asked first: evaluating a weight would read it from its file
        if view.const(value) is not None:
            return False
        node = view.producer(value, "Cast", "Identity", "Transpose", "Reshape", "DequantizeLinear")
        if node is None:
            return True
        value = node.inputs[0]
    return False


def _is_transposed(view: GraphView, value: ir.Value | None) -> bool:
    """Whether the last two axes of a matmul's right operand were swapped, as K's are."""
    node = view.producer(rows.plain(view, value))
    for _ in range(4):
        if node is None:
            return False
        if op_of(node) == "Transpose" and "perm" in node.attributes:
            perm = list(node.attributes["perm"].as_ints())
            return len(perm) > 2 and perm.index(len(perm) - 1) != len(perm) - 1
        if op_of(node) not in ("Mul", "Div", "Reshape", "Cast", "Identity"):
            return False
        node = view.producer(node.inputs[0])
    return False
