"""DepthToSpace and SpaceToDepth of mode "CRD", torch's pixel shuffle and its inverse, which IREE computes wrongly without a word
(docs/developer/iree-bugs.md)."""

from __future__ import annotations

import numpy as np
import onnx

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

_KNOWN = 3
"""Dims of an image beside its channels."""


def depth_to_space(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """That of mode "DCR", which IREE computes rightly, on channels in another order: (c, i, j) of "CRD" at (i, j, c) (ONNX's
    Operators.md). Raises ModelError for mode "CRD" of a number of channels that only a run knows, unless all else is known."""
    if _of_free_channels(g, node):
        return True
    if attr_of(node, "mode", b"DCR") != b"CRD":
        return False
    channels, block, hint = _channels(g, node), attr_of(node, "blocksize", 1), node.name or "DepthToSpace"
    order = np.arange(channels).reshape(-1, block, block).transpose(1, 2, 0).ravel()
    x = g.add("Gather", [node.input[0], g.const(order, hint)], hint, axis=1)
    g.add("DepthToSpace", [x], hint, out=node.output[0], blocksize=block)
    return True


def _of_free_channels(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A number of channels that only a run knows, which IREE refuses: TensorFlow's batch_to_space has the batch there."""
    batch, channels, *sizes = g.shape(node.input[0]) or [None, None]
    known = [d for d in (batch, *sizes) if isinstance(d, int) and d > 0]
    if isinstance(channels, int) or len(known) != _KNOWN:
        return False
    (images, height, width), block, hint = known, attr_of(node, "blocksize", 1), node.name or "DepthToSpace"
    columns_first = attr_of(node, "mode", b"DCR") == b"CRD"
    apart = [-1, block, block] if columns_first else [block, block, -1]
    x = g.reshape(node.input[0], [images, *apart, height, width], hint)
    x = g.add("Transpose", [x], hint, perm=[0, 1, 4, 2, 5, 3] if columns_first else [0, 3, 4, 1, 5, 2])
    g.reshape(x, [images, -1, height * block, width * block], hint, out=node.output[0])
    return True


def space_to_depth(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """That of mode "DCR", the only one before opset 28, with its channels in the other order. Raises ModelError for a number of
    channels that only a run knows."""
    if attr_of(node, "mode", b"DCR") != b"CRD":
        return False
    channels, block, hint = _channels(g, node), attr_of(node, "blocksize", 1), node.name or "SpaceToDepth"
    x = g.add("SpaceToDepth", [node.input[0]], hint, blocksize=block)
    order = np.arange(channels * block * block).reshape(block, block, channels).transpose(2, 0, 1).ravel()
    g.add("Gather", [x, g.const(order, hint)], hint, out=node.output[0], axis=1)
    return True


def _channels(g: GraphWriter, node: onnx.NodeProto) -> int:
    """Those of the input. Raises ModelError where only a run knows them."""
    shape = g.shape(node.input[0])
    channels = shape[1] if shape is not None else None
    if not isinstance(channels, int):
        raise ModelError(
            f'node {node.name!r}: {node.op_type} of mode "CRD" needs a static number of channels: IREE computes it wrongly'
        )
    return channels
