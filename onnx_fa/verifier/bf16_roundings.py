"""Which roundings to bf16 a model's results cannot do without: those that come before any arithmetic on its data.

Masks, positions, rotations and scales are computed from integers, numbers and constants of f32, one element from one. The model
decides each rounding there, and one left out may mean something else: 257 is 256 in bf16, and f32's lowest number is -infinity.
The same holds for what is given in another type and cast to bf16. Behind a product, whose sum has no fixed order, two correct
computations round to different neighbours, and one that does not round is between them; and what scales an operand of a product may
as well scale the product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from onnx_fa.graph.moves import MOVES
from onnx_fa.graph.op_kinds import BROADCASTS
from onnx_fa.graph.ops import asks_only, constant_tensor, op_of, outer_reads
from onnx_fa.graph.view import FLOATS

_MOVES = MOVES | frozenset(
    "Concat Split Pad GatherElements GatherND Trilu DepthToSpace SpaceToDepth Constant SequenceEmpty SequenceConstruct "
    "SequenceInsert SequenceErase SequenceAt SplitToSequence ConcatFromSequence Optional OptionalGetElement".split()
)
"""What they give out are elements that they were given (or the tensor that they hold): there is nothing to round."""
_CASTS = frozenset(["Cast", "CastLike"])
_EACH_BY_ITSELF = (
    BROADCASTS
    | _CASTS
    | frozenset(
        "ConstantOfShape EyeLike OneHot Range Neg Abs Sign Sqrt Exp Reciprocal Log Cos Sin Tan Tanh Sigmoid Erf Relu Floor Ceil "
        "Round Clip Softplus ReduceMax ReduceMin IsNaN IsInf".split()
    )
)
"""Every element of the result follows from one of each operand, by one rounding."""


def deciding_roundings(model: ir.Model) -> list[ir.Value]:
    """The values of bf16 that are rounded as they are made, and on which nothing has worked before but casts where they are data
    (inputs of floats, tensors of bf16), and no product nor other sum in bf16 where they are not.

    Types are those that the values have; functions are not looked into."""
    known = _Known(data={v for v in model.graph.inputs if v.dtype in FLOATS})
    _walk(model.graph, known)
    return known.found


def all_roundings(model: ir.Model) -> list[ir.Value]:
    """The values of bf16 that are rounded as they are made, wherever."""
    return [o for n in model.graph.all_nodes() if not _hands_on(n) for o in n.outputs if _narrow(o)]


@dataclass
class _Known:
    """What is data as it was given, what was computed of data or of a sum, and what is rounded and is neither."""

    data: set[ir.Value] = field(default_factory=set)
    loose: set[ir.Value] = field(default_factory=set)
    found: list[ir.Value] = field(default_factory=list)


def _walk(graph: ir.Graph, known: _Known) -> None:
    known.data.update(v for v in graph.initializers.values() if _is_tensor(v))
    for node in graph:
        inner = list(_subgraphs(node))
        for body in inner:
            known.loose.update(body.inputs)  # of a Loop or a Scan: they may be what the body made the time before
            _walk(body, known)
        read = {v for i, v in enumerate(node.inputs) if v is not None and not asks_only(node, i)} | {*outer_reads(node)}
        read.update(o for body in inner for o in body.outputs)
        if not known.loose.isdisjoint(read) or _sums(node, read):
            known.loose.update(node.outputs)
        elif any(map(_is_tensor, node.outputs)) or not known.data.isdisjoint(read):
            (known.data if op_of(node) in _MOVES | _CASTS else known.loose).update(node.outputs)
        if not _hands_on(node):
            known.found += [o for o in node.outputs if _narrow(o) and o not in known.loose]


def _sums(node: ir.Node, read: set[ir.Value]) -> bool:
    """Whether a node in bf16 may compute an element from several: the order, and so the rounding, is the runtime's."""
    simple = op_of(node) in _MOVES | _EACH_BY_ITSELF or any(True for _ in _subgraphs(node))
    return not simple and any(map(_narrow, (*read, *node.outputs)))


def _is_tensor(value: ir.Value) -> bool:
    """Whether a value is a constant of bf16 that is more than a number."""
    node = value.producer()
    known = constant_tensor(value) if node is None or op_of(node) == "Constant" else None
    return known is not None and known.dtype == ir.DataType.BFLOAT16 and known.size > 1


def _hands_on(node: ir.Node) -> bool:
    return op_of(node) in _MOVES or any(True for _ in _subgraphs(node))


def _subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    for attr in node.attributes.values():
        if attr.type == ir.AttributeType.GRAPH:
            yield attr.as_graph()
        elif attr.type == ir.AttributeType.GRAPHS:
            yield from attr.as_graphs()


def _narrow(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.BFLOAT16
