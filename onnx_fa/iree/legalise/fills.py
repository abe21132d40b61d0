"""Tensors of sizes that only a run knows, and of numbers that none decides, into which several nodes write: zeros that a
ScatterND puts rows in. IREE makes such a tensor anew for each, then takes those that are alike for one
(docs/developer/iree-bugs.md)."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import GraphWriter, bodies_of

_SIZES_ALONE = ("ConstantOfShape", "Shape", "Size")
"""Operators that read no elements of what they are given, but perhaps numbers of it that are sizes."""


def is_free_fill(g: GraphWriter, name: str) -> bool:
    """Whether a value has a size that only a run knows, and is computed of constants and sizes alone."""
    shape = g.shape(name)
    return (
        not g.is_constant(name) and (shape is None or not all(isinstance(d, int) for d in shape)) and is_fill(g, name)
    )


def is_fill(g: GraphWriter, name: str) -> bool:
    """Whether a value is computed of constants and sizes alone."""
    left, seen = [name], set[str]()
    while left:
        value = left.pop()
        if value in seen or g.is_constant(value):
            continue
        seen.add(value)
        node = g.maker_anywhere(value)
        if node is None or bodies_of(node):
            return False
        if op_of(node) not in _SIZES_ALONE:
            left += [v for v in node.input if v]
    return True


def of_the_run(g: GraphWriter, fill: str, data: list[str], hint: str) -> str:
    """`fill`, by way of a choice that an element of the run decides, always the same way, as no compiler knows: there are no
    absolute values below -1. The element is one of `data`, or of an input of the graph where these are constants or fills too;
    without any the fill is as it was."""
    inputs = [v.name for v in g.graph.input if not g.is_constant(v.name)]
    known = [v for v in (*data, *inputs) if g.kind(v) in _REAL and not is_fill(g, v)]
    if not known:
        return fill
    first = g.add("Slice", [g.reshape(known[0], [-1], hint), g.ints([0], hint), g.ints([1], hint)], hint)
    size = g.add("Abs", [g.cast(first, g.kind(known[0]), TensorProto.FLOAT, hint)], hint)
    total = g.add("ReduceSum", [size], hint, keepdims=0)  # of no elements 0
    never = g.add("Less", [total, g.scalar(-1, TensorProto.FLOAT, hint)], hint)
    # Not a constant: by one that is the fill's own number there would be nothing to choose.
    return g.add("Where", [never, g.cast(total, TensorProto.FLOAT, g.kind(fill), hint), fill], hint)


_REAL = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.BOOL,
)


def apart(g: GraphWriter, node: onnx.NodeProto, data: str) -> str:
    """What `node`, which writes into `data`, may write into: `data` itself, unless that is a fill. Another one may be like it that
    nobody sees here, as one that the compiler makes."""
    if not is_free_fill(g, data):
        return data
    return of_the_run(g, data, list(node.input[1:]), node.name or op_of(node))
