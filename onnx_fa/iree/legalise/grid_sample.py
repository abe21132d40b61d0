"""GridSample of images, whose places outside of the image IREE reads all the same, from memory that may not be the image's
(docs/developer/iree-bugs.md)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

_LINEAR = (b"linear", b"bilinear")


def grid_sample(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """The image's rows one behind the other, of which each place of the grid gathers one element (nearest) or four (linear), at
    places that are cut to the image; "zeros" weighs those outside with zero, "border" cuts what is asked for itself.

    False for other modes, which IREE refuses, and for sizes of the image that only a run knows.
    """
    mode, padding = attr_of(node, "mode", b"linear"), attr_of(node, "padding_mode", b"zeros")
    image, grid = node.input
    sizes, places, hint = g.shape(image), g.shape(grid), node.name or "GridSample"
    if sizes is None or places is None or len(sizes) != 4 or len(places) != 4:
        return False
    channels, height, width = sizes[1:]
    if mode not in (*_LINEAR, b"nearest") or padding not in (b"zeros", b"border"):
        return False
    if not (isinstance(channels, int) and isinstance(height, int) and isinstance(width, int) and height and width):
        return False
    kind, of_grid = g.kind(image), g.kind(grid)
    rows = g.reshape(image, [0, 0, height * width], hint)

    def number(value: float) -> str:
        return g.scalar(value, of_grid, hint)

    def along(axis: int, size: int) -> str:
        """Where a coordinate between -1 and 1 lies along an axis of the image, in pixels."""
        asked = g.add("Gather", [grid, g.const(np.asarray(axis, np.int64), hint)], hint, axis=3)
        asked = g.reshape(asked, [0, 1, -1], hint)
        corners = bool(attr_of(node, "align_corners", 0))
        scale, shift = ((size - 1) / 2, (size - 1) / 2) if corners else (size / 2, (size - 1) / 2)
        at = g.add("Add", [g.add("Mul", [asked, number(scale)], hint), number(shift)], hint)
        return at if padding == b"zeros" else g.add("Clip", [at, number(0.0), number(size - 1.0)], hint)

    def cut(at: str, size: int) -> str:
        """A whole number as a place of the image; also one that is no number."""
        inside = g.add("Cast", [g.add("Clip", [at, number(0.0), number(size - 1.0)], hint)], hint, to=7)
        first, last = (g.const(np.asarray(x, np.int64), hint) for x in (0, size - 1))
        return g.add("Min", [g.add("Max", [inside, first], hint), last], hint)

    def lies(at: str, size: int) -> str:
        """1 where a whole number is a place of the image, else 0."""
        behind, before = (g.add("GreaterOrEqual", x, hint) for x in ([at, number(0.0)], [number(size - 1.0), at]))
        return g.add("Cast", [g.add("And", [behind, before], hint)], hint, to=of_grid)

    def near(at: str) -> Iterator[tuple[str, str | None]]:
        """The whole numbers around one, and what their elements weigh."""
        if mode not in _LINEAR:
            yield g.add("Round", [at], hint), None
            return
        low = g.add("Floor", [at], hint)
        beyond = g.add("Sub", [at, low], hint)
        yield low, g.add("Sub", [number(1.0), beyond], hint)
        yield g.add("Add", [low, number(1.0)], hint), beyond

    def gathered(x: str, y: str, weights: list[str]) -> str:
        at = g.add("Mul", [cut(y, height), g.const(np.asarray(width, np.int64), hint)], hint)
        at = g.add("Expand", [g.add("Add", [at, cut(x, width)], hint), g.ints([1, channels, 1], hint)], hint)
        element = g.add("GatherElements", [rows, at], hint, axis=2)
        if padding == b"zeros":
            weights = [*weights, lies(x, width), lies(y, height)]
        for weight in weights:
            element = g.add("Mul", [element, g.cast(weight, of_grid, kind, hint)], hint)
        return element

    across, down = list(near(along(0, width))), list(near(along(1, height)))
    parts = [gathered(x, y, [w for w in (p, q) if w is not None]) for y, q in down for x, p in across]
    whole = parts[0] if len(parts) == 1 else g.add("Sum", parts, hint)
    if isinstance(places[1], int) and isinstance(places[2], int):
        shape = g.ints([0, channels, places[1], places[2]], hint)
    else:  # written out, as IREE takes a 0 of a shape that only a run knows for a size
        batch, asked = (g.add("Shape", [grid], hint, start=a, end=b) for a, b in ((0, 1), (1, 3)))
        shape = g.add("Concat", [batch, g.ints([channels], hint), asked], hint, axis=0)
    g.add("Reshape", [whole, shape], hint, out=node.output[0])
    return True
