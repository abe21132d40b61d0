"""Convolutions of volumes in groups, which IREE refuses: it has those of one group alone along three axes."""

from __future__ import annotations

import numpy as np
import onnx

from onnx_fa.iree.legalise.conv_shapes import add_pads
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

Dims = list[int | str | None]


def grouped_images(g: GraphWriter, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """A Conv of images in place of one of volumes (batch, channels, depth, height, width) in more groups than one: the slices that
    a window reads stand side by side as channels of their group. Adds what is in front of it, and gives it back to be added;
    `regroup` adds what is behind it. None for others, and where a size besides the batch is known to a run alone."""
    shape, weight = g.shape(node.input[0]), g.shape(node.input[1])
    groups = attr_of(node, "group", 1)
    if shape is None or weight is None or len(shape) != 5 or groups < 2:
        return None
    if attr_of(node, "auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID") or not _known(shape[1:]) or not _known(weight):
        return None
    return _images(g, node, [int(d or 0) for d in shape[1:]], [int(d or 0) for d in weight], groups)


def _known(dims: Dims) -> bool:
    return all(isinstance(d, int) for d in dims)


def _images(
    g: GraphWriter, node: onnx.NodeProto, sizes: list[int], weight: list[int], groups: int
) -> onnx.NodeProto | None:
    hint, kind = node.name or "Conv", g.kind(node.input[0])
    (channels, *space), (made, own, *taps) = sizes, weight
    pads = list(attr_of(node, "pads", [0] * 6))
    strides, dilations = (list(attr_of(node, name, [1] * 3)) for name in ("strides", "dilations"))
    left = [
        (n + pads[i] + pads[i + 3] - dilations[i] * (taps[i] - 1) - 1) // strides[i] + 1 for i, n in enumerate(space)
    ]
    if min(left) < 1:
        return None
    x = node.input[0]
    if pads[0] or pads[3]:
        x = add_pads(g, x, [0, 0, pads[0], 0, 0, 0, 0, pads[3], 0, 0], hint)
    rows = [np.arange(left[0]) * strides[0] + tap * dilations[0] for tap in range(taps[0])]
    places = g.const(np.stack(rows).astype(np.int64), hint)  # (taps, depth of the result)
    seen = g.add("Gather", [x, places], hint, axis=2)  # (batch, channels, taps, depth, height, width)
    seen = g.add("Transpose", [seen], hint, perm=[0, 3, 1, 2, 4, 5])
    images = g.typed(
        g.reshape(seen, [-1, channels * taps[0], *space[1:]], hint), kind, [None, channels * taps[0], *space[1:]]
    )
    flat = [made, own * taps[0], *taps[1:]]
    weights = g.typed(g.reshape(node.input[1], flat, hint), kind, flat)
    each = g.typed(g.fresh(hint), kind, [None, made, *left[1:]])
    return onnx.helper.make_node(
        "Conv",
        [images, weights, *node.input[2:]],
        [each],
        name=g.fresh(f"{hint}/images"),
        group=groups,
        kernel_shape=taps[1:],
        strides=strides[1:],
        dilations=dilations[1:],
        pads=[pads[1], pads[2], pads[4], pads[5]],
    )


def regroup(g: GraphWriter, node: onnx.NodeProto, images: onnx.NodeProto) -> None:
    """Adds what makes volumes of the images of `images`, which are the result of `node`."""
    hint, (x,) = node.name or "Conv", images.output
    made = g.shape(x) or []
    shape, taps = g.shape(node.input[0]) or [], g.shape(node.input[1]) or []
    pads, depth = list(attr_of(node, "pads", [0] * 6)), int(shape[2] or 0)
    reach = attr_of(node, "dilations", [1] * 3)[0] * (int(taps[2] or 0) - 1) + 1
    left = (depth + pads[0] + pads[3] - reach) // attr_of(node, "strides", [1] * 3)[0] + 1
    volumes = g.reshape(x, [-1, left, *(int(d or 0) for d in made[1:])], hint)
    g.add("Transpose", [volumes], hint, out=node.output[0], perm=[0, 2, 1, 3, 4])
