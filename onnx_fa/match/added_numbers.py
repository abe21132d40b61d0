"""Whether what a model adds to its scores is numbers, as relative positions are, or may be a mask, which hides keys by -inf.

Scores are products of Q and K, and -inf only where these overflow or are infinite themselves, which a rewrite need not tell from
rows without keys (docs/developer/architecture.md). The same is said here of a product of Q and embeddings of positions that is
moved about before it is added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.moves import MOVES
from onnx_fa.graph.ops import STANDARD, attr_float, op_of, typed_attr
from onnx_fa.graph.view import FLOATS, Array, GraphView
from onnx_fa.match.exprs import Call, Const, Expr
from onnx_fa.match.types import Product

ReadProduct = Callable[[GraphView, ir.Value], Product | None]
MASKING_NUMBER = 1e4
"""A constant of this size may be what masks a score."""
_MAX_VALUES = 64
"""Values that are looked at before the search gives up."""
_PICKS = MOVES | {"Cast", "Dropout", "GatherElements", "GatherND", "Trilu", "Relu", "LeakyRelu", "Neg", "Abs"}
"""Every element of the result is one of the first operand, or zero, or no larger than that."""
_COMBINES = frozenset({"Add", "Sub", "Mul", "Sum", "Max", "Min", "Mean", "Concat"})
"""Infinite only where an operand is, or the arithmetic overflows."""
_BOUNDED = frozenset({"Tanh", "Sigmoid", "Erf", "Sin", "Cos", "Sign", "Softsign", "HardSigmoid"})


def are_numbers(view: GraphView, read_product: ReadProduct, value: Expr) -> bool:
    """Whether no element of a float tensor is -inf by what the model says: all are made of products over two terms or more, of
    constants below MASKING_NUMBER and of arithmetic on these, so that an infinity can only come from an overflow or from an
    infinite operand of a product. False where that cannot be told."""
    return _holds_throughout(value, lambda e: _made_of(view, read_product, e))


def _holds_throughout(value: Expr, further: Callable[[Expr], Sequence[Expr] | None]) -> bool:
    """Whether a value passes, and all that it is made of. `further`: what has to pass for a value to; None where it does not. False
    where that is more than _MAX_VALUES."""
    stack, seen = [value], set[int]()
    while stack:
        e = stack.pop()
        if id(e) in seen:
            continue
        seen.add(id(e))
        found = further(e)
        if found is None or len(seen) > _MAX_VALUES:
            return False
        stack += found
    return True


def _made_of(view: GraphView, read_product: ReadProduct, e: Expr) -> Sequence[Expr] | None:
    """What has to be numbers for `e` to be; None where it may be something else."""
    known = _constant(view, e)
    if known is not None:
        return () if _are_small(known) else None
    if isinstance(e, Const):
        return None
    if isinstance(e, ir.Value):
        product = read_product(view, e)
        if product is not None:
            return _of_product(view, product)
        node = e.producer()
        if node is None or node.domain not in STANDARD:
            return None
        return _of_node(view, node, op_of(node), [i for i in node.inputs if i is not None])
    return _of_op(view, e.op, e.args)


def _of_node(view: GraphView, node: ir.Node, op: str, args: Sequence[ir.Value]) -> Sequence[Expr] | None:
    if op == "Pad":
        mode = typed_attr(node, "mode", ir.AttributeType.STRING)
        if mode is not None and mode.as_string() != "constant":
            return args[:1]
        return (args[0], node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else args[:1]
    if op == "ConstantOfShape":
        filled = node.attributes.get("value")
        return () if filled is None or _are_small(filled.as_tensor().numpy()) else None
    if op == "LeakyRelu" and not abs(attr_float(node, "alpha", 0.01)) < MASKING_NUMBER:
        return None
    return _of_op(view, op, args)


def _of_op(view: GraphView, op: str, args: Sequence[Expr]) -> Sequence[Expr] | None:
    if op == "Cast" and isinstance(args[0], ir.Value) and args[0].dtype == ir.DataType.BOOL:
        return ()
    if op == "Cast" and isinstance(args[0], ir.Value) and args[0].dtype not in FLOATS:
        return None
    if op in _BOUNDED:
        return ()
    if op in _PICKS:
        return args[:1]
    if op in _COMBINES:
        return args
    if op == "Where":
        return args[1:]
    if op == "Div":
        below = _constant(view, args[1])
        small = below is not None and bool((np.abs(below) > 1.0 / MASKING_NUMBER).all())
        return args if small else None
    return None


def _of_product(view: GraphView, product: Product) -> Sequence[Expr] | None:
    """A product over one term alone moves a mask about, as one of ones and a row of it does: its operands are asked."""
    if not math.isfinite(product.factor):
        return None
    left, right = product.letters
    terms = 1
    for dim, letter in zip(product.shapes[0], left, strict=True):
        if letter in right and letter not in product.out:
            terms = terms * dim if isinstance(dim, int) and isinstance(terms, int) else 0
    if terms < 2:
        return product.operands
    return () if not any(_holds_infinities(view, x) for x in product.operands) else None


_SEEN_THROUGH = MOVES | {"Cast", "Dropout", "Concat", "Where", "Add", "Sub", "Mul"}


def _holds_infinities(view: GraphView, value: Expr) -> bool:
    """Whether an operand of a product is made with constants that mask, through ops that keep them."""

    def further(e: Expr) -> Sequence[Expr] | None:
        known = _constant(view, e)
        if known is not None:
            return () if known.dtype.kind in "iub" or _are_small(known) else None
        if isinstance(e, Call):
            return e.args
        node = view.producer(e, *_SEEN_THROUGH) if isinstance(e, ir.Value) else None
        if node is None:
            return ()
        first = 1 if op_of(node) == "Where" else 0
        return [i for i in node.inputs[first:] if i is not None]

    return not _holds_throughout(value, further)


def _constant(view: GraphView, e: Expr) -> Array | None:
    if isinstance(e, Const):
        return e.array
    return view.const(e) if isinstance(e, ir.Value) else None


def _are_small(array: Array) -> bool:
    """Whether all are finite numbers, none of a size that masks scores."""
    return bool((np.abs(array.astype(np.float64)) < MASKING_NUMBER).all())
