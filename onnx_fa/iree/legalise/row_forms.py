"""How nodes are written whose images lie as rows (image_rows.py): what computes single numbers, what takes channels together or
apart, and what moves axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.epilogue import POINTWISE
from onnx_fa.iree.legalise.image_rows import Image, ImageWriter, Places, RowsForm, RowsWriter
from onnx_fa.iree.legalise.resize_known import axes_of
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

Images = Mapping[str, Image]
SINGLE = {*POINTWISE, "PRelu", "Selu", "Celu", "Softsign", "Mish", "Swish", "ThresholdedRelu", "Tan", "Atan"}
"""Operators of single numbers, which mean the same wherever these lie."""


def _is_channels(axis: int, image: Places) -> bool:
    return axis in (1, 1 - image.rank)


def pointwise(g: GraphWriter, images: Mapping[str, Places], node: onnx.NodeProto) -> RowsForm | None:
    """An operator of single numbers. What it reads beside images are constants, with a number for each channel or one for all, and
    single numbers of the run."""
    if op_of(node) not in SINGLE or len(node.output) != 1 or node.output[0] not in images:
        return None
    whole, read = images[node.output[0]], list[str]()
    for name in filter(None, node.input):
        if g.is_one_number(name):
            continue
        if _is_known(g, name, whole):
            if _by_channel(g, name, whole) is None:
                return None
            continue
        image = images.get(name)
        if image is None or not _spreads(image, whole):
            return None
        read.append(name)
    return RowsForm(tuple(read), (node.output[0],), _write_pointwise) if read else None


def _spreads(image: Places, whole: Places) -> bool:
    """Whether an image is added to a larger one as rows as it is with channels first."""
    places = image.where == whole.where or set(image.where) == {1}
    return places and image.channels in (1, whole.channels) and image.batch == whole.batch


def _is_known(g: GraphWriter, name: str, whole: Places) -> bool:
    """Whether what is read beside images is a constant, or numbers of channels that are computed of some."""
    return g.is_constant(name) or (_by_channel(g, name, whole) is not None and g.comes_of_constants(name))


def _by_channel(g: GraphWriter, name: str, whole: Places) -> list[int] | None:
    """The shape in which a constant stands beside rows; None where it has a number for each place."""
    shape = g.shape(name)
    if shape is None or len(shape) > whole.rank:
        return None
    batch, channels, *places = [1] * (whole.rank - len(shape)) + list(shape)
    return [channels] if {batch, *places} == {1} and channels in (1, whole.channels) else None


def _write_pointwise(w: RowsWriter[Any], node: onnx.NodeProto) -> None:
    g, (y,), hint = w.g, node.output, node.name or node.op_type
    made = onnx.NodeProto()
    made.CopyFrom(node)
    for i, name in enumerate(node.input):
        if not name or g.is_one_number(name):
            continue
        if not _is_known(g, name, w.images[y]):
            made.input[i] = w.read(name, hint)
        elif shape := _by_channel(g, name, w.images[y]):
            array = g.array(name)
            made.input[i] = g.reshape(name, shape, hint) if array is None else g.const(array.reshape(shape), hint)
            g.types[made.input[i]] = (g.kind(name), list(shape))
    made.output[0] = g.fresh(hint)
    g.nodes.append(made)
    w.give(y, made.output[0])


def batch_norm(g: GraphWriter, images: Mapping[str, Places], node: onnx.NodeProto) -> RowsForm | None:
    """A BatchNormalization of a network that is not trained: a factor and a number for each channel."""
    x, y = node.input[0], node.output[0]
    plain = len([o for o in node.output if o]) == 1 and not attr_of(node, "training_mode", 0)
    if not plain or x not in images or y not in images or any(g.array(name) is None for name in node.input[1:5]):
        return None
    return RowsForm((x,), (y,), _write_batch_norm)


def _write_batch_norm(w: RowsWriter[Any], node: onnx.NodeProto) -> None:
    g, hint = w.g, node.name or node.op_type
    scale, shift, mean, variance = (np.asarray(g.array(name), np.float64) for name in node.input[1:5])
    factor = scale / np.sqrt(variance + attr_of(node, "epsilon", 1e-5))
    image = w.images[node.output[0]]
    x, single = w.read(node.input[0], hint), w.kind == TensorProto.FLOAT
    if not single:  # all of it is rounded once
        x = g.typed(g.cast(x, w.kind, TensorProto.FLOAT, hint), TensorProto.FLOAT, image.rows)

    def step(op: str, x: str, numbers: np.ndarray) -> str:
        made = g.add(op, [x, g.const(numbers.astype(np.float32), hint)], hint)
        return g.typed(made, TensorProto.FLOAT, image.rows)

    made = step("Add", step("Mul", x, factor), shift - mean * factor)
    w.give(node.output[0], made if single else g.cast(made, TensorProto.FLOAT, w.kind, hint))


def concat(g: GraphWriter, images: Mapping[str, Places], node: onnx.NodeProto) -> RowsForm | None:
    """Channels of several images behind each other."""
    y = node.output[0]
    if y not in images or not _is_channels(attr_of(node, "axis", 0), images[y]):
        return None
    if any(x not in images or images[x].where != images[y].where for x in node.input):
        return None
    return RowsForm(tuple(node.input), (y,), _write_concat)


def _write_concat(w: RowsWriter[Any], node: onnx.NodeProto) -> None:
    hint, (y,), whole = node.name or node.op_type, node.output, tuple(node.input)
    # The Concat before may have all but the last: DenseNet's layers are n copies each instead of two.
    before = next((n for n in range(len(whole) - 1, 1, -1) if whole[:n] in w.joined), 0)
    names = [w.joined[whole[:before]], *whole[before:]] if before else whole
    parts = [w.read(x, hint) for x in names]
    w.give(y, w.step("Concat", parts, w.images[y].rows, hint, axis=2))
    w.joined[whole] = y


def split(g: GraphWriter, images: Mapping[str, Places], node: onnx.NodeProto) -> RowsForm | None:
    """Channels of an image in several parts."""
    x, results = node.input[0], tuple(node.output)
    if x not in images or any(y not in images or images[y].where != images[x].where for y in results):
        return None
    if not _is_channels(attr_of(node, "axis", 0), images[x]):
        return None
    return RowsForm((x,), results, _write_split)


def _write_split(w: RowsWriter[Any], node: onnx.NodeProto) -> None:
    hint, low = node.name or node.op_type, 0
    x = w.read(node.input[0], hint)
    for y in node.output:
        high = low + w.images[y].channels
        w.give(y, _cut(w, x, (2, low, high, 1), w.images[y], hint))
        low = high


def slice_(g: GraphWriter, images: Mapping[str, Places], node: onnx.NodeProto) -> RowsForm | None:
    """Some channels of an image."""
    x, y = node.input[0], node.output[0]
    if x not in images or y not in images or len(node.input) < 4:
        return None
    numbers = [None if not name else g.array(name) for name in node.input[1:]]
    if any(n is None or n.size != 1 for n in numbers):
        return None
    start, _, axis, *step = (int(n.reshape(())) for n in numbers if n is not None)
    if not _is_channels(axis, images[x]) or (step and step[0] < 1):
        return None
    low = max(start + images[x].channels if start < 0 else start, 0)
    each = step[0] if step else 1
    return RowsForm((x,), (y,), partial(_write_slice, low, each))


def _write_slice(low: int, each: int, w: RowsWriter[Any], node: onnx.NodeProto) -> None:
    hint, (y,) = node.name or node.op_type, node.output
    high = low + (w.images[y].channels - 1) * each + 1
    w.give(y, _cut(w, w.read(node.input[0], hint), (2, low, high, each), w.images[y], hint))


def _cut(w: RowsWriter[Any], x: str, bounds: tuple[int, int, int, int], image: Places, hint: str) -> str:
    axis, low, high, step = (w.g.ints([n], hint) for n in bounds)
    return w.step("Slice", [x, low, high, axis, step], image.rows, hint)


def flatten_places(g: GraphWriter, images: Images, node: onnx.NodeProto) -> RowsForm | None:
    """A Reshape of an image to (batch, channels, places), or back: as rows both are the same."""
    x, y = node.input[0], node.output[0]
    if x not in images or y not in images or images[x].rows[1:] != images[y].rows[1:]:
        return None
    return RowsForm((x,), (y,), write_same)


def write_same(w: RowsWriter[Any], node: onnx.NodeProto) -> None:
    """Says that a node's result is, as rows, what it reads."""
    w.give(node.output[0], w.read(node.input[0], node.name or node.op_type))


def transpose(g: GraphWriter, images: Images, node: onnx.NodeProto) -> RowsForm | None:
    """A Transpose that puts the channels of an image last, or those of something else first: as rows none."""
    x, y, perm = node.input[0], node.output[0], list(attr_of(node, "perm", []))
    if x not in images and y not in images:
        return None
    if perm in ([0, 2, 3, 1], [0, 2, 1]) and x in images and len(g.shape(x) or ()) == len(perm):
        return RowsForm((x,), (), _write_leave, images[x].numbers)
    if perm in ([0, 3, 1, 2], [0, 2, 1]) and y in images and len(g.shape(y) or ()) == len(perm):
        return RowsForm((), (y,), _write_enter, images[y].numbers)
    return None


def _write_leave(w: ImageWriter, node: onnx.NodeProto) -> None:
    image, hint = w.images[node.input[0]], node.name or node.op_type
    dims = [image.height, image.width] if len(attr_of(node, "perm", [])) == 4 else [image.places]
    w.g.reshape(w.read(node.input[0], hint), [0, *dims, image.channels], hint, out=node.output[0])


def _write_enter(w: ImageWriter, node: onnx.NodeProto) -> None:
    image, hint, (y,) = w.images[node.output[0]], node.name or node.op_type, node.output
    w.give(y, w.g.reshape(node.input[0], [0, image.places, image.channels], hint))


def pad(g: GraphWriter, images: Images, node: onnx.NodeProto) -> RowsForm | None:
    """Pads of places, with one number."""
    x, y = node.input[0], node.output[0]
    if x not in images or y not in images or attr_of(node, "mode", b"constant") != b"constant":
        return None
    pads = None if len(node.input) < 2 or any(node.input[3:]) else g.array(node.input[1])
    if pads is None or len(pads) != 8 or any(pads[[0, 1, 4, 5]]):
        return None
    if len(node.input) > 2 and node.input[2] and not g.is_one_number(node.input[2]):
        return None
    return RowsForm((x,), (y,), partial(_write_pad, [int(n) for n in pads]))


def _write_pad(pads: list[int], w: ImageWriter, node: onnx.NodeProto) -> None:
    hint, (y,) = node.name or node.op_type, node.output
    moved = [0, *pads[2:4], 0, 0, *pads[6:8], 0]
    plane = w.read_plane(node.input[0], hint)
    w.give_plane(y, w.g.add("Pad", [plane, w.g.ints(moved, hint), *node.input[2:3]], hint), hint)


def enlarge(g: GraphWriter, images: Images, node: onnx.NodeProto) -> RowsForm | None:
    """A Resize by whole numbers to the nearest place: every place some times."""
    x, y = node.input[0], node.output[0]
    if x not in images or y not in images or attr_of(node, "mode", b"nearest") != b"nearest":
        return None
    axes, rounding = axes_of(g, node) or {}, attr_of(node, "nearest_mode", b"round_prefer_floor").decode()
    for place, size, made in ((2, images[x].height, images[y].height), (3, images[x].width, images[y].width)):
        times = np.repeat(np.arange(size), made // size)
        if place not in axes or made % size or not np.array_equal(axes[place].nearest(rounding), times):
            return None
    if images[x].channels != images[y].channels or axes[2].is_doubtful(rounding) or axes[3].is_doubtful(rounding):
        return None
    return RowsForm((x,), (y,), _write_enlarge)


def _write_enlarge(w: ImageWriter, node: onnx.NodeProto) -> None:
    hint, (x, *_), (y,) = node.name or node.op_type, node.input, node.output
    small, large, g = w.images[x], w.images[y], w.g
    down, across = large.height // small.height, large.width // small.width
    apart = [small.batch, small.height, 1, small.width, 1, small.channels]
    each = g.reshape(w.read(x, hint), [0, *(d for d in apart[1:] if isinstance(d, int))], hint)
    g.typed(each, w.kind, apart)
    times = g.ints([1, 1, down, 1, across, 1], hint)
    spread = [small.batch, small.height, down, small.width, across, small.channels]
    many = w.step("Expand", [each, times], spread, hint)
    w.give(y, g.reshape(many, [0, large.places, large.channels], hint))


def shuffle(g: GraphWriter, images: Images, node: onnx.NodeProto) -> RowsForm | None:
    """A DepthToSpace of mode "DCR", whose columns of one place of a block lie side by side."""
    x, y = node.input[0], node.output[0]
    if x not in images or y not in images or attr_of(node, "mode", b"DCR") != b"DCR":
        return None
    return RowsForm((x,), (y,), _write_shuffle)


def _write_shuffle(w: ImageWriter, node: onnx.NodeProto) -> None:
    hint, (x, y), block = node.name or node.op_type, (node.input[0], node.output[0]), attr_of(node, "blocksize", 1)
    small, large, g = w.images[x], w.images[y], w.g
    apart = [small.batch, small.height, small.width, block, block, large.channels]
    blocks = g.reshape(w.read(x, hint), [0, *(d for d in apart[1:] if isinstance(d, int))], hint)
    g.typed(blocks, w.kind, apart)
    perm = [0, 1, 3, 2, 4, 5]
    turned = g.typed(g.add("Transpose", [blocks], hint, perm=perm), w.kind, [apart[i] for i in perm])
    w.give(y, g.reshape(turned, [0, large.places, large.channels], hint))


FORMS: dict[str, Callable[[GraphWriter, Images, onnx.NodeProto], RowsForm | None]] = {
    **dict.fromkeys(SINGLE, pointwise),
    "BatchNormalization": batch_norm,
    "Concat": concat,
    "Split": split,
    "Slice": slice_,
    "Reshape": flatten_places,
    "Flatten": flatten_places,
    "Transpose": transpose,
    "Pad": pad,
    "Resize": enlarge,
    "DepthToSpace": shuffle,
}
