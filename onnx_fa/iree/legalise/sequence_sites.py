"""A Conv along an axis of free length as a node of our own, which becomes a call of a kernel (kernels/cpu/sequence.py) that pads
and cuts nothing. With IREE's own Conv wav2vec 2.0 takes eight times as long as in onnxruntime."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper

from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.legalise.conv_shapes import SLICE_OPSET
from onnx_fa.iree.legalise.convolutions import KINDS, weight_panels
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter, attr_of
from onnx_fa.kernels.cpu.sequence import SequenceConv
from onnx_fa.kernels.cpu.window import blocks_of, panel_of
from onnx_fa.spec.expr_json import from_json
from onnx_fa.spec.sequences import SequenceSpec
from onnx_fa.spec.terms import Dim, FloatType, TensorArg

SEQUENCE_SITE = f"{DOMAIN}.SequenceSite"
"""Inputs as a SequenceSpec has its operands; attributes its numbers, and, where something becomes of its sums, `then` as JSON."""
_NUMBERS = (
    "groups",
    "channels",
    "N",
    "kernel",
    "stride",
    "dilation",
    "pads",
    "panel",
    "bias",
    "blocks",
    "depthwise",
    "phases",
)
_RANK = 3


def has_kernels(g: GraphWriter) -> bool:
    """Whether the writer is for a device that has any."""
    return (g.cpu is not None or g.cuda is not None) and g.opset >= SLICE_OPSET


class Columns(NamedTuple):
    """Of each of some groups: the channels that it reads, and the columns that it makes."""

    groups: int
    channels: int
    N: int


class Taps(NamedTuple):
    """Of a window along the axis; `pads` are before x and behind it."""

    kernel: int
    stride: int
    dilation: int
    pads: tuple[int, int]


def sequence_conv_of(
    operands: Sequence[tuple[Dim, ...]], attributes: Mapping[str, Any], dtype: FloatType = "f32"
) -> SequenceConv:
    """The kernel of a SequenceSite whose operands have these shapes and this type."""
    numbers = {name: attributes[name] for name in _NUMBERS}
    low, high = numbers.pop("pads")
    bias, depthwise = (bool(numbers.pop(name)) for name in ("bias", "depthwise"))
    images, length = (d if isinstance(d, int) else None for d in operands[0][:2])
    spec = SequenceSpec(images, length, **numbers, pads=(low, high), bias=bias, depthwise=depthwise, dtype=dtype)
    if "then" in attributes:
        behind = operands[2 + bias :]
        tensors = tuple(TensorArg(spec.whole if len(shape) > 1 else (spec.columns,), dtype) for shape in behind)
        spec = replace(spec, then=from_json(json.loads(attributes["then"])), tensors=tensors)
    return SequenceConv(spec)


def sequence_spec(g: GraphWriter, node: onnx.NodeProto) -> SequenceSpec | None:
    """The site of a Conv of f32, for CUDA also of halves, of (batch, channels, length), of which the first and the last may be
    free; None where no kernel is to stand for it. Columns that fill no vector have some of zeros behind them."""
    x, weight, groups = g.shape(node.input[0]), g.shape(node.input[1]), attr_of(node, "group", 1)
    kind = g.kind(node.input[0])
    if not has_kernels(g) or kind not in g.kernel_kinds or not x or not weight:
        return None
    if len(x) != _RANK or len(weight) != _RANK or 0 in x or not isinstance(x[1], int):
        return None
    bias = node.input[2] if len(node.input) > 2 else ""
    # Has zeros behind its columns.
    narrow = g.cpu is not None and groups == 1 and isinstance(weight[0], int) and weight[0] < g.cpu.lanes
    there = g.has_data if narrow else g.comes_of_constants
    if not g.is_constant(node.input[1]) or not all(there(name) for name in (node.input[1], bias) if name):
        return None
    columns, own, taps = (d if isinstance(d, int) else 0 for d in weight)
    (stride,), (dilation,) = (attr_of(node, name, [1]) for name in ("strides", "dilations"))
    if min(columns, own, taps) < 1 or own * groups != x[1] or columns % groups:
        return None
    if list(attr_of(node, "kernel_shape", [taps])) != [taps]:
        return None
    pads = _pads(node, (taps - 1) * dilation, stride)
    if pads is None:
        return None
    spec = spec_of(
        g, (x[0], x[2]), Columns(groups, own, columns // groups), Taps(taps, stride, dilation, pads), bool(bias)
    )
    return None if spec is None else replace(spec, dtype=FLOATS[kind])


def spec_of(
    g: GraphWriter, sizes: tuple[Dim | None, Dim | None], columns: Columns, taps: Taps, bias: bool
) -> SequenceSpec | None:
    """The site of such windows and columns, of a batch and a length of these `sizes`, on the CPU or the CUDA device that the writer
    is for; None where no kernel is to stand for it."""
    groups, own, N = columns
    images, length = (d if isinstance(d, int) else None for d in sizes)
    if g.cpu is None:  # Triton's kernels have all columns in a panel
        depthwise = own == N == 1 < groups
        groups, own, N = Columns(1, groups, groups) if depthwise else columns
        return SequenceSpec(images, length, groups, own, N, *taps, N, bias, depthwise=depthwise)
    if own == N == 1 < groups:
        # Panels of one vector where 16 registers are to hold what neighbouring windows share too, as is_slim has it.
        slim = g.cpu.registers == 16 and taps.stride == 1 < taps.kernel
        panel = min(panel_of(groups, g.cpu), g.cpu.lanes) if slim else panel_of(groups, g.cpu)
        return SequenceSpec(images, length, 1, groups, groups, *taps, panel, bias, depthwise=True) if panel else None
    blocks = blocks_of(groups, N, g.cpu)
    if groups == 1:
        N = max(N, g.cpu.lanes)
    panel = panel_of(N * blocks, g.cpu)
    return (
        SequenceSpec(images, length, groups // blocks, own * blocks, N * blocks, *taps, panel, bias, blocks)
        if panel
        else None
    )


def _pads(node: onnx.NodeProto, longer: int, stride: int) -> tuple[int, int] | None:
    """Before x and behind it. `longer`: by so much a window is longer than one number. None for those that depend on the length."""
    auto = attr_of(node, "auto_pad", b"NOTSET")
    if auto in (b"NOTSET", b"VALID"):
        low, high = attr_of(node, "pads", [0, 0]) if auto == b"NOTSET" else (0, 0)
        return None if min(low, high) < 0 else (low, high)
    if stride > 1:
        return None
    less, more = longer // 2, longer - longer // 2
    return (less, more) if auto == b"SAME_UPPER" else (more, less)


def write_sequence(
    g: GraphWriter, spec: SequenceSpec, operands: Sequence[str], dims: Sequence[Dim | None], hint: str
) -> str:
    """Writes a SequenceSite of x (batch, length, channels), a Conv's weight (M, C, taps) and, with a bias, that of (M,). Returns y,
    of these dims, its columns those of the weight."""
    x, weight, *rest = operands
    columns = (g.shape(weight) or [0])[0]
    assert isinstance(columns, int)
    if columns < spec.columns:
        weight, *rest = (_widened(g, name, spec.columns, hint) for name in (weight, *rest))
    inputs = [x, weight_panels(g, weight, spec.window(1), hint)]
    inputs += [g.reshape(name, [spec.groups, spec.N], hint) for name in rest]
    y = g.fresh(hint)
    made = helper.make_node("SequenceSite", inputs, [y], g.fresh(f"{hint}/SequenceSite"), domain=DOMAIN)
    made.attribute.extend(helper.make_attribute(name, getattr(spec, name)) for name in _NUMBERS)
    g.nodes.append(made)
    g.typed(y, KINDS[spec.dtype], [*dims[:2], spec.columns // spec.phases])
    if columns == spec.columns:
        return y
    cut = g.add("Slice", [y, *(g.ints([n], hint) for n in (0, columns, 2))], hint)
    return g.typed(cut, KINDS[spec.dtype], [*dims[:2], columns])


def _widened(g: GraphWriter, name: str, columns: int, hint: str) -> str:
    """A weight or a bias with zeros behind its own columns."""
    shape = [d for d in g.shape(name) or () if isinstance(d, int)]
    read = g.array

    def make() -> np.ndarray[Any, Any]:
        array = np.asarray(read(name))
        return np.pad(array, [(0, columns - shape[0]), *[(0, 0)] * (len(shape) - 1)])

    return g.computed(make, g.kind(name), [columns, *shape[1:]], hint)


def lone_sequence(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A Conv along a free length that a kernel takes, between what puts its channels last and first again."""
    spec = sequence_spec(g, node)
    if spec is None or isinstance((g.shape(node.input[0]) or [0])[-1], int):
        return False
    hint, x = node.name or "Conv", node.input[0]
    batch, channels, length = g.shape(x) or []
    rows = g.typed(g.add("Transpose", [x], hint, perm=[0, 2, 1]), g.kind(x), [batch, length, channels])
    operands = [rows, *(name for name in node.input[1:] if name)]
    y = write_sequence(g, spec, operands, [batch, None], hint)
    g.add("Transpose", [y], hint, perm=[0, 2, 1], out=node.output[0])
    return True
