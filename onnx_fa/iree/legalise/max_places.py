"""MaxPool that also gives the places of its maxima. IREE counts them within an image, silently, and with other pads before an axis
than behind it from another place (docs/developer/iree-bugs.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.conv_shapes import pads_of
from onnx_fa.iree.legalise.windows import check_places, check_same
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def places_of_maxima(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """The maxima of images whose pads are there, and their places among all elements, in either `storage_order`. False where nobody
    reads the places. Raises ModelError for images whose size only a run knows, for integers, and for a last window that onnx counts
    and onnxruntime does not."""
    if op_of(node) != "MaxPool" or len(node.output) < 2:
        return False
    if not (g.readers(node.output[1]) or g.is_output(node.output[1])):
        return False
    x, shape, kind, hint = node.input[0], g.shape(node.input[0]), g.kind(node.input[0]), node.name or "MaxPool"
    sizes = [d for d in (shape or [])[2:] if isinstance(d, int)]
    channels = shape[1] if shape is not None and len(shape) > 2 else None
    if shape is None or len(sizes) != len(shape) - 2 or not isinstance(channels, int) or kind not in _FLOATS:
        raise ModelError(
            f"node {node.name!r}: MaxPool that gives the places of its maxima, which IREE counts wrongly, of what is no image of "
            "floats of a static size (--dim)"
        )
    check_same(node)
    axes, kernel = len(sizes), attr_of(node, "kernel_shape", [])
    strides, dilations = (attr_of(node, name, [1] * axes) for name in ("strides", "dilations"))
    pads = pads_of(node, sizes, kernel, strides, dilations)
    low, high = pads[:axes], []
    for i, (size, width, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        reach = (width - 1) * dilation + 1
        rows = size + pads[i] + pads[axes + i] - reach
        count = rows // stride + 1
        if attr_of(node, "ceil_mode", 0) and rows % stride and count * stride < size + pads[i]:
            count += 1
        check_places(g, node, i, count)
        high.append((count - 1) * stride + reach - size - pads[i])
    x = _padded(g, x, kind, low, high, hint)
    inner = g.fresh(hint)
    made = helper.make_node("MaxPool", [x], [node.output[0] or g.fresh(hint), inner], g.fresh(f"{hint}/MaxPool"))
    for name, numbers in (("kernel_shape", kernel), ("strides", strides), ("dilations", dilations)):
        made.attribute.append(helper.make_attribute(name, numbers))
    g.nodes.append(made)
    order = range(axes) if attr_of(node, "storage_order", 0) else range(axes - 1, -1, -1)
    padded = [a + size + b for a, size, b in zip(low, sizes, high, strict=True)]
    total, before, behind = _images(g, node.input[0], shape, math.prod(sizes), hint), 1, dict[int, int]()
    for i in range(axes):
        behind[i] = math.prod(padded[i + 1 :])
    for i in order:
        along = g.add("Div", [inner, _number(g, behind[i], hint)], hint)
        along = g.add("Mod", [along, _number(g, padded[i], hint)], hint)
        along = g.add("Sub", [along, _number(g, low[i], hint)], hint)
        total = g.add("Add", [total, g.add("Mul", [along, _number(g, before, hint)], hint)], hint)
        before *= sizes[i]
    g.add("Identity", [total], hint, out=node.output[1])
    return True


def _padded(g: GraphWriter, x: str, kind: int, low: Sequence[int], high: Sequence[int], hint: str) -> str:
    """x with so many rows of -inf before and behind, or without those at its end where that is below 0."""
    cut = [i for i, n in enumerate(high) if n < 0]
    if cut:
        bounds = ([0] * len(cut), [high[i] for i in cut], [i + 2 for i in cut])
        x = g.add("Slice", [x, *(g.ints(numbers, hint) for numbers in bounds)], hint)
    behind = [max(n, 0) for n in high]
    if not any((*low, *behind)):
        return x
    return g.add("Pad", [x, g.ints([0, 0, *low, 0, 0, *behind], hint), g.scalar(-math.inf, kind, hint)], hint)


def _images(g: GraphWriter, x: str, shape: Sequence[int | str | None], area: int, hint: str) -> str:
    """(batch, channels, 1, ...): the place of every image's first element."""
    batch, channels, *sizes = shape
    assert isinstance(channels, int)
    ones = [1] * len(sizes)
    own = np.arange(channels).reshape(1, channels, *ones) * area
    if isinstance(batch, int):
        return g.const(own + np.arange(batch).reshape(batch, 1, *ones) * (channels * area), hint)
    first, step = (g.scalar(n, TensorProto.INT64, hint) for n in (0, 1))
    images = g.reshape(g.add("Range", [first, g.size(x, 0, hint), step], hint), [-1, 1, *ones], hint)
    return g.add("Add", [g.add("Mul", [images, _number(g, channels * area, hint)], hint), g.const(own, hint)], hint)


def _number(g: GraphWriter, number: int, hint: str) -> str:
    return g.scalar(number, TensorProto.INT64, hint)
