"""TensorScatter of opset 24: rows of a cache are replaced by new ones, from a place on that each batch entry has for itself."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.iree.legalise.writer import GraphWriter, attr_of


def tensor_scatter(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Every row of the result is chosen: the new one whose turn it is there, else the old one.

    past: (B, ..., S, ...), update: (B, ..., T, ...), write_indices: (B) of ints, 0 if left out. With mode "circular" what
    reaches over the end goes on at the beginning.
    """
    past, update, places = (*node.input, "")[:3]
    shape, new = g.shape(past), g.shape(update)
    if shape is None or new is None:
        return False
    axis, hint = attr_of(node, "axis", -2) % len(shape), node.name or node.op_type

    def number(value: int) -> str:
        return g.const(np.array(value, np.int64), hint)

    def along_axis(row: str) -> str:
        """A row of (S) or (B, S) with all dims of the cache."""
        others = [i for i in range(len(shape)) if i not in (0, axis)]
        return g.add("Unsqueeze", [row, g.const(np.array(others, np.int64), hint)], hint)

    def size(x: str) -> str:
        return g.add("Gather", [g.add("Shape", [x], hint), number(axis)], hint, axis=0)

    rows, count = size(past), size(update)
    position = g.add(
        "Unsqueeze", [g.add("Range", [number(0), rows, number(1)], hint), g.const(np.array([0]), hint)], hint
    )
    start = g.const(np.zeros((1, 1), np.int64), hint)
    if places:
        wide = g.cast(places, g.kind(places), TensorProto.INT64, hint)
        start = g.add("Unsqueeze", [wide, g.const(np.array([1]), hint)], hint)
    turn = g.add("Sub", [position, start], hint)
    if attr_of(node, "mode", b"linear") == b"circular":
        turn = g.add("Mod", [g.add("Add", [turn, rows], hint), rows], hint)
    early, late = g.add("Less", [turn, number(0)], hint), g.add("GreaterOrEqual", [turn, count], hint)
    kept = along_axis(g.add("Or", [early, late], hint))
    if new[axis] != 1:
        # Where an old row is kept the index means nothing, but it has to be one.
        last = g.add("Sub", [count, number(1)], hint)
        index = g.add("Max", [g.add("Min", [turn, last], hint), number(0)], hint)
        full = g.add("Expand", [along_axis(index), g.add("Shape", [past], hint)], hint)
        update = g.add("GatherElements", [update, full], hint, axis=axis)
    g.add("Where", [kept, past, update], hint, out=node.output[0])
    return True
