"""A Conv with a weight of the network as a node of our own, which becomes a call of a kernel (kernels/cpu/window.py). IREE's own
convolutions of images whose channels come first reach a tenth of the speed of a product on CPUs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import onnx
from onnx import TensorProto, helper

from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.legalise.conv_shapes import SLICE_OPSET, ConvShape, conv_shape, is_turned, pad_image
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter
from onnx_fa.kernels.cpu.window import blocks_of, is_slim, panel_of, takes
from onnx_fa.spec.expr_json import from_json
from onnx_fa.spec.terms import Dim, FloatType, TensorArg
from onnx_fa.spec.windows import WindowSpec

CONV_SITE = f"{DOMAIN}.ConvSite"
"""Inputs x, the weight and what else a WindowSpec has; attributes its numbers, its `pads` where it has some, and, where something
becomes of its sums, `then`, an expression as JSON."""
_NUMBERS = (
    "groups",
    "channels",
    "N",
    "sizes",
    "kernel",
    "strides",
    "dilations",
    "panel",
    "bias",
    "last",
    "blocks",
    "x_last",
    "depthwise",
)
KINDS = {dtype: kind for kind, dtype in FLOATS.items()}


def convolution(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A Conv of f32, f16 or bf16 on a CPU whose sizes, but for the batch, are known. The image is read as it lies there, with its
    pads, and as f32, and what the kernel makes has channels first, or last where the graph turns it behind, so that both turns are
    none."""
    kind = g.kind(node.input[0])
    if g.cpu is None or kind not in FLOATS or (shape := conv_shape(g, node)) is None:
        return False
    bias = node.input[2] if len(node.input) > 2 else ""
    last = is_turned(g, node.output[0])
    if (spec := spec_of_shape(g, shape, FLOATS[kind], bool(bias), last=last, x_last=False)) is None:
        return False
    hint = node.name or "Conv"
    x = pad_image(g, g.cast(node.input[0], kind, TensorProto.FLOAT, hint), shape, hint)
    y = write_site(g, spec, x, node.input[1], bias, hint)
    batch = -1 if spec.images is None else spec.images
    if spec.last and spec.groups > 1:
        y = g.reshape(y, [batch, spec.groups, *spec.y_shape], hint)
    if spec.last:
        y = g.add("Transpose", [y], hint, perm=[0, 1, 3, 2] if spec.groups > 1 else [0, 2, 1])
    g.reshape(y, [batch, spec.groups * spec.N, *spec.places], hint, out=node.output[0])
    return True


def write_site(g: GraphWriter, spec: WindowSpec, x: str, weight: str, bias: str, hint: str) -> str:
    """Writes a ConvSite, whose result are its sums: of x, of the spec's type and any rank, whose first dim is the batch, with its
    pads unless the spec has them, of a Conv's weight (M, C, *kernel), and with a bias of (M,). Returns y, of the shape (parts,
    *y_shape); with one group, or channels last, its first dim has the name of x's, if the type of x is known, else one of its
    own."""
    y = g.fresh(hint)
    batch: Dim = f"{y}_parts" if spec.parts is None else spec.parts
    of_images = spec.groups == 1 or spec.x_last
    if spec.parts is None and of_images and (dims := g.shape(x)) and isinstance(dims[0], str):
        batch = dims[0]
    own = 0 if of_images else -1  # the dim of x itself, or what comes of it
    flat = g.reshape(x, [own if spec.parts is None else spec.parts, spec.numbers], hint)
    inputs = [flat, weight_panels(g, weight, spec, hint)]
    if spec.bias:
        inputs.append(g.reshape(bias, [spec.groups, spec.N], hint))
    made = helper.make_node("ConvSite", inputs, [y], g.fresh(f"{hint}/ConvSite"), domain=DOMAIN)
    made.attribute.extend(helper.make_attribute(name, getattr(spec, name)) for name in _NUMBERS)
    if spec.pads:
        made.attribute.append(helper.make_attribute("pads", spec.pads))
    g.nodes.append(made)
    return g.typed(y, KINDS[spec.dtype], [batch, *spec.y_shape])


def window_of(types: Sequence[tuple[Sequence[Dim], str]], attributes: Mapping[str, Any]) -> WindowSpec:
    """The spec of a ConvSite whose operands have these shapes and element types."""
    (x, x_dtype), (_, dtype), *more = types
    groups, channels, N, panel = (int(attributes[name]) for name in ("groups", "channels", "N", "panel"))
    sizes, kernel, strides, dilations = (
        tuple(int(n) for n in attributes[name]) for name in ("sizes", "kernel", "strides", "dilations")
    )
    bias, last, x_last, depthwise = (bool(attributes[name]) for name in ("bias", "last", "x_last", "depthwise"))
    images = x[0] // (1 if x_last else groups) if isinstance(x[0], int) else None
    blocks = int(attributes["blocks"])
    spec = WindowSpec(
        images,
        groups,
        channels,
        N,
        sizes,
        kernel,
        strides,
        dilations,
        panel,
        bias,
        last,
        blocks,
        cast(FloatType, dtype),
        x_last,
        depthwise=depthwise,
        pads=tuple(int(n) for n in attributes.get("pads", ())),
        x_dtype=cast(FloatType, x_dtype),
    )
    if "then" not in attributes:
        return spec
    tensors = tuple(TensorArg(spec.whole if len(t) > 1 else (spec.columns,), spec.dtype) for t, _ in more[bias:])
    return replace(spec, then=from_json(json.loads(attributes["then"])), tensors=tensors)


def spec_of_shape(
    g: GraphWriter, shape: ConvShape, dtype: FloatType, bias: bool, *, last: bool, x_last: bool
) -> WindowSpec | None:
    """The site of a Conv whose weight has this type, on the CPU or the CUDA device that the writer is for. `x_last` and `last`: the
    channels of the image and of the result come last. None where no kernel is to stand for it."""
    blocks = 1 if g.cpu is None else blocks_of(shape.groups, shape.columns, g.cpu)
    columns = shape.columns * blocks
    panel = _panel(g, columns)
    if not panel or (columns % panel and g.opset < SLICE_OPSET):  # columns that panels do not divide are cut
        return None
    window = shape.padded, shape.kernel, shape.strides, shape.dilations
    try:
        groups, channels = shape.groups // blocks, shape.own * blocks
        spec = WindowSpec(shape.images, groups, channels, columns, *window, panel, bias, last, blocks, dtype, x_last)
        spec = replace(spec, x_dtype=_x_dtype(g, dtype))
    except ValueError:  # no window fits, or several groups of channels last
        return None
    return spec if takes(spec) else None


def _panel(g: GraphWriter, columns: int) -> int:
    """The columns of a panel: all of them where Triton makes the code."""
    return panel_of(columns, g.cpu) if g.cpu is not None else columns if g.cuda is not None else 0


def _x_dtype(g: GraphWriter, dtype: FloatType) -> FloatType:
    """As what type an image of this one is read: CPUs have it widened before."""
    return dtype if g.cpu is None else "f32"


def depthwise_spec(g: GraphWriter, shape: ConvShape, bias: bool, dtype: FloatType) -> WindowSpec | None:
    """The site of a Conv of every channel for itself, channels last; None where they do not fill a vector."""
    n = shape.groups
    if not (panel := _panel(g, n)):
        return None
    window = shape.padded, shape.kernel, shape.strides, shape.dilations
    spec = WindowSpec(shape.images, 1, n, n, *window, panel, bias, last=True, x_last=True, depthwise=True)
    spec = replace(spec, dtype=dtype, x_dtype=_x_dtype(g, dtype))
    return replace(spec, panel=g.cpu.lanes) if g.cpu is not None and is_slim(spec, g.cpu) else spec


def weight_panels(g: GraphWriter, weight: str, spec: WindowSpec, hint: str) -> str:
    """The weight (M, C, taps) in panels. The compiler computes what depends on constants alone, so this is done once."""
    rows = g.reshape(weight, [spec.groups, spec.N, spec.K], hint)
    if left := spec.N % spec.panel:
        parts = [(0, spec.N - left), (spec.N - spec.panel, spec.N)]
        cut = [g.add("Slice", [rows, *(g.ints([n], hint) for n in (low, high, 1))], hint) for low, high in parts]
        rows = g.add("Concat", cut, hint, axis=1)
    count, taps = spec.groups * spec.panels, math.prod(spec.kernel)
    if not spec.x_last or spec.depthwise or taps == 1:
        panels = g.reshape(rows, [count, spec.panel, spec.K], hint)
        return g.add("Transpose", [panels], hint, perm=[0, 2, 1])
    panels = g.reshape(rows, [count, spec.panel, spec.channels // spec.blocks, taps], hint)
    return g.reshape(g.add("Transpose", [panels], hint, perm=[0, 3, 2, 1]), [count, spec.K, spec.panel], hint)
