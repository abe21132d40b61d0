"""RoiAlign, which IREE refuses, as gathers of four elements of the image around each sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.writer import NARROW, GraphWriter, attr_of


@dataclass(frozen=True)
class _Samples:
    """Along one axis: elements before and behind each sample, (R, bins, samples) of int64, and what they weigh; which samples a
    region has, of bool, and how many, (R, 1), or "" where all have the same."""

    low: str
    high: str
    before: str
    behind: str
    there: str
    count: str


def roi_align(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """x (B, C, H, W), regions (R, 4), their batch entries (R): (R, C, bins, bins). Where the number of samples follows from a
    region's size, all regions have those of the largest, and what is too many counts nothing. Raises ModelError for a number of
    channels that only a run knows."""
    x, rois, batch = node.input
    hint, shape, kind = node.name or "RoiAlign", g.shape(x), g.kind(x)
    if shape is None or not isinstance(shape[1], int):
        raise ModelError(f"node {hint!r}: RoiAlign of a number of channels that only a run knows")
    wide = TensorProto.FLOAT if kind in NARROW else kind

    def add(op: str, *inputs: str, **attributes: Any) -> str:
        return g.add(op, inputs, hint, **attributes)

    def whole(value: int) -> str:
        return g.const(np.array(value, np.int64), hint)

    last = g.add("Transpose", [g.cast(x, kind, wide, hint)], hint, perm=[0, 2, 3, 1])
    rows = g.reshape(last, [-1, shape[1]], hint)
    height, width = (whole(d) if isinstance(d, int) else g.size(x, i, hint) for i, d in ((2, shape[2]), (3, shape[3])))
    regions = g.cast(rois, g.kind(rois), wide, hint)
    down = _samples(g, node, regions, (1, 3), height, attr_of(node, "output_height", 1), wide)
    across = _samples(g, node, regions, (0, 2), width, attr_of(node, "output_width", 1), wide)
    first = add("Mul", g.cast(batch, g.kind(batch), TensorProto.INT64, hint), add("Mul", height, width))
    first = add("Unsqueeze", first, g.ints([1, 2, 3, 4], hint))
    inner, outer = g.ints([3, 4], hint), g.ints([1, 2], hint)

    def spread(y: str, x: str) -> tuple[str, str]:
        """(R, bins, samples, 1, 1) and (R, 1, 1, bins, samples)."""
        return add("Unsqueeze", y, inner), add("Unsqueeze", x, outer)

    parts = []
    for y, of_y in ((down.low, down.before), (down.high, down.behind)):
        for x, of_x in ((across.low, across.before), (across.high, across.behind)):
            at_y, at_x = spread(y, x)
            place = add("Add", first, add("Add", add("Mul", at_y, width), at_x))
            element = g.add("Gather", [rows, place], hint, axis=0)
            weight = add("Unsqueeze", add("Mul", *spread(of_y, of_x)), g.ints([5], hint))
            parts.append(add("Mul", element, weight))
    most = attr_of(node, "mode", b"avg").lower() == b"max"
    each = g.add("Max" if most else "Sum", parts, hint)
    ratio = attr_of(node, "sampling_ratio", 0)
    zero = g.scalar(0, wide, hint)
    if ratio <= 0:
        there = add("Unsqueeze", add("And", *spread(down.there, across.there)), g.ints([5], hint))
        each = add("Where", there, each, g.scalar(-np.inf, wide, hint) if most else zero)
    if most:
        made = g.reduce("ReduceMax", each, [2, 4], hint, keepdims=0)
    else:
        made = g.add("ReduceSum", [each, g.ints([2, 4], hint)], hint, keepdims=0)
    if ratio <= 0:
        samples = add("Mul", down.count, across.count)
        samples = add("Unsqueeze", add("Max", samples, g.scalar(1, wide, hint)), g.ints([2, 3], hint))
        if most:
            made = add("Where", add("Equal", made, g.scalar(-np.inf, wide, hint)), zero, made)
        else:
            made = add("Div", made, samples)
    elif not most:
        made = add("Div", made, g.scalar(ratio * ratio, wide, hint))
    turned = g.add("Transpose", [made], hint, perm=[0, 3, 1, 2])
    g.cast(turned, wide, kind, hint, out=node.output[0])
    return True


def _samples(
    g: GraphWriter, node: onnx.NodeProto, regions: str, columns: tuple[int, int], size: str, bins: int, kind: int
) -> _Samples:
    hint, ratio = node.name or "RoiAlign", attr_of(node, "sampling_ratio", 0)
    half = attr_of(node, "coordinate_transformation_mode", b"half_pixel") == b"half_pixel" and g.opset >= 16

    def add(op: str, *inputs: str, **attributes: Any) -> str:
        return g.add(op, inputs, hint, **attributes)

    def number(value: float) -> str:
        return g.scalar(value, kind, hint)

    scale = number(attr_of(node, "spatial_scale", 1.0))
    ends = []
    for column in columns:
        end = g.add("Gather", [regions, g.ints([column], hint)], hint, axis=1)
        end = add("Mul", end, scale)
        ends.append(add("Sub", end, number(0.5)) if half else end)
    begin, extent = ends[0], add("Sub", ends[1], ends[0])  # (R, 1)
    if not half:
        extent = add("Max", extent, number(1))
    step = add("Div", extent, number(bins))
    count, there = "", ""
    if ratio > 0:
        places = g.const(numpy_of(np.arange(ratio) + 0.5, kind), hint)
        within = add("Div", add("Mul", step, places), number(ratio))  # (R, samples)
    else:
        count = add("Max", add("Ceil", step), number(0))
        top = add("Cast", g.reduce("ReduceMax", count, [0, 1], hint, keepdims=0), to=TensorProto.INT64)
        zero, one = (g.const(np.array(n, np.int64), hint) for n in (0, 1))
        steps = add("Cast", add("Range", zero, add("Max", top, one), one), to=kind)
        there = add("Unsqueeze", add("Less", steps, count), g.ints([1], hint))
        within = add("Mul", step, add("Add", steps, number(0.5)))
        within = add("Div", within, add("Max", count, number(1)))
    starts = add("Add", begin, add("Mul", step, g.const(numpy_of(np.arange(bins), kind), hint)))  # (R, bins)
    at = add("Add", add("Unsqueeze", starts, g.ints([2], hint)), add("Unsqueeze", within, g.ints([1], hint)))
    end = add("Cast", size, to=kind)
    inside = add("And", add("GreaterOrEqual", at, number(-1)), add("LessOrEqual", at, end))
    last = add("Sub", size, g.const(np.array(1, np.int64), hint))
    at = add("Min", add("Max", at, number(0)), add("Cast", last, to=kind))
    down = add("Floor", at)
    low = add("Min", add("Max", add("Cast", down, to=TensorProto.INT64), g.const(np.array(0, np.int64), hint)), last)
    high = add("Min", add("Add", low, g.const(np.array(1, np.int64), hint)), last)
    weight = add("Cast", inside, to=kind)
    behind = add("Sub", at, down)
    before = add("Mul", add("Sub", number(1), behind), weight)
    if there:  # as many for each bin
        shape = g.ints([1, bins, 1], hint)
        there = add("Expand", there, shape)
    return _Samples(low, high, before, add("Mul", behind, weight), there, count)


def numpy_of(values: object, kind: int) -> np.ndarray[tuple[int, ...], np.dtype[np.floating]]:
    """A row of f64 or f32."""
    return np.asarray(values, np.float64 if kind == TensorProto.DOUBLE else np.float32)
