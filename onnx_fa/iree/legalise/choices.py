"""Choices between two values that are one: IREE takes that value for the result, whatever shape the condition has
(docs/developer/iree-bugs.md)."""

from __future__ import annotations

import onnx

from onnx_fa.iree.legalise.writer import GraphWriter, attr_of


def where(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A choice between a number and itself, by a condition of more elements: that number, expanded."""
    condition, value, other = node.input
    if not g.is_one_number(value) or not _are_one(g, value, other):
        return False
    if g.shape(condition) is None or g.shape(value) == g.shape(node.output[0]):
        return False
    hint = node.name or "Where"
    g.add("Expand", [value, g.add("Shape", [condition], hint)], hint, out=node.output[0])
    return True


def one_hot(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """One whose two numbers a run computes, or are the same: they are looked up by a OneHot of 0 and 1, since the compiler may
    find that they are the same (TorchScript's `repeat_interleave` by the one expert that each token has)."""
    indices, depth, values = node.input
    numbers = g.array(values)
    if numbers is not None and numbers.size == 2 and numbers[0] != numbers[1]:
        return False
    hint = node.name or "OneHot"
    hot = g.add("OneHot", [indices, depth, g.ints([0, 1], hint)], hint, axis=attr_of(node, "axis", -1))
    g.add("Gather", [values, hot], hint, out=node.output[0], axis=0)
    return True


def _are_one(g: GraphWriter, value: str, other: str) -> bool:
    """Whether two values are one, by name or as constants of one shape."""
    if value == other:
        return True
    a, b = g.array(value), g.array(other)
    return a is not None and b is not None and a.shape == b.shape and a.tobytes() == b.tobytes()
