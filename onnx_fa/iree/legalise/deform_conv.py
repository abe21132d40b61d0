"""DeformConv, which IREE refuses: what each tap reads is gathered from between four elements of the image, and multiplied."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.writer import NARROW, GraphWriter, attr_of


def deform_conv(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """x (B, C, H, W), w (O, C / group, kH, kW), offsets (B, offset groups * kH kW * 2, oH, oW), a bias (O) and a mask (B, offset
    groups * kH kW, oH, oW), which may be left out. The batch may be free. Raises ModelError where another size is."""
    x, w, offset, bias, mask = (*node.input, "", "")[:5]
    hint, kind = node.name or "DeformConv", g.kind(x)
    shapes = [(g.shape(name) or [None])[1 if name != w else 0 :] for name in (x, w, offset)]
    sizes = [[d for d in shape if isinstance(d, int)] for shape in shapes]
    if [len(s) for s in sizes] != [3, 4, 3] or any(0 in s for s in sizes):
        raise ModelError(
            f"node {hint!r}: DeformConv of an image of two axes needs static sizes, but for the batch (--dim)"
        )
    (channels, *image), (outputs, _, *kernel), (_, *made) = sizes
    group, sets = attr_of(node, "group", 1), attr_of(node, "offset_group", 1)
    taps, places = math.prod(kernel), math.prod(made)
    wide = TensorProto.FLOAT if kind in NARROW else kind
    x, w, offset, bias, mask = (g.cast(v, kind, wide, hint) if v else "" for v in (x, w, offset, bias, mask))

    def add(op: str, *inputs: str) -> str:
        return g.add(op, inputs, hint)

    def number(value: float) -> str:
        return g.scalar(value, wide, hint)

    moved = g.reshape(offset, [-1, sets, taps, 2, places], hint)

    def near(axis: int) -> list[tuple[str, str]]:
        """The rows (or columns) that each tap reads from at each place, (B, sets, taps, places) of int64, and what they weigh."""
        starts = _starts(node, axis, kernel, made).astype(np.float64 if wide == TensorProto.DOUBLE else np.float32)
        own = g.add("Gather", [moved, g.const(np.array(axis, np.int64), hint)], hint, axis=3)
        at = add("Add", own, g.const(starts, hint))
        low, last = add("Floor", at), number(image[axis] - 1)
        beyond = add("Sub", at, low)
        found = []
        for tap, weight in ((low, add("Sub", number(1), beyond)), (add("Add", low, number(1)), beyond)):
            inside = add("And", add("GreaterOrEqual", tap, number(0)), add("LessOrEqual", tap, last))
            weight = add("Mul", weight, g.add("Cast", [inside], hint, to=wide))
            place = g.add("Cast", [add("Clip", tap, number(0), last)], hint, to=TensorProto.INT64)
            ends = (g.const(np.array(n, np.int64), hint) for n in (0, image[axis] - 1))
            found.append((add("Min", add("Max", place, next(ends)), next(ends)), weight))
        return found

    rows = g.reshape(x, [-1, sets, channels // sets, math.prod(image)], hint)
    parts = []
    for y, of_y in near(0):
        for z, of_z in near(1):
            place = add("Add", add("Mul", y, g.const(np.array(image[1], np.int64), hint)), z)
            place = g.reshape(place, [-1, sets, 1, taps * places], hint)
            place = add("Expand", place, g.ints([1, 1, channels // sets, 1], hint))
            element = g.add("GatherElements", [rows, place], hint, axis=3)
            weight = g.reshape(add("Mul", of_y, of_z), [-1, sets, 1, taps * places], hint)
            parts.append(add("Mul", element, weight))
    columns = add("Sum", *parts)
    if mask:
        columns = add("Mul", columns, g.reshape(mask, [-1, sets, 1, taps * places], hint))
    depth = channels // group * taps
    columns = g.reshape(columns, [-1, group, depth, places], hint)
    weights = g.reshape(w, [group, outputs // group, depth], hint)
    result = g.reshape(add("MatMul", weights, columns), [-1, outputs, *made], hint)
    if bias:
        result = add("Add", result, g.reshape(bias, [outputs, 1, 1], hint))
    g.cast(result, wide, kind, hint, out=node.output[0])
    return True


def _starts(node: onnx.NodeProto, axis: int, kernel: list[int], made: list[int]) -> np.ndarray[Any, Any]:
    """Where each tap begins at each place without an offset, along an axis: (taps, places)."""
    step, gap = (attr_of(node, name, [1, 1])[axis] for name in ("strides", "dilations"))
    before = attr_of(node, "pads", [0] * 4)[axis]
    tap = np.indices(kernel)[axis].reshape(-1, 1) * gap
    starts: np.ndarray[Any, Any] = tap + np.indices(made)[axis].reshape(1, -1) * step - before
    return starts
