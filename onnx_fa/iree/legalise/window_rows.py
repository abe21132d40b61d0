"""Convolutions and pools whose images lie as rows (image_rows.py): of one tap a product, depthwise and pools sums and maxima of
parts of the image, others a kernel's call."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.conv_shapes import ConvShape, conv_shape, pad_image, pads_of
from onnx_fa.iree.legalise.convolutions import depthwise_spec, spec_of_shape, write_site
from onnx_fa.iree.legalise.epilogue import POINTWISE
from onnx_fa.iree.legalise.image_rows import Image, ImageWriter, RowsForm
from onnx_fa.iree.legalise.linear_sites import LEAST
from onnx_fa.iree.legalise.row_forms import Images
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter, attr_of
from onnx_fa.kernels.cpu.window import panel_of, winograd_tiles
from onnx_fa.spec.windows import WindowSpec

_MOST_TAPS = 64
"""More make dispatches of a size that nobody has measured."""
_MANY_TAPS = 25
"""With so many the kernel of depthwise convolutions is faster than IREE's sums by more than two turns of the image take."""
_AXES = 2
_PRODUCTS_OF_A_TURN = 12
"""By Winograd's sums a convolution takes about two thirds of its time. So many products of channels by columns, at a place, save as
much as turning a number there takes: 32 channels into 32 pay for turning both."""
_LEAST_LINE = 4
"""Places beside each other that tiles of a line, which know of pads, leave enough of to do."""


def convolution(g: GraphWriter, images: Images, node: onnx.NodeProto) -> RowsForm | None:
    """A Conv of images. One of a single tap needs no turns, and where its windows are further apart than one, a depthwise one has
    none either."""
    x, y, bias = node.input[0], node.output[0], len(node.input) > 2 and bool(node.input[2])
    shape = conv_shape(g, node) if x in images and y in images else None
    if shape is None or len(shape.sizes) != _AXES or (bias and not g.comes_of_constants(node.input[2])):
        return None
    if shape.own == shape.columns == 1 and shape.groups > 1:
        taps = math.prod(shape.kernel)
        spec = depthwise_spec(g, shape, bias, FLOATS[g.kind(x)])
        if taps == 1 or (spec is None and (taps > _MOST_TAPS or g.array(node.input[1]) is None)):
            return None
        turned = images[x].numbers + images[y].numbers if max(shape.strides) > 1 or taps >= _MANY_TAPS else 0
        write = partial(_write_depthwise, shape) if spec is None else partial(_write_site, shape, spec)
        return RowsForm((x,), (y,), write, turned)
    if g.array(node.input[1]) is None:
        return None
    turned = images[x].numbers + images[y].numbers if _is_product(shape) else _passes(g, images, y)
    spec = spec_of_shape(g, shape, FLOATS[g.kind(x)], bias, last=True, x_last=True)
    # Linear sites leave small weights to IREE, which multiplies by them again for every place that reads such a gate.
    if _is_product(shape) and (spec is None or min(shape.own, shape.columns) >= LEAST):
        return RowsForm((x,), (y,), _write_product, turned)
    if spec is None:
        return None
    if g.cpu is None:  # kernels of GPUs read channels that are last, alone, and are worth more than both turns
        turned = images[x].numbers + images[y].numbers + 1
        return RowsForm((x,), (y,), partial(_write_site, shape, spec), turned)
    if winograd_tiles(spec, g.cpu):
        turned += images[y].places * shape.groups * shape.own * shape.columns // _PRODUCTS_OF_A_TURN
        return RowsForm((x,), (y,), partial(_write_site, shape, spec), turned)
    takes_both = not _is_product(shape) and shape.groups == 1
    return RowsForm((x,), (y,), partial(_write_site, shape, spec), turned, takes_both)


def _passes(g: GraphWriter, images: Images, y: str) -> int:
    """The numbers of a convolution's result that nobody has to read and write again where its kernel makes what follows: it does so
    with channels last."""
    readers = [op_of(g.graph.node[place]) for place in g.readers(y)]
    return images[y].numbers if readers and not g.is_output(y) and all(op in POINTWISE for op in readers) else 0


def _is_product(shape: ConvShape) -> bool:
    return shape.groups == math.prod(shape.kernel) == 1 and max(shape.strides) == 1 and not any(shape.pads)


def _write_product(w: ImageWriter, node: onnx.NodeProto) -> None:
    g, hint, (y,) = w.g, node.name or node.op_type, node.output
    x, rows = w.read(node.input[0], hint), w.images[y].rows
    columns, channels = w.images[y].channels, w.images[node.input[0]].channels
    weight = g.computed(partial(_matrix, g, node.input[1]), w.kind, [channels, columns], hint)
    made = w.step("MatMul", [x, weight], rows, hint)
    if len(node.input) > 2 and node.input[2]:
        made = w.step("Add", [made, node.input[2]], rows, hint)
    w.give(y, made)


def _matrix(g: GraphWriter, weight: str) -> np.ndarray:
    array = g.array(weight)
    assert array is not None
    return np.ascontiguousarray(array.reshape(array.shape[0], -1).T)


def _write_site(shape: ConvShape, spec: WindowSpec, w: ImageWriter, node: onnx.NodeProto) -> None:
    g, hint, (x, weight, *rest) = w.g, node.name or node.op_type, node.input
    last = g.cpu is None or spec.depthwise or spec.groups > 1 or _is_product(shape) or x in w.rows
    last = last or (g.cpu is not None and bool(winograd_tiles(spec, g.cpu)))
    spec = replace(spec, x_last=last)
    if last and any(shape.pads) and (g.cpu is None or spec.places[-1] >= _LEAST_LINE):
        spec = replace(spec, sizes=shape.sizes, pads=shape.pads)
    image = w.read_plane(x, hint) if last else x
    if any(shape.pads) and not spec.pads:
        image = pad_image(g, image, shape, hint, last=last)
        channels = [w.images[x].channels]
        g.typed(image, w.kind, [w.images[x].batch, *channels * (not last), *shape.padded, *channels * last])
    y = write_site(g, spec, image, weight, rest[0] if rest else "", hint)
    w.give(node.output[0], y)


def _write_depthwise(shape: ConvShape, w: ImageWriter, node: onnx.NodeProto) -> None:
    g, hint, (x, name, *rest) = w.g, node.name or node.op_type, node.input
    weight, image = g.array(name), w.images[node.output[0]]
    assert weight is not None
    by_tap = weight.reshape(shape.groups, -1)
    dims = [image.batch, image.height, image.width, image.channels]
    total = ""
    for tap, part in _parts(w, shape, x, "0", image, hint):
        product = w.step("Mul", [part, g.const(np.ascontiguousarray(by_tap[:, tap]), hint)], dims, hint)
        total = w.step("Add", [total, product], dims, hint) if total else product
    if rest and rest[0]:
        total = w.step("Add", [total, rest[0]], dims, hint)
    w.give_plane(node.output[0], total, hint)


def _parts(w: ImageWriter, shape: ConvShape, x: str, pad: str, image: Image, hint: str) -> list[tuple[int, str]]:
    """For each tap, what it sees of an image with its pads: (batch, height, width, channels)."""
    g, plane = w.g, w.read_plane(x, hint)
    batch, channels = image.batch, w.images[x].channels
    if any(shape.pads):
        pads = [0, *shape.pads[:_AXES], 0, 0, *shape.pads[_AXES:], 0]
        number = g.scalar(float(pad), w.kind, hint)
        plane = w.step("Pad", [plane, g.ints(pads, hint), number], [batch, *shape.padded, channels], hint)
    where, steps = g.ints([1, 2], hint), g.ints(shape.strides, hint)
    found = []
    for i, tap in enumerate(itertools.product(*map(range, shape.kernel))):
        starts = [t * d for t, d in zip(tap, shape.dilations, strict=True)]
        places = (image.height, image.width)
        ends = [low + (n - 1) * s + 1 for low, n, s in zip(starts, places, shape.strides, strict=True)]
        cut = [plane, g.ints(starts, hint), g.ints(ends, hint), where, steps]
        found.append((i, w.step("Slice", cut, [batch, *places, channels], hint)))
    return found


def pool(g: GraphWriter, images: Images, node: onnx.NodeProto) -> RowsForm | None:
    """A MaxPool, or an AveragePool all of whose windows count as many places."""
    x, y = node.input[0], node.output[0]
    if x not in images or y not in images or len([o for o in node.output if o]) > 1:
        return None
    small, large, kernel = images[y], images[x], tuple(attr_of(node, "kernel_shape", []))
    if len(kernel) != _AXES or math.prod(kernel) > _MOST_TAPS:
        return None
    sizes = large.height, large.width
    strides, dilations = (tuple(attr_of(node, name, [1] * _AXES)) for name in ("strides", "dilations"))
    pads = pads_of(node, sizes, kernel, strides, dilations)
    shape = ConvShape(None, 1, large.channels, large.channels, sizes, kernel, strides, dilations, pads)
    axes = zip(shape.padded, kernel, strides, dilations, strict=True)
    if [(n - (k - 1) * d - 1) // s + 1 for n, k, s, d in axes] != [small.height, small.width] or min(pads) < 0:
        return None  # ceil_mode makes one more
    mean = op_of(node) == "AveragePool"
    if mean and any(pads) and not attr_of(node, "count_include_pad", 0):
        return None
    if any(p >= k for p, k in zip(pads, kernel * 2, strict=True)):
        return None
    return RowsForm((x,), (y,), partial(_write_pool, shape, mean))


def _write_pool(shape: ConvShape, mean: bool, w: ImageWriter, node: onnx.NodeProto) -> None:
    g, hint, image = w.g, node.name or node.op_type, w.images[node.output[0]]
    dims = [image.batch, image.height, image.width, image.channels]
    if mean and w.kind != TensorProto.FLOAT:  # sums are f32, and rounded once
        images = image.batch if isinstance(image.batch, int) else None
        whole = replace(shape, images=images, groups=image.channels, own=1, columns=1)
        made = _weighed(w, whole, w.read(node.input[0], hint), 1 / math.prod(shape.kernel), hint)
        w.give(node.output[0], g.cast(made, TensorProto.FLOAT, w.kind, hint))
        return
    total = ""
    for _, part in _parts(w, shape, node.input[0], "0" if mean else "-inf", image, hint):
        total = w.step("Add" if mean else "Max", [total, part], dims, hint) if total else part
    if mean:
        number = g.scalar(math.prod(shape.kernel), w.kind, hint)
        total = w.step("Div", [total, number], dims, hint)
    w.give_plane(node.output[0], total, hint)


def reduce_places(g: GraphWriter, images: Images, node: onnx.NodeProto) -> RowsForm | None:
    """The mean or the maximum over all places; the latter on CPUs. For GPUs IREE refuses some reductions of numbers that lie apart
    ("failed to distribute"), with what is in front of them in the same dispatch."""
    x, y = node.input[0], node.output[0]
    if x not in images or len(g.shape(x) or ()) != 4 or (g.cpu is None and "Max" in op_of(node)):
        return None
    axes = attr_of(node, "axes", None)
    if axes is None and len(node.input) > 1 and node.input[1]:
        array = g.array(node.input[1])
        axes = None if array is None else array.tolist()
    if "Global" not in op_of(node) and (axes is None or sorted(a % 4 for a in axes) != [2, 3]):
        return None
    keeps = "Global" in op_of(node) or bool(attr_of(node, "keepdims", 1))
    if keeps and y not in images:
        return None
    return RowsForm((x,), (y,) * keeps, _write_reduce)


_REDUCED = {"GlobalAveragePool": "ReduceMean", "GlobalMaxPool": "ReduceMax"}


def _write_reduce(w: ImageWriter, node: onnx.NodeProto) -> None:
    g, hint, (x, *_), (y,) = w.g, node.name or node.op_type, node.input, node.output
    op, image = _REDUCED.get(op_of(node), op_of(node)), w.images[x]
    made = _mean(w, x, hint) if op == "ReduceMean" and image.numbers else ""
    if y in w.images:
        w.give(y, made or g.reduce(op, w.read(x, hint), [1], hint))
    elif made:
        g.reshape(made, [0, image.channels], hint, out=y)
    else:
        g.reduce(op, w.read(x, hint), [1], hint, keepdims=0, out=y)


def _mean(w: ImageWriter, x: str, hint: str) -> str:
    """The mean over all places of an image, (batch, 1, channels): sums over columns, and of these, by the kernel of depthwise
    convolutions, as IREE adds numbers that lie apart one after the other. Empty where it has no kernel."""
    g, image = w.g, w.images[x]
    if g.cpu is not None and not panel_of(image.channels, g.cpu):
        return ""
    made, sizes = w.read(x, hint), (image.height, image.width)
    images = image.batch if isinstance(image.batch, int) else None
    for kernel, number in (((1, image.width), 1.0), ((image.height, 1), 1 / image.places)):
        shape = ConvShape(images, image.channels, 1, 1, sizes, kernel, (1, 1), (1, 1), (0,) * 4)
        made, sizes = _weighed(w, shape, made, number, hint), (image.height, 1)
    if w.kind == TensorProto.FLOAT:
        return made
    return g.typed(g.cast(made, TensorProto.FLOAT, w.kind, hint), w.kind, [image.batch, 1, image.channels])


def _weighed(w: ImageWriter, shape: ConvShape, x: str, number: float, hint: str) -> str:
    """The sums over windows of each channel for itself, of rows, times a number; in f32."""
    g, channels = w.g, shape.groups
    spec = depthwise_spec(g, shape, False, "f32")
    assert spec is not None
    spec = replace(spec, x_dtype=FLOATS[g.kind(x)], sizes=shape.sizes, pads=shape.pads if any(shape.pads) else ())
    weight = g.const(np.full((channels, 1, *shape.kernel), number, np.float32), hint)
    g.types[weight] = TensorProto.FLOAT, [channels, 1, *shape.kernel]
    return write_site(g, spec, x, weight, "", hint)


WINDOW_FORMS: dict[str, Callable[[GraphWriter, Images, onnx.NodeProto], RowsForm | None]] = {
    "Conv": convolution,
    "MaxPool": pool,
    "AveragePool": pool,
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax"), reduce_places),
}
