"""Networks of convolutions with channels last, where that turns fewer numbers.

ONNX has an image's channels first. A convolution of one tap is then a product between two transposes, which take longer than the
product itself, or one that IREE computes at a quarter of its kernel's speed. Here parts of a network that are connected by images
are found whose nodes can do with channels last, and of each it is counted how many numbers are turned: of an image at its borders,
or around its products. What has fewer at its borders is written with images as rows (image_rows.py)."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.conv_shapes import SLICE_OPSET
from onnx_fa.iree.legalise.group_norm import GROUP_NORM, group_norm, join_group_norms
from onnx_fa.iree.legalise.image_rows import Image, ImageWriter
from onnx_fa.iree.legalise.row_forms import FORMS
from onnx_fa.iree.legalise.row_parts import write_parts
from onnx_fa.iree.legalise.window_rows import WINDOW_FORMS
from onnx_fa.iree.legalise.writer import GraphWriter, declare_own_nodes
from onnx_fa.kernels.cpu.window import panel_of
from onnx_fa.spec.target import Target

_IMAGE_DIMS = 4
_FORMS = {**FORMS, **WINDOW_FORMS, GROUP_NORM: group_norm, "GroupNormalization": group_norm}


def put_channels_last(
    model: onnx.ModelProto, held: Mapping[str, ir.TensorProtocol] | None = None, *, target: Target | None = None
) -> None:
    """Writes parts of the main graph with channels last, in place, for a CPU or a CUDA device whose kernels take them. `held` are
    initializers whose data are not in the model; types of values are taken from `value_info`."""
    g = GraphWriter(model, held, target=target)
    there = g.cuda is not None if g.cpu is None else panel_of(g.cpu.lanes, g.cpu) > 0
    if not there or g.opset < SLICE_OPSET:
        return
    kinds = {g.kind(node.input[0]) for node in model.graph.node if op_of(node) == "Conv"}
    changed = bool(kinds) and join_group_norms(g)
    for kind in kinds.intersection(g.kernel_kinds):
        g = GraphWriter(model, held, target=target)
        images = _images(g, kind)
        changed |= write_parts(g, images, _FORMS, ImageWriter(g, images, kind))
    if changed:
        declare_own_nodes(model)


def _images(g: GraphWriter, kind: int) -> dict[str, Image]:
    """All values of a kind that are images of known sizes, and those with their places in one row that a Transpose reads or
    makes."""
    found = {}
    for node in g.graph.node:
        for name in (*node.input, *node.output):
            shape = g.shape(name)
            if g.kind(name) != kind or shape is None or g.is_constant(name):
                continue
            batch, *sizes = shape if shape else [None]
            known = [d for d in sizes if isinstance(d, int) and d > 0]
            if batch == 0 or len(known) != len(sizes):
                continue
            if len(known) == _IMAGE_DIMS - 1 or (len(known) == _IMAGE_DIMS - 2 and _is_between(g, name)):
                channels, height, width = [*known, 1][: _IMAGE_DIMS - 1]
                found[name] = Image(batch, channels, height, width)
    return found


def _is_between(g: GraphWriter, name: str) -> bool:
    """Whether a value (batch, channels, places) comes of an image and is turned, or is an image that was turned."""
    maker, readers = g.maker(name), [op_of(g.graph.node[place]) for place in g.readers(name)]
    if maker is None or not readers or g.is_output(name):
        return False
    made = op_of(maker)
    if made in ("Reshape", "Flatten") and len(g.shape(maker.input[0]) or ()) == _IMAGE_DIMS:
        return set(readers) == {"Transpose"}
    return made == "Transpose" and set(readers) == {"Reshape"}
