"""Col2Im, torch's fold, which IREE refuses: each element of the image is the sum of those of the blocks that lie on it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of


def col2im(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Axis by axis a Gather of the elements that lie on each place, from x (B, C * block, L), and of a row of zeros where fewer do
    than on others; then their sum. Raises ModelError for sizes that only a run knows, for booleans, and
    for images of one axis, which onnxruntime computes otherwise."""
    hint, shape, kind = node.name or "Col2Im", g.shape(node.input[0]), g.kind(node.input[0])
    image, block = (g.array(name) for name in node.input[1:3])
    channels = shape[1] if shape is not None else None
    if image is None or block is None or shape is None or not isinstance(channels, int):
        raise ModelError(f"node {hint!r}: Col2Im into an image whose size or channels only a run knows")
    if kind == TensorProto.BOOL or image.size < 2:
        raise ModelError(f"node {hint!r}: Col2Im of booleans, or into an image of one axis, of which ONNX has none")
    sizes, taps = ([int(n) for n in v.ravel()] for v in (image, block))
    rank = len(sizes)
    steps, gaps = (attr_of(node, name, [1] * rank) for name in ("strides", "dilations"))
    pads = attr_of(node, "pads", [0] * 2 * rank)
    axes = [
        _Axis(size, tap, step, gap, pads[i], pads[i + rank])
        for i, (size, tap, step, gap) in enumerate(zip(sizes, taps, steps, gaps, strict=True))
    ]
    x = g.reshape(node.input[0], [-1, *taps, *(a.blocks for a in axes)], hint)
    order = [0, *(i for a in range(rank) for i in (1 + a, 1 + rank + a))]
    x = g.add("Transpose", [x], hint, perm=order)
    x = g.reshape(x, [-1, *(a.tap * a.blocks for a in axes)], hint)
    for i, axis in enumerate(axes):
        places = axis.places()
        if places.max(initial=-1) == axis.tap * axis.blocks:
            rows = [0] * 2 * (rank + 1)
            rows[rank + 2 + i] = 1
            zero = g.scalar(0, kind, hint)
            x = g.add("Pad", [x, g.ints(rows, hint), zero], hint)
        if places.shape[1] == 1:
            x = g.add("Gather", [x, g.const(places[:, 0], hint)], hint, axis=i + 1)
        else:
            x = g.add("Gather", [x, g.const(places, hint)], hint, axis=i + 1)
            x = g.add("ReduceSum", [x, g.ints([i + 2], hint)], hint, keepdims=0)
    batch = shape[0] if isinstance(shape[0], int) else -1
    g.reshape(x, [batch, channels // math.prod(taps), *sizes], hint, out=node.output[0])
    return True


class _Axis:
    """One axis of the image, and the blocks along it."""

    def __init__(self, size: int, tap: int, step: int, gap: int, before: int, behind: int) -> None:
        self.size, self.tap, self.step, self.gap, self.before = size, tap, step, gap, before
        self.blocks = (size + before + behind - gap * (tap - 1) - 1) // step + 1

    def places(self) -> np.ndarray[Any, Any]:
        """(size, most): the numbers, tap by tap, of the elements that lie on each place; `tap * blocks` where there are fewer."""
        found: list[list[int]] = [[] for _ in range(self.size)]
        for tap in range(self.tap):
            for block in range(self.blocks):
                place = block * self.step + tap * self.gap - self.before
                if 0 <= place < self.size:
                    found[place].append(tap * self.blocks + block)
        most = max(1, *map(len, found)) if found else 1
        none = self.tap * self.blocks
        return np.array([row + [none] * (most - len(row)) for row in found], np.int64).reshape(self.size, most)
