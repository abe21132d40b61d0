"""Which branch of an If gives its results in every run: by shapes, also where the condition asks whether a tensor has no elements.

Array libraries guard a product or a maximum against empty operands: `If(size(a) * size(b) == 0)` fills a result of the right shape.
Where the branch for operands with elements gives the same for none, or what it gives is not looked at then, it may stand alone.
"""

from __future__ import annotations

import onnx_ir as ir
import sympy

from onnx_fa.graph.dims import Shape
from onnx_fa.graph.lengths import expression, is_never_negative
from onnx_fa.graph.op_kinds import BROADCASTS
from onnx_fa.graph.ops import asks_only, op_of
from onnx_fa.graph.view import GraphView

_MAX_READERS = 64
"""Readers of a result that are looked at."""


def sure_branch(view: GraphView, node: ir.Node) -> ir.Graph | None:
    """The branch of an If that may take its place; None where it is known only at run time which one that is."""
    condition = node.inputs[0]
    if condition is None or not is_computed(condition):
        return None
    then, other = (node.attributes[name].as_graph() for name in ("then_branch", "else_branch"))
    found = _decided(view, condition)
    if found is not None:
        return then if found else other
    empty = _zeros_asked_for(view, condition)
    if not empty or not len(node.outputs) == len(then.outputs) == len(other.outputs):
        return None
    triples = zip(node.outputs, then.outputs, other.outputs, strict=True)
    return other if all(_is_same_when_empty(view, out, a, b, empty) for out, a, b in triples) else None


def is_computed(condition: ir.Value | None) -> bool:
    """Whether the model itself says which branch an If takes, not its caller."""
    return condition is not None and not condition.is_graph_input()


def _decided(view: GraphView, condition: ir.Value) -> bool | None:
    array = view.const(condition)
    if array is not None:
        return bool(array.reshape(-1)[0]) if array.size == 1 else None
    dims = view.dims(condition)
    return bool(dims[0]) if dims is not None and len(dims) == 1 and isinstance(dims[0], int) else None


def _zeros_asked_for(view: GraphView, condition: ir.Value) -> set[sympy.Expr]:
    """The lengths of which one at least is 0 where the condition, `count == 0`, holds."""
    node = view.producer(condition, "Equal")
    if node is None or node.inputs[0] is None or node.inputs[1] is None:
        return set()
    first, second = (view.dims(value) for value in node.inputs if value is not None)
    for count, zero in ((first, second), (second, first)):
        if zero == (0,) and count is not None and len(count) == 1:
            return _factors(count)
    return set()


def _factors(dims: Shape) -> set[sympy.Expr]:
    """The lengths of whose powers the product of dims is one, without those that are never 0; empty where one is not known."""
    found: set[sympy.Expr] = set()
    for dim in dims:
        if dim is None:
            return set()
        for part in sympy.Mul.make_args(sympy.factor(expression(dim))):
            base, power = part.as_base_exp()
            if not (power.is_Integer and power > 0):
                return set()
            if not is_never_negative(base - 1) and not base.is_negative:
                found.add(base)
    return found


def _is_same_when_empty(
    view: GraphView, out: ir.Value, then: ir.Value, other: ir.Value, empty: set[sympy.Expr]
) -> bool:
    """Whether nobody can tell the branches' results apart where one of the lengths is 0."""
    shape = view.shape(then)
    if shape is None or None in shape or shape != view.shape(other):
        return False
    return (
        empty <= _factors(shape)
        or _is_product_of_nothing(view, then, other, empty - _factors(shape))
        or _meets_empty_only(view, out, empty)
    )


def _is_product_of_nothing(view: GraphView, then: ir.Value, other: ir.Value, summed: set[sympy.Expr]) -> bool:
    """Whether `then` is zeros, and `other` a product that sums over axes of these lengths."""
    product, filled = (_made_by(view, value) for value in (other, then))
    if product is None or filled is None or op_of(product) != "MatMul" or op_of(filled) != "Expand":
        return False
    left = view.shape(product.inputs[0])
    return left is not None and summed <= _factors(left[-1:]) and view.scalar(filled.inputs[0]) == 0.0


def _made_by(view: GraphView, value: ir.Value) -> ir.Node | None:
    """The node that makes a value, or what an Identity hands on."""
    source: ir.Value | None = value
    while (node := view.producer(source, "Identity")) is not None:
        source = node.inputs[0]
    return view.producer(source)


def _meets_empty_only(view: GraphView, value: ir.Value, empty: set[sympy.Expr]) -> bool:
    """Whether what a value holds goes into nothing but tensors without elements, where one of the lengths is 0."""
    todo, seen = [value], {value}
    while todo:
        top = todo.pop()
        if top.is_graph_output() or len(seen) > _MAX_READERS:
            return False
        for use in top.uses():
            if asks_only(use.node, use.idx):
                continue
            made = use.node.outputs[0]
            if view.producer(made, "Identity", "Cast", *BROADCASTS) is None:
                return False
            if made not in seen and not empty <= _factors(view.shape(made) or ()):
                seen.add(made)
                todo.append(made)
    return True
