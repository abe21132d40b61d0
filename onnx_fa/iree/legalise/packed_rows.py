"""What a product of batches reads is kept out of the packed layout's dispatch, which is wrong with all but the simplest of it.

On CPUs the compiler packs the operands of products, in the dispatch that computes them. Where that is another product, or spreads
a number over a row, as a norm or a factor of each row does, and the rows do not fill their last tile, all batches but the first
get other numbers, silently (packed_rows.mlir, packed_products.mlir), and so they do where a left operand's axes are turned in some
way (packed_order.py). The compiler does not see through an Apart, so that the operand is computed first and packed by a dispatch of
its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.legalise.packed_order import Order, first_order, is_turned, order_in_front, turn_operand
from onnx_fa.iree.legalise.writer import GraphWriter, declare_own_nodes
from onnx_fa.spec.target import Target

Shape = list[int | str | None] | None
APART = f"{DOMAIN}.Apart"
_PRODUCTS = frozenset(("MatMul", "Einsum"))
ELEMENTWISE = frozenset(
    "Abs Add And Cast Ceil Clip Cos Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf "
    "IsNaN LeakyRelu Less LessOrEqual Log Max Min Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Reshape Round Sigmoid Sign Sin "
    "Softplus Softsign Sqrt Squeeze Sub Sum Tanh Transpose Unsqueeze Where Xor".split()
)
"""What is packed rightly, where no operand is spread, with operators that leave the elements as they are."""
_ALONE = frozenset(("Softmax", "Constant", "ConstantOfShape"))
"""What is right together with a product whatever is in front of it."""


def write_apart(g: GraphWriter, value: str) -> str:
    """The value behind an Apart. Its shape is known."""
    shape = g.shape(value)
    assert shape is not None
    made = g.typed(g.fresh(f"{value}/apart"), g.kind(value), shape)
    g.nodes.append(helper.make_node("Apart", [value], [made], g.fresh(f"{value}/Apart"), domain=DOMAIN))
    return made


def gather_all(g: GraphWriter, value: str) -> str:
    """The value again, by elements that an operation of its own reads: that is computed with nothing in front of it."""
    shape, hint = g.shape(value), f"{value}/gathered"
    assert shape is not None
    axis, size = next(((i, d) for i, d in enumerate(shape) if d != 1), (0, 1))
    if isinstance(size, int):
        places = g.const(np.arange(size, dtype=np.int64), hint)
    else:
        zero, one = (g.const(np.array(n, np.int64), hint) for n in (0, 1))
        own = g.typed(g.add("Shape", [value], hint, start=axis, end=axis + 1), TensorProto.INT64, [1])
        end = g.typed(g.add("Squeeze", [own, g.ints([0], hint)], hint), TensorProto.INT64, [])
        places = g.typed(g.add("Range", [zero, end, one], hint), TensorProto.INT64, [size])
    return g.typed(g.add("Gather", [value, places], hint, axis=axis), g.kind(value), shape)


def write_copy(g: GraphWriter, value: str) -> str:
    """The value in memory of its own, which may be written into: what is behind an Apart alone lies where the value does, and the
    compiler writes into it although others read that. Its shape is known."""
    return gather_all(g, write_apart(g, value))


def keep_rows_apart(
    model: onnx.ModelProto, held: Mapping[str, ir.TensorProtocol] | None = None, *, target: Target | None = None
) -> bool:
    """Puts an Apart in front of each product of batches that would be wrong, in place. Types of values are taken from
    `value_info`. Returns whether there are any in the bodies of other nodes, where the compiler takes no Apart: that program has
    to do without packed layouts."""
    g = GraphWriter(model, held, target=target)
    if g.cpu is None:
        return False
    within = any(_packed_wrongly(body, node) for body in g.bodies() for node in body.graph.node)
    found = {n: _packed_wrongly(g, node) for n, node in enumerate(model.graph.node)}
    if not any(found.values()):
        return within
    for n, node in enumerate(model.graph.node):
        if 0 in found[n]:
            turn_operand(g, node)
        made = {value: write_apart(g, value) for value in dict.fromkeys(node.input[i] for i in found[n])}
        for i in found[n]:
            node.input[i] = made[node.input[i]]
        g.nodes.append(node)
    g.replace_nodes(g.nodes)
    declare_own_nodes(model)
    return within


def _packed_wrongly(g: GraphWriter, node: onnx.NodeProto) -> list[int]:
    """Which operands of a product of batches have to be computed first. One by a matrix is a single product of all rows, unless
    these are turned: then the matrix counts as one for each batch."""
    if op_of(node) not in _PRODUCTS or len(node.input) != 2:
        return []
    left, right = (g.shape(x) for x in node.input)
    if left is None or right is None or (len(left) < 3 and len(right) < 3):
        return []
    if all(d == 1 for d in (*left[:-2], *right[:-2])):
        return []
    orders = first_order(g, node), None
    if op_of(node) == "MatMul" and len(right) < 3:
        return [0] if _is_packed_wrongly(g, node.input[0], orders[0], alone=True) else []
    return [i for i, order in enumerate(orders) if _is_packed_wrongly(g, node.input[i], order)]


def _is_packed_wrongly(g: GraphWriter, value: str, order: Order | None, *, alone: bool = False) -> bool:
    """Whether anything but elementwise ops may be computed together with a value, or its axes are read in an order that is wrong;
    None where any is right. `alone`: what is computed together with it is right."""
    pending, seen = [(value, order)], set[tuple[str, Order | None]]()
    while pending:
        name, read = pending.pop()
        if read is not None and is_turned(g, name, read):
            return True
        node = g.maker(name)
        if node is None or (name, read) in seen:
            continue
        seen.add((name, read))
        op = op_of(node)
        if op in _ALONE or op.startswith(f"{DOMAIN}."):
            continue
        spread = op != "Reshape" and any(_spreads(g.shape(x), g.shape(name)) for x in node.input if x)
        if op not in ELEMENTWISE or spread:
            if alone:
                continue
            return True
        pending += [(x, read if read is None else order_in_front(g, node, x, read)) for x in node.input if x]
    return False


def _spreads(shape: Shape, result: Shape) -> bool:
    """Whether an operand has one number for several of the result's along an axis that both have, but not one in all."""
    if shape is None or result is None or all(d == 1 for d in shape):
        return False
    axes = zip(reversed(shape), reversed(result), strict=False)
    return any(have == 1 and want != 1 for have, want in axes)
