"""AffineGrid, whose function body has a sequence in it that IREE refuses."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.writer import NARROW, GraphWriter, attr_of


def affine_grid(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """theta (B, 2, 3) or (B, 3, 4): the sum of its columns by the coordinates of each place, and of its last one. Sizes may be
    those of the run. Raises ModelError where it is not known how many there are."""
    theta, size = node.input
    hint, shape, kind = node.name or "AffineGrid", g.shape(size), g.kind(theta)
    if shape is None or not isinstance(shape[0], int):
        raise ModelError(f"node {hint!r}: AffineGrid of an image of which only a run knows how many axes it has")
    axes, corners = shape[0] - 2, bool(attr_of(node, "align_corners", 0))
    wide = TensorProto.FLOAT if kind in NARROW else kind
    matrix = g.cast(theta, kind, wide, hint)

    def add(op: str, *inputs: str, out: str | None = None) -> str:
        return g.add(op, inputs, hint, out=out)

    def number(value: float) -> str:
        return g.scalar(value, wide, hint)

    def column(n: int) -> str:
        """(B, 1, ..., 1, axes)."""
        one = g.add("Gather", [matrix, g.const(np.array(n, np.int64), hint)], hint, axis=2)
        return add("Unsqueeze", one, g.ints(range(1, axes + 1), hint))

    def places(axis: int) -> str:
        """-1 to 1 along an axis, the first of which is the slowest."""
        zero, one = (g.const(np.array(n, np.int64), hint) for n in (0, 1))
        count = g.add("Gather", [size, g.const(np.array(axis + 2, np.int64), hint)], hint, axis=0)
        if (given := g.array(size)) is not None:
            steps = g.const(np.arange(int(given[axis + 2]), dtype=np.int64), hint)
        else:
            steps = add("Range", zero, g.cast(count, g.kind(size), TensorProto.INT64, hint), one)
        length = g.add("Cast", [count], hint, to=wide)
        at = add("Mul", g.add("Cast", [steps], hint, to=wide), number(2))
        if corners:
            at = add("Div", at, add("Sub", length, number(1)))
        else:
            at = add("Div", add("Add", at, number(1)), length)
        others = [i for i in range(axes + 2) if i != axis + 1]
        return add("Unsqueeze", add("Sub", at, number(1)), g.ints(others, hint))

    total = column(axes)
    for axis in range(axes):
        total = add("Add", add("Mul", column(axes - 1 - axis), places(axis)), total)
    g.cast(total, wide, kind, hint, out=node.output[0])
    return True
