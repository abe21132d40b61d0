"""NonZero of free sizes. Of two tensors of one size IREE's gives places of both for the second (docs/developer/iree-bugs.md)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.iree.legalise.writer import GraphWriter

_I64 = TensorProto.INT64


def non_zero(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """(rank, how many there are); false where all sizes are known, or not how many."""
    x = node.input[0]
    shape = g.shape(x)
    if not shape or all(isinstance(d, int) for d in shape):
        return False
    add_non_zero(g, x, shape, node.name or "NonZero", out=node.output[0])
    return True


def add_non_zero(
    g: GraphWriter, x: str, shape: Sequence[int | str | None], hint: str, *, out: str | None = None, kind: int = 0
) -> str:
    """The places of x that are not 0, of one axis at least. Numbers of all elements are put in another order, those that are not 0
    first: so many of them are taken apart into places along each axis. `kind` is x's, where the graph does not say it."""
    flat = g.reshape(x, [-1], hint)
    there = g.cast(flat, kind or g.kind(x), TensorProto.BOOL, hint)
    ones = g.cast(there, TensorProto.BOOL, _I64, hint)
    zero, one = (g.const(np.array(n, np.int64), hint) for n in (0, 1))
    found = g.add("CumSum", [ones, zero], hint)  # up to each element, with it
    count = g.add("ReduceSum", [ones, g.ints([0], hint)], hint, keepdims=1)
    number = g.add("Range", [zero, g.size(flat, 0, hint), one], hint)
    others = g.add("Sub", [g.add("Add", [count, number], hint), found], hint)
    place = g.add("Where", [there, g.add("Sub", [found, one], hint), others], hint)
    ordered = g.add(
        "ScatterElements", [place, place, number], hint, axis=0
    )  # each place is written: what is there first is not read
    left = g.add("Slice", [ordered, g.ints([0], hint), count], hint)
    rows = []
    for axis in range(len(shape) - 1, 0, -1):
        dim = shape[axis]
        size = g.const(np.array(max(dim, 1), np.int64), hint) if isinstance(dim, int) else g.size(x, axis, hint)
        size = size if isinstance(dim, int) else g.add("Max", [size, one], hint)
        rows.append(g.add("Mod", [left, size], hint))
        left = g.add("Div", [left, size], hint)
    rows.append(left)
    first = g.ints([0], hint)
    columns = [g.add("Unsqueeze", [row, first], hint) for row in reversed(rows)]
    return g.add("Concat", columns, hint, out=out, axis=0)
