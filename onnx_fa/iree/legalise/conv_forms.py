"""In which form a Conv reaches IREE."""

from __future__ import annotations

import onnx

from onnx_fa.iree.legalise.convolutions import convolution
from onnx_fa.iree.legalise.depthwise import depthwise
from onnx_fa.iree.legalise.patches import patches
from onnx_fa.iree.legalise.volumes import grouped_images, regroup
from onnx_fa.iree.legalise.windows import trim_rows
from onnx_fa.iree.legalise.writer import GraphWriter


def conv(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A Conv as a matmul where it is one, as a call of a kernel where one takes it, as sums where it is depthwise, of images where
    it is one of volumes in groups, and without rows that no window reads where IREE miscounts them."""
    if patches(g, node) or convolution(g, node) or depthwise(g, node):
        return True
    images = grouped_images(g, node)
    if images is not None:
        write_conv(g, images)
        regroup(g, node, images)
        return True
    trimmed = trim_rows(g, node)
    if trimmed is None or patches(g, trimmed):
        return trimmed is not None
    g.nodes.append(trimmed)
    return True


def write_conv(g: GraphWriter, node: onnx.NodeProto) -> None:
    """Adds a Conv that the graph did not have, in its form."""
    if not conv(g, node):
        g.nodes.append(node)
