"""In which order a product of batches reads its left operand, where the compiler packs it together with what turns its axes.

Packed from memory that has the axes (K, B, M), that is, what is summed outermost and rows innermost around the batches, an operand
(B, M, K) is wrong in every batch but the first where its rows do not fill their last tile, silently (packed_turned.mlir). Right
operands are not, nor left ones in the other five orders. Axes of one element do not count; of a Reshape nobody says here which axes
it keeps, so in front of one every order counts as wrong whose outermost axis and whose innermost one are both moved.
"""

from __future__ import annotations

import onnx

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.repeated_letters import equation_of
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

Order = tuple[int, ...]
"""Of each axis of an operand, in the order (B.., M.., K..), which axis of a value it is."""
RESHAPING = frozenset(("Reshape", "Squeeze", "Unsqueeze"))


def first_order(g: GraphWriter, product: onnx.NodeProto) -> Order | None:
    """The left operand's of a MatMul or Einsum; None where its shape is unknown, or an Einsum has no batches or implicit axes."""
    shape = g.shape(product.input[0])
    if shape is None:
        return None
    if op_of(product) == "MatMul":
        return tuple(range(len(shape)))
    given, arrow, result = equation_of(product).partition("->")
    left, _, right = given.partition(",")
    if not arrow or "." in given or len(left) != len(shape):
        return None
    batches = [i for i, c in enumerate(left) if c in right and c in result]
    rows = [i for i, c in enumerate(left) if c not in right]
    summed = [i for i, c in enumerate(left) if c in right and c not in result]
    return (*batches, *rows, *summed) if batches else None


def turn_operand(g: GraphWriter, product: onnx.NodeProto) -> None:
    """Where an Einsum itself turns its left operand in a way that is wrong, a Transpose does in its place, which can be computed
    first."""
    order, value = first_order(g, product), product.input[0]
    if op_of(product) != "Einsum" or order is None or not is_turned(g, value, order):
        return
    shape, equation = g.shape(value), equation_of(product)
    assert shape is not None
    turned = g.add("Transpose", [value], f"{value}/turned", perm=list(order))
    product.input[0] = g.typed(turned, g.kind(value), [shape[axis] for axis in order])
    left, rest = equation.split(",", 1)
    attribute = next(a for a in product.attribute if a.name == "equation")
    attribute.s = f"{''.join(left[axis] for axis in order)},{rest}".encode()


def order_in_front(g: GraphWriter, node: onnx.NodeProto, source: str, order: Order) -> Order | None:
    """The order of one that a node makes by which it reads its operand `source`; None where none is known."""
    shape = g.shape(source)
    if shape is None:
        return None
    if op_of(node) == "Transpose":
        perm = attr_of(node, "perm", None) or tuple(reversed(range(len(shape))))
        return tuple(perm[axis] for axis in order)
    if op_of(node) in RESHAPING or len(shape) != len(order):
        return tuple(range(len(shape)))
    return order


def is_turned(g: GraphWriter, value: str, order: Order) -> bool:
    """Whether neither the outermost nor the innermost axis of a value stays where it is. A value of two axes has no batches."""
    shape = g.shape(value)
    long = [axis for axis in order if shape is None or shape[axis] != 1]
    return len(long) > 2 and long[0] != min(long) and long[-1] != max(long)
