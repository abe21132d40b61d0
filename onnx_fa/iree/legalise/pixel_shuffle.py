"""DepthToSpace and SpaceToDepth of mode "CRD", torch's pixel shuffle and its inverse, which IREE computes wrongly without a word
(docs/developer/iree-bugs.md)."""

from __future__ import annotations

import numpy as np
import onnx

from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of


def depth_to_space(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """That of mode "DCR", which IREE computes rightly, on channels in another order: (c, i, j) of "CRD" at (i, j, c) (ONNX's
    Operators.md). Raises ModelError for a number of channels that only a run knows."""
    if attr_of(node, "mode", b"DCR") != b"CRD":
        return False
    channels, block, hint = _channels(g, node), attr_of(node, "blocksize", 1), node.name or "DepthToSpace"
    order = np.arange(channels).reshape(-1, block, block).transpose(1, 2, 0).ravel()
    x = g.add("Gather", [node.input[0], g.const(order, hint)], hint, axis=1)
    g.add("DepthToSpace", [x], hint, out=node.output[0], blocksize=block)
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
