"""Readers that ask the scores or the probabilities of a site only for their shape or type, which others can tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.dims import broadcast_parts, factors_of
from onnx_fa.graph.moves import EACH_ONCE
from onnx_fa.graph.ops import DEQUANTIZE, QUANTIZE, attr_int, op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match.axes import broadcast_sizes
from onnx_fa.match.exprs import Call, Const, Expr, values_of
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import Match
from onnx_fa.spec.terms import Dim


def find_asked(
    view: GraphView, match: Match, qk: ir.Node, outputs: Sequence[ir.Value]
) -> tuple[tuple[ir.Node, Expr], ...]:
    """The nodes that ask what is computed from the product of Q and K for its shape or type, and what they are told instead, so
    that nothing keeps the scores. `outputs` are the values that the site makes, which go on to exist. Raises NoMatch for a shape
    that the operands do not tell."""
    above, last = _computed_from(qk), match.output.producer()
    sources = [x for value in values_of(*match.operands) if value in above for x in _moved_from(view, value)]
    found: list[tuple[ir.Node, Expr]] = []
    for value in _made_from(view, qk, outputs):
        for node in view.asking(value):
            if node.graph is not qk.graph:
                raise NoMatch("a subgraph asks for the shape of the scores", node)
            if last is not None and last.graph is not node.graph:
                raise NoMatch(
                    "the product with V lies in a branch of an If, before which the shape of scores or probabilities is asked for; "
                    "an export without that If makes one attention of them",
                    node,
                )
            if op_of(node) == "CastLike":
                found.append((node, _cast(node, value)))
            else:
                found.append((node, _shape(view, node, value, sources)))
    return tuple(found)


def _made_from(view: GraphView, qk: ir.Node, outputs: Sequence[ir.Value]) -> list[ir.Value]:
    """The scores, and what lies between them and the outputs, without the outputs."""
    found: dict[ir.Value, None] = {}
    stack = [p for out in outputs if (p := out.producer()) is not None]
    seen: set[ir.Node] = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        found |= dict.fromkeys(o for o in node.outputs if o not in outputs)
        if node is not qk:
            above = [i for i in node.inputs if i is not None and view.depends(i, qk)]
            stack += [p for i in above if (p := i.producer()) is not None]
    return list(found)


def _computed_from(qk: ir.Node) -> set[ir.Value]:
    """The values that the product of Q and K is computed from."""
    stack, found = list(qk.inputs), set[ir.Value]()
    while stack:
        value = stack.pop()
        if value is None or value in found:
            continue
        found.add(value)
        node = value.producer()
        stack += node.inputs if node is not None else ()
    return found


def _moved_from(view: GraphView, value: ir.Value | None) -> Iterator[ir.Value]:
    """The value, and those whose axes are moved to make it: heads that an operand has in one axis with the batch are two there.
    Quantisers put a rounding behind every move."""
    while value is not None:
        yield value
        node = view.producer(value, *EACH_ONCE, *QUANTIZE, *DEQUANTIZE)
        value = node.inputs[0] if node is not None else None


def _cast(node: ir.Node, value: ir.Value) -> Expr:
    source = node.inputs[0]
    if value.dtype is None or source is None:
        raise NoMatch("the type of the scores is not known", node)
    return Call("Cast", (source,), (("to", value.dtype.value),))


def _shape(view: GraphView, node: ir.Node, value: ir.Value, sources: Sequence[ir.Value]) -> Expr:
    shape = view.shape(value)
    if shape is None:
        raise NoMatch("the shape of the scores is asked for, and not known", node)
    if op_of(node) == "Size":
        parts = [_dim(view, node, d, sources) for d in shape]
        axes = (("keepdims", 0),)
        return Call("ReduceProd", (Call("Concat", tuple(parts), (("axis", 0),)),), axes)
    cut = shape[attr_int(node, "start", 0) : attr_int(node, "end", len(shape))]
    if all(isinstance(d, int) for d in cut):
        return Const(np.asarray(cut, np.int64))
    parts = [_dim(view, node, d, sources) for d in cut]
    return parts[0] if len(parts) == 1 else Call("Concat", tuple(parts), (("axis", 0),))


def _dim(view: GraphView, node: ir.Node, dim: Dim | None, sources: Sequence[ir.Value]) -> Expr:
    """A vector of one element that is the dim."""
    if isinstance(dim, int):
        return Const(np.asarray([dim], np.int64))
    parts = broadcast_parts(dim)
    if len(parts) > 1 and not any(dim in (view.shape(source) or ()) for source in sources):
        return broadcast_sizes([_dim(view, node, part, sources) for part in parts])
    for source in sources:
        shape = view.shape(source) or ()
        if dim is not None and dim in shape:
            at = Const(np.asarray([shape.index(dim)], np.int64))
            return Call("Gather", (Call("Shape", (source,)), at), (("axis", 0),))
    factors = () if dim is None else factors_of(dim)
    if len(factors) > 1:  # heads and batch in one axis, which are two of every operand
        return reduce(lambda a, b: Call("Mul", (a, b)), [_dim(view, node, factor, sources) for factor in factors])
    raise NoMatch("the shape of the scores is asked for, and no operand tells it", node)
