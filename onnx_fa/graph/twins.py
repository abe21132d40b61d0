"""Whether two values of a graph are the same in every run, as exporters write what a module asks for twice."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.ops import STANDARD, op_of
from onnx_fa.graph.view import GraphView

_MAX_PAIRS = 64
"""Pairs of values that are compared before the search gives up."""
CHANCE = frozenset("RandomNormal RandomUniform RandomNormalLike RandomUniformLike Bernoulli Multinomial".split())
"""Ops that draw numbers, which are others in every runtime, whatever their seed."""
_RANDOM = CHANCE | {"Dropout"}


def is_twin(view: GraphView, a: ir.Value, b: ir.Value) -> bool:
    """Whether `a` and `b` hold the same: one value, equal constants, or what standard ops of no chance make of such with equal
    attributes. A cast of booleans to booleans is looked through. False where that cannot be told."""
    stack, seen = [(a, b)], set[tuple[ir.Value, ir.Value]]()
    while stack:
        x, y = (_without_cast(view, value) for value in stack.pop())
        if x is y or (x, y) in seen:
            continue
        seen.add((x, y))
        if len(seen) > _MAX_PAIRS:
            return False
        left, right = view.const(x), view.const(y)
        if left is not None and right is not None:
            if left.dtype != right.dtype or left.shape != right.shape or not np.array_equal(left, right):
                return False
            continue
        n, m = x.producer(), y.producer()
        if n is None or m is None or not _do_the_same(n, m) or n.outputs.index(x) != m.outputs.index(y):
            return False
        for i, j in zip(n.inputs, m.inputs, strict=True):
            if (i is None) != (j is None):
                return False
            if i is not None and j is not None:
                stack.append((i, j))
    return True


def _without_cast(view: GraphView, value: ir.Value) -> ir.Value:
    while True:
        node = view.producer(value, "Cast", "Identity")
        inner = None if node is None else node.inputs[0]
        if node is None or inner is None or (op_of(node) == "Cast" and not _is_bool(inner, value)):
            return value
        value = inner


def _is_bool(*values: ir.Value) -> bool:
    return all(v.dtype == ir.DataType.BOOL for v in values)


def _do_the_same(n: ir.Node, m: ir.Node) -> bool:
    """Whether two nodes of the same graph are of one op without chance, with equal attributes, none of which is a graph."""
    if n.domain not in STANDARD or op_of(n) != op_of(m) or n.graph is not m.graph:
        return False
    if op_of(n) in _RANDOM or len(n.inputs) != len(m.inputs) or len(n.outputs) != len(m.outputs):
        return False
    if set(n.attributes) != set(m.attributes):
        return False
    return all(_is_equal(a, m.attributes[name]) for name, a in n.attributes.items())


def _is_equal(a: ir.Attr, b: ir.Attr) -> bool:
    if a.is_ref() or b.is_ref() or a.type != b.type:
        return False
    if a.type in (ir.AttributeType.TENSOR, ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return False  # tensors of constants are compared as such
    return bool(a.value == b.value)
