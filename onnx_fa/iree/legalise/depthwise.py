"""A Conv of every channel for itself as a sum of products: of a part of the image for each tap, and a number of each channel. IREE
reads all parts in one loop over vectors, where its own depthwise convolution takes two to five times as long on CPUs."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.iree.legalise.conv_shapes import SLICE_OPSET, conv_shape, is_turned, pad_image
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter

_MOST_TAPS = 64
"""More make dispatches of a size that nobody has measured."""


def depthwise(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A Conv of f32, f16 or bf16 on a CPU, with as many groups as channels, of sizes that are known but for the batch. Its sums are
    f32. Channels lie last while it is computed where the graph turns the result so, and where windows are further apart than one:
    their numbers then lie apart too. Of f16 and bf16 such windows stay: nothing was gained there."""
    kind = g.kind(node.input[0])
    if g.cpu is None or kind not in FLOATS or g.opset < SLICE_OPSET:
        return False
    shape, weight = conv_shape(g, node), g.array(node.input[1])
    if shape is None or weight is None or shape.own != 1 or shape.columns != 1 or not shape.groups > 1:
        return False
    if kind != TensorProto.FLOAT and max(shape.strides) > 1:
        return False
    axes = list(zip(shape.padded, shape.kernel, shape.strides, shape.dilations, strict=True))
    places = [(size - (k - 1) * d - 1) // s + 1 for size, k, s, d in axes]
    if min(places) < 1 or not 1 < int(np.prod(shape.kernel)) <= _MOST_TAPS:
        return False
    hint, n = node.name or "Conv", len(axes)
    last = max(shape.strides) > 1 or is_turned(g, node.output[0])
    by_tap = weight.reshape(shape.groups, -1).astype(np.float32)
    numbers = (shape.groups,) if last else (shape.groups, *[1] * n)
    x = g.cast(node.input[0], kind, TensorProto.FLOAT, hint)
    if last:
        x = g.add("Transpose", [x], hint, perm=[0, *range(2, n + 2), 1])
    x = pad_image(g, x, shape, hint, last=last)
    first, total = 1 if last else 2, ""
    where, steps = g.ints(range(first, first + n), hint), g.ints(shape.strides, hint)
    for tap in itertools.product(*map(range, shape.kernel)):
        starts = [t * d for t, d in zip(tap, shape.dilations, strict=True)]
        ends = [low + (count - 1) * s + 1 for low, count, s in zip(starts, places, shape.strides, strict=True)]
        part = g.add("Slice", [x, g.ints(starts, hint), g.ints(ends, hint), where, steps], hint)
        own = by_tap[:, np.ravel_multi_index(tap, shape.kernel)].reshape(numbers)
        product = g.add("Mul", [part, g.const(own, hint)], hint)
        total = g.add("Add", [total, product], hint) if total else product
    if len(node.input) > 2 and node.input[2]:
        bias = g.cast(node.input[2], kind, TensorProto.FLOAT, hint)
        total = g.add("Add", [total, g.reshape(bias, numbers, hint)], hint)
    if last:
        total = g.add("Transpose", [total], hint, perm=[0, n + 1, *range(1, n + 1)])
    if kind == TensorProto.FLOAT:
        g.nodes[-1].output[0] = node.output[0]  # what was added last made the result
    else:
        g.cast(total, TensorProto.FLOAT, kind, hint, out=node.output[0])
    return True
