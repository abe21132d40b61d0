"""GridSample of images and volumes, whose places outside of the image IREE reads all the same, from memory that may not be the
image's (docs/developer/iree-bugs.md)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

_LINEAR, _CUBIC = (b"linear", b"bilinear"), (b"cubic", b"bicubic")
_BY_PIXEL = 8
"""Channels from which on the transposes in front and behind cost less than reading numbers that lie far apart."""
_A = -0.75
"""The coefficient of Keys' cubics, ONNX's and torch's."""


@dataclass(frozen=True)
class _Axis:
    """One axis of the image: how long it is, and where its coordinate stands in a place of the grid."""

    size: int
    column: int


def grid_sample(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """The image's rows one behind the other, of which each place of the grid gathers one element (nearest), two (linear) or four
    (cubic) along each axis, at places that are cut to the image; "zeros" weighs those outside with zero, "border" cuts what is
    asked for itself, "reflection" turns it round. Images of several channels have them last, so that a place reads those of a
    pixel side by side.

    Raises ModelError for sizes of the image that only a run knows.
    """
    image, grid = node.input
    sizes, places, hint = g.shape(image), g.shape(grid), node.name or "GridSample"
    numbers = [d for d in sizes[1:] if isinstance(d, int)] if sizes is not None else []
    if sizes is None or places is None or len(sizes) < 3 or len(numbers) < len(sizes) - 1 or 0 in numbers:
        raise ModelError(f"node {hint!r}: GridSample of an image whose sizes only a run knows, or of none (--dim)")
    channels, *spatial = numbers
    along, pixels = _Along(g, node), int(np.prod(spatial))
    kind, of_grid = g.kind(image), g.kind(grid)
    axes = [_Axis(size, len(spatial) - 1 - i) for i, size in enumerate(spatial)]
    image = g.reshape(image, [0, 0, pixels], hint)
    by_pixel = channels >= _BY_PIXEL
    if by_pixel:
        image = g.reshape(g.add("Transpose", [image], hint, perm=[0, 2, 1]), [-1, channels], hint)
        first = _first_pixels(g, sizes[0], node.input[0], pixels, hint)

    def gathered(taps: tuple[tuple[str, list[str]], ...]) -> str:
        at = taps[0][0]
        for axis, (place, _) in zip(axes[1:], taps[1:], strict=True):
            at = g.add("Mul", [at, g.const(np.asarray(axis.size, np.int64), hint)], hint)
            at = g.add("Add", [at, place], hint)
        weights = [w for _, given in taps for w in given]
        if by_pixel:
            at = g.add("Add", [g.reshape(at, [0, -1], hint), first], hint)
            element = g.add("Gather", [image, at], hint, axis=0)
            weights = [g.reshape(w, [0, -1, 1], hint) for w in weights]
        else:
            at = g.add("Expand", [at, g.ints([1, channels, 1], hint)], hint)
            element = g.add("GatherElements", [image, at], hint, axis=2)
        for weight in weights:
            element = g.add("Mul", [element, weight], hint)
        return element

    def along_one(axis: _Axis) -> Iterator[tuple[str, list[str]]]:
        """The places that are read along an axis, and what their elements weigh."""
        for tap, weight in along.near(axis):
            weights = [] if weight is None else [weight]
            if along.padding == b"zeros":
                weights.append(along.lies(tap, axis.size))
            yield along.cut(tap, axis.size), [g.cast(w, of_grid, kind, hint) for w in weights]

    parts = [gathered(taps) for taps in itertools.product(*(list(along_one(axis)) for axis in axes))]
    whole = parts[0] if len(parts) == 1 else g.add("Sum", parts, hint)
    if by_pixel:
        whole = g.add("Transpose", [whole], hint, perm=[0, 2, 1])
    if all(isinstance(d, int) for d in places[1:-1]):
        shape = g.ints([0, channels, *(d for d in places[1:-1] if isinstance(d, int))], hint)
    else:  # written out, as IREE takes a 0 of a shape that only a run knows for a size
        batch, asked = (g.add("Shape", [grid], hint, start=a, end=b) for a, b in ((0, 1), (1, len(places) - 1)))
        shape = g.add("Concat", [batch, g.ints([channels], hint), asked], hint, axis=0)
    g.add("Reshape", [whole, shape], hint, out=node.output[0])
    return True


def _first_pixels(g: GraphWriter, batch: int | str | None, image: str, pixels: int, hint: str) -> str:
    """The first pixel of each image, (B, 1), where the pixels of all stand one behind the other."""
    if isinstance(batch, int):
        return g.const(np.arange(batch, dtype=np.int64)[:, None] * pixels, hint)
    zero, one, each = (g.const(np.asarray(x, np.int64), hint) for x in (0, 1, pixels))
    images = g.add("Range", [zero, g.size(image, 0, hint), one], hint)
    return g.reshape(g.add("Mul", [images, each], hint), [-1, 1], hint)


class _Along:
    """What happens along one axis of the image, by the attributes of a node."""

    def __init__(self, g: GraphWriter, node: onnx.NodeProto) -> None:
        self.g, self.grid, self.hint = g, node.input[1], node.name or "GridSample"
        self.kind, self.rank = g.kind(self.grid), len(g.shape(self.grid) or [])
        self.mode, self.padding = attr_of(node, "mode", b"linear"), attr_of(node, "padding_mode", b"zeros")
        self.corners = bool(attr_of(node, "align_corners", 0))

    def near(self, axis: _Axis) -> Iterator[tuple[str, str | None]]:
        """The whole numbers around each coordinate, (B, 1, places), and what their elements weigh."""
        at = self._asked(axis)
        if self.mode not in (*_LINEAR, *_CUBIC):
            yield self._padded(self._add("Round", at), axis.size), None
            return
        at = self._padded(at, axis.size)
        low = self._add("Floor", at)
        beyond = self._add("Sub", at, low)
        rest = self._add("Sub", self._number(1), beyond)
        if self.mode in _LINEAR:
            taps = [(0, rest), (1, beyond)]
        else:
            one = self._number(1)
            outer, far = (self._far(self._add("Add", x, one)) for x in (beyond, rest))
            taps = [(-1, outer), (0, self._close(beyond)), (1, self._close(rest)), (2, far)]
        for step, weight in taps:
            tap = self._add("Add", low, self._number(step)) if step else low
            yield self._reflected(tap, axis.size) if self.padding == b"reflection" else tap, weight

    def cut(self, at: str, size: int) -> str:
        """A whole number as a place of the image; also one that is no number."""
        inside = self._add("Clip", at, self._number(0), self._number(size - 1))
        inside = self.g.add("Cast", [inside], self.hint, to=7)
        first, last = (self.g.const(np.asarray(x, np.int64), self.hint) for x in (0, size - 1))
        return self._add("Min", self._add("Max", inside, first), last)

    def lies(self, at: str, size: int) -> str:
        """1 where a whole number is a place of the image, else 0."""
        behind = self._add("GreaterOrEqual", at, self._number(0))
        before = self._add("GreaterOrEqual", self._number(size - 1), at)
        return self.g.add("Cast", [self._add("And", behind, before)], self.hint, to=self.kind)

    def _add(self, op: str, *inputs: str) -> str:
        return self.g.add(op, inputs, self.hint)

    def _number(self, value: float) -> str:
        return self.g.scalar(value, self.kind, self.hint)

    def _asked(self, axis: _Axis) -> str:
        """Where a coordinate between -1 and 1 lies along an axis of the image, in pixels."""
        column = self.g.const(np.asarray(axis.column, np.int64), self.hint)
        asked = self.g.add("Gather", [self.grid, column], self.hint, axis=self.rank - 1)
        asked = self.g.reshape(asked, [0, 1, -1], self.hint)
        shift = (axis.size - 1) / 2
        scale = shift if self.corners else axis.size / 2
        return self._add("Add", self._add("Mul", asked, self._number(scale)), self._number(shift))

    def _padded(self, at: str, size: int) -> str:
        if self.padding == b"reflection":
            return self._reflected(at, size)
        if self.padding != b"border" or self.mode in _CUBIC:  # of cubics only the taps are cut, as in torch
            return at
        return self._add("Clip", at, self._number(0), self._number(size - 1))

    def _ends(self, size: int) -> tuple[float, float]:
        return (0, size - 1) if self.corners else (-0.5, size - 0.5)

    def _reflected(self, at: str, size: int) -> str:
        """What lies outside turned round at the ends, as often as it takes."""
        low, high = self._ends(size)
        if low == high:
            return self._add("Mul", at, self._number(0))
        length = self._number(high - low)
        far = self._add("Abs", self._add("Sub", at, self._number(low)))
        times = self._add("Floor", self._add("Div", far, length))
        rest = self._add("Sub", far, self._add("Mul", times, length))
        half = self._add("Floor", self._add("Mul", times, self._number(0.5)))
        odd = self._add("Greater", self._add("Sub", times, self._add("Mul", half, self._number(2))), self._number(0.5))
        back = self._add("Sub", self._number(high), rest)
        turned = self._add("Where", odd, back, self._add("Add", rest, self._number(low)))
        outside = self._add(
            "Or", self._add("Less", at, self._number(low)), self._add("Greater", at, self._number(high))
        )
        return self._add("Where", outside, turned, at)

    def _close(self, x: str) -> str:
        """Keys' cubic up to 1: ((a + 2) x - (a + 3)) x x + 1."""
        inner = self._add("Sub", self._add("Mul", x, self._number(_A + 2)), self._number(_A + 3))
        return self._add("Add", self._add("Mul", self._add("Mul", inner, x), x), self._number(1))

    def _far(self, x: str) -> str:
        """Keys' cubic from 1 to 2: ((a x - 5 a) x + 8 a) x - 4 a."""
        inner = self._add("Sub", self._add("Mul", x, self._number(_A)), self._number(5 * _A))
        inner = self._add("Add", self._add("Mul", inner, x), self._number(8 * _A))
        return self._add("Sub", self._add("Mul", inner, x), self._number(4 * _A))
