"""What a Conv with a weight of the network says of its sizes, where these are known but for the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.epilogue import POINTWISE
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

SLICE_OPSET = 13
"""The first opset whose Slice IREE's frontend knows."""
_MOST_NODES = 16
"""So far behind a Conv its consumers are looked at."""


@dataclass(frozen=True)
class ConvShape:
    """`images` of a batch, None where only a run knows. Every group has `own` channels of the image and as many `columns` of the
    result. `pads` are those before every axis of `sizes` and then those behind."""

    images: int | None
    groups: int
    own: int
    columns: int
    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    @property
    def padded(self) -> tuple[int, ...]:
        """The sizes with their pads."""
        axes = len(self.sizes)
        return tuple(n + self.pads[i] + self.pads[axes + i] for i, n in enumerate(self.sizes))


def conv_shape(g: GraphWriter, node: onnx.NodeProto) -> ConvShape | None:
    """None where the weight is none of the network, and where sizes are unknown or do not fit together."""
    shape, weight, groups = g.shape(node.input[0]), g.shape(node.input[1]), attr_of(node, "group", 1)
    if not g.is_constant(node.input[1]) or shape is None or weight is None or len(shape) != len(weight):
        return None
    known, held = [d for d in shape[1:] if isinstance(d, int)], [d for d in weight if isinstance(d, int)]
    if (
        len(shape) < 3
        or shape[0] == 0
        or len(known) < len(shape) - 1
        or len(held) < len(weight)
        or min(*known, *held) < 1
    ):
        return None
    (channels, *sizes), (columns, own, *kernel), axes = known, held, len(known) - 1
    strides, dilations = (tuple(attr_of(node, name, [1] * axes)) for name in ("strides", "dilations"))
    if channels != own * groups or columns % groups or list(attr_of(node, "kernel_shape", kernel)) != kernel:
        return None
    pads = pads_of(node, sizes, kernel, strides, dilations)
    if min(pads) < 0:
        return None
    images = shape[0] if isinstance(shape[0], int) else None
    return ConvShape(images, groups, own, columns // groups, tuple(sizes), tuple(kernel), strides, dilations, pads)


def pad_image(g: GraphWriter, x: str, shape: ConvShape, hint: str, *, last: bool = False) -> str:
    """The image with its pads, whose channels come first, or `last`."""
    if not any(shape.pads):
        return x
    axes = len(shape.sizes)
    both = [(0, 0), *([] if last else [(0, 0)]), *zip(shape.pads[:axes], shape.pads[axes:], strict=True)]
    both += [(0, 0)] * last
    return add_pads(g, x, [low for low, _ in both] + [high for _, high in both], hint)


def add_pads(g: GraphWriter, x: str, pads: Sequence[int], hint: str) -> str:
    """A value with so many zeros in front of each axis, and then behind each."""
    if g.opset < 11:  # attributes until then
        return g.add("Pad", [x], hint, pads=pads)
    return g.add("Pad", [x, g.ints(pads, hint)], hint)


def is_turned(g: GraphWriter, y: str) -> bool:
    """Whether a Transpose reads what comes of a value by operators of single numbers."""
    left, seen = [y], {y}
    while left and len(seen) < _MOST_NODES:
        for place in g.readers(left.pop()):
            node = g.graph.node[place]
            if op_of(node) == "Transpose":
                return True
            if op_of(node) in (*POINTWISE, "Reshape", "Flatten", "Squeeze") and node.output[0] not in seen:
                seen.add(node.output[0])
                left.append(node.output[0])
    return False


def pads_of(
    node: onnx.NodeProto, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[int, ...]:
    """The pads before every axis and then those behind: of its attributes, or, of `auto_pad`, by sizes."""
    auto = attr_of(node, "auto_pad", b"NOTSET")
    if not auto.startswith(b"SAME"):
        return tuple(attr_of(node, "pads", [0] * 2 * len(sizes))) if auto == b"NOTSET" else (0,) * 2 * len(sizes)
    both = []
    for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        both.append(max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0))
    less, more = [n // 2 for n in both], [n - n // 2 for n in both]
    return tuple(less + more if auto == b"SAME_UPPER" else more + less)
