"""ConvTranspose as a Conv of smaller windows, of which one makes `stride` rows of the result side by side. IREE refuses groups,
`auto_pad`, `output_shape` and pads that differ before and behind an axis; what has none of these it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.conv_forms import write_conv
from onnx_fa.iree.legalise.sequence_conv import sequence_conv
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of
from onnx_fa.spec.target import Target

_END = (1 << 31) - 1
_LINE = 3
"""Axes of the weight of a sequence: CUDA has kernels for these, of any length."""


@dataclass(frozen=True)
class Axis:
    """An axis of `size` rows, None where only a run knows, with windows of `taps` that are `dilation` apart. Row `stride * i +
    dilation * t` of the whole result is a sum over rows i and taps t; `before` and `behind` are cut off it (below 0: added)."""

    size: int | None
    taps: int
    stride: int
    dilation: int
    before: int
    behind: int

    @property
    def reach(self) -> int:
        """Rows of the result that one row of the input adds to."""
        return (self.taps - 1) * self.dilation + 1

    @property
    def depth(self) -> int:
        """Taps of the Conv's windows: rows of the input that add to one row of the result."""
        return self.taps if self.stride == 1 else -(-self.reach // self.stride)

    @property
    def spread(self) -> int:
        """How far apart these taps are."""
        return self.dilation if self.stride == 1 else 1

    @property
    def pads(self) -> tuple[int, int]:
        """Of the Conv, before and behind: so many that it makes every row that is left, and few that are not."""
        whole = (self.depth - 1) * self.spread
        low = whole - self.before // self.stride
        high = -(-(self.reach - self.behind) // self.stride) - 1
        return max(low, 0), max(high, 0)

    @property
    def cut(self) -> tuple[int, int]:
        """Rows of what the Conv makes that go, before and behind, once its results lie one behind the other."""
        low, high = self.pads
        first = ((self.depth - 1) * self.spread - low) * self.stride
        return self.before - first, self.stride * (high + 1) - (self.reach - self.behind)

    @property
    def made(self) -> int | None:
        """Rows that the Conv makes."""
        return None if self.size is None else self.size + sum(self.pads) - (self.depth - 1) * self.spread

    @property
    def rows(self) -> int | None:
        """Those of the result."""
        return None if self.size is None else self.stride * (self.size - 1) + self.reach - self.before - self.behind

    def tap_of(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """(stride, depth): which tap of the weight each of the Conv's windows has at each place; `taps` for none."""
        if self.stride == 1:
            return np.arange(self.taps)[None, ::-1]
        tap = np.full(self.depth * self.stride, self.taps)
        tap[: self.reach : self.dilation] = np.arange(self.taps)
        return tap.reshape(self.depth, self.stride)[::-1].T


def conv_transpose(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Of any attributes and weight, over one axis or more, of free sizes too; false for what IREE takes. Where windows are no
    multiple of the stride, what is not finite makes NaN of a few rows beside those that it reaches: zeros multiply it there. Raises
    ModelError for an `output_shape` of a free size, whose pads only a run knows, and for a weight whose sizes are not static."""
    weight = g.shape(node.input[1])
    sizes = [d for d in weight or () if isinstance(d, int)]
    kernels = g.cpu is not None or (g.cuda is not None and len(sizes) == _LINE)
    if _is_plain(node) and not (kernels and _is_even(node, sizes[2:])):
        return False
    if weight is None or len(sizes) < len(weight) or len(sizes) < 3 or min(sizes) < 1:
        raise ModelError(f"node {node.name!r}: ConvTranspose with a weight whose sizes are not static (--dim)")
    groups, hint = attr_of(node, "group", 1), node.name or "ConvTranspose"
    axes = _axes_of(g, node, sizes[2:])
    phases, columns = math.prod(axis.stride for axis in axes), sizes[1] * groups
    _check_sizes(g, node, axes)
    inputs = [node.input[0], _windows(g, node.input[1], sizes, groups, axes, hint)]
    if len(node.input) > 2 and node.input[2]:
        inputs.append(_repeated(g, node.input[2], columns, phases, hint))
    y = g.fresh(hint)
    conv = helper.make_node("Conv", inputs, [y], g.fresh(f"{hint}/Conv"), group=groups)
    for name, numbers in (
        ("dilations", [axis.spread for axis in axes]),
        ("pads", _conv_pads(axes)),
    ):
        conv.attribute.append(helper.make_attribute(name, numbers))
    batch = (g.shape(node.input[0]) or [None])[0]
    g.typed(y, g.kind(node.input[0]), [batch, columns * phases, *(axis.made for axis in axes)])
    if not sequence_conv(g, conv):
        write_conv(g, conv)
    if phases > 1:
        y = _side_by_side(g, y, batch if isinstance(batch, int) else None, columns, axes, hint)
    _cut(g, y, axes, hint, node.output[0])
    return True


def _is_plain(node: onnx.NodeProto) -> bool:
    """Whether it has one group, and the same pads before and behind every axis, which it says itself."""
    pads = attr_of(node, "pads", [])
    even = pads[: len(pads) // 2] == pads[len(pads) // 2 :]
    said = attr_of(node, "auto_pad", b"NOTSET") == b"NOTSET" and not attr_of(node, "output_shape", [])
    return even and said and attr_of(node, "group", 1) == 1


def write_shuffled(
    model: onnx.ModelProto, held: Mapping[str, ir.TensorProtocol] | None = None, *, target: Target | None = None
) -> None:
    """Writes upsampling ConvTransposes of images as Conv and DepthToSpace: IREE multiplies the zeros that it puts between
    the input's rows. Those whose windows are a multiple of the stride, where nothing that is not finite meets a zero that was not
    there; for CUDA as large as the stride, since IREE takes longer there for the Conv of larger ones. In place, in the main graph;
    types of values are taken from `value_info`, and those of new ones are there too."""
    g = GraphWriter(model, held, target=target)
    there = g.cpu is not None or (target is not None and target.backend == "cuda")
    if not there or not any(op_of(node) == "ConvTranspose" for node in model.graph.node):
        return
    for node in model.graph.node:
        if op_of(node) != "ConvTranspose" or not _write_shuffled(g, node):
            g.nodes.append(node)
    g.replace_nodes(g.nodes)


def _write_shuffled(g: GraphWriter, node: onnx.NodeProto) -> bool:
    x = node.input[0]
    shape, told, axes = g.shape(x), g.shape(node.output[0]), upsampled_axes(g, node)
    if axes is None or shape is None or len(shape) != 4 or told is None:
        return False
    block, hint = axes[0].stride, node.name or "ConvTranspose"
    if any(a.stride != block or not a.rows or a.rows < 0 for a in axes):
        return False
    if told[2:] != [axis.rows for axis in axes] or (g.cpu is None and any(axis.depth > 1 for axis in axes)):
        return False
    inputs, rows = [x, *write_phases(g, node, axes)], [axis.made for axis in axes]
    many, columns = ((g.shape(name) or [0])[axis] for name, axis in ((inputs[1], 0), (node.input[1], 1)))
    y = g.add("Conv", inputs, hint, pads=_conv_pads(axes), kernel_shape=[axis.depth for axis in axes])
    g.typed(y, g.kind(x), [shape[0], many, *rows])
    cut = any(any(axis.cut) for axis in axes)
    y = g.add("DepthToSpace", [y], hint, blocksize=block, out=None if cut else node.output[0])
    if cut:
        g.typed(y, g.kind(x), [shape[0], columns, *(block * n for n in rows if n is not None)])
        _cut(g, y, axes, hint, node.output[0])
    return True


def upsampled_axes(g: GraphWriter, node: onnx.NodeProto) -> list[Axis] | None:
    """Those of a ConvTranspose of f32, for CUDA also of halves, by a weight of the network, whose windows are a multiple of its
    strides; None for others."""
    x, w, bias = (*node.input, "")[:3]
    shape, sizes = g.shape(x), [d for d in g.shape(w) or () if isinstance(d, int)]
    if g.kind(x) not in g.kernel_kinds or shape is None or not _is_plain(node) or len(sizes) != len(shape):
        return None
    if min(sizes) < 1 or not all(g.has_data(name) for name in (w, bias) if name) or not _is_even(node, sizes[2:]):
        return None
    return _axes_of(g, node, sizes[2:])


def write_phases(g: GraphWriter, node: onnx.NodeProto, axes: Sequence[Axis]) -> list[str]:
    """The weight, and the bias if there is one, of the Conv that makes all places between two of x as columns, those of a place
    side by side."""
    w, bias = (*node.input[1:], "")[:2]
    sizes, hint = [d for d in g.shape(w) or () if isinstance(d, int)], node.name or "ConvTranspose"
    made, phases, numbers = (
        [_windows(g, w, sizes, 1, axes, hint, phases_first=True)],
        math.prod(a.stride for a in axes),
        g.array,
    )
    if bias:
        columns = [phases * sizes[1]]
        made.append(g.computed(lambda: np.tile(np.asarray(numbers(bias)), phases), g.kind(bias), columns, hint))
    return made


def _conv_pads(axes: Sequence[Axis]) -> list[int]:
    """Of the Conv: those before every axis, then those behind."""
    before, behind = zip(*(axis.pads for axis in axes), strict=True)
    return [*before, *behind]


def _is_even(node: onnx.NodeProto, taps: Sequence[int]) -> bool:
    """Whether windows are a multiple of strides, of which one at least is above 1, and no taps are left out."""
    strides, dilations = (attr_of(node, name, [1] * len(taps)) for name in ("strides", "dilations"))
    return (
        max(strides, default=1) > 1
        and set(dilations) == {1}
        and not any(t % s for t, s in zip(taps, strides, strict=True))
    )


def _axes_of(g: GraphWriter, node: onnx.NodeProto, kernel: Sequence[int]) -> list[Axis]:
    """Pads are those that onnxruntime takes. Raises ModelError."""
    n = len(kernel)
    shape = g.shape(node.input[0]) or [None] * (n + 2)
    sizes = [d if isinstance(d, int) else None for d in shape[2:]]
    strides, dilations = (attr_of(node, name, [1] * n) for name in ("strides", "dilations"))
    more, pads = attr_of(node, "output_padding", [0] * n), list(attr_of(node, "pads", [0] * 2 * n))
    asked, auto = list(attr_of(node, "output_shape", []))[-n:], attr_of(node, "auto_pad", b"NOTSET")
    axes = []
    for i, (size, taps, stride, dilation) in enumerate(zip(sizes, kernel, strides, dilations, strict=True)):
        # How much longer the whole result is than `stride` times the input.
        longer = (taps - 1) * dilation + 1 - stride
        low, high = (pads[i], pads[n + i]) if auto == b"NOTSET" else (0, 0)
        high -= more[i]
        if asked or auto.startswith(b"SAME"):
            rows = stride * size + longer + more[i] if size is not None else None
            if asked and rows is None:
                raise ModelError(
                    f"node {node.name!r}: ConvTranspose with an output_shape of a free size, whose pads only a run knows; give "
                    "the size (--dim)"
                )
            total = max(rows - asked[i] if asked and rows is not None else longer + more[i], 0)
            low = total // 2 if auto == b"SAME_UPPER" else total - total // 2
            high = total - low - more[i]
            if asked and rows is not None:
                high = rows - more[i] - low - asked[i]
        axes.append(Axis(size, taps, stride, dilation, low, high))
    return axes


def _check_sizes(g: GraphWriter, node: onnx.NodeProto, axes: Sequence[Axis]) -> None:
    """Raises ModelError where onnx infers another shape of the result than onnxruntime gives it: the importer goes by onnx's."""
    told = g.shape(node.output[0])
    if told is None:
        return
    sizes = zip(told[2:], axes, strict=False)
    if len(told) != len(axes) + 2 or any(isinstance(d, int) and axis.rows not in (d, None) for d, axis in sizes):
        raise ModelError(
            f"node {node.name!r}: ConvTranspose whose result onnx takes to be {told}, which is not what onnxruntime makes of its "
            "auto_pad, output_padding and output_shape; give it pads"
        )


def _windows(
    g: GraphWriter,
    weight: str,
    sizes: Sequence[int],
    groups: int,
    axes: Sequence[Axis],
    hint: str,
    *,
    phases_first: bool = False,
) -> str:
    """The Conv's weight (groups * columns * phases, channels, depths) of one (groups * channels, columns, taps); with
    `phases_first`, of one group, (phases * columns, channels, depths)."""
    n, channels, columns = len(axes), sizes[0] // groups, sizes[1]
    taps = [axis.tap_of() for axis in axes]
    strides, depths = [axis.stride for axis in axes], [axis.depth for axis in axes]
    split = [groups, channels, columns, *(d for both in zip(strides, depths, strict=True) for d in both)]
    phase, depth = range(3, 3 + 2 * n, 2), range(4, 4 + 2 * n, 2)
    perm, shape = [0, 2, *phase, 1, *depth], [groups * columns * math.prod(strides), channels, *depths]
    if phases_first:
        perm = [0, *phase, 2, 1, *depth]
    pads = [0] * (n + 4) + [1] * n

    def make(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        array = np.pad(array, [(0, pad) for pad in pads[n + 2 :]])
        for i, places in enumerate(taps):
            array = np.take(array, places, axis=2 + 2 * i)
        return np.ascontiguousarray(array.reshape(split).transpose(perm).reshape(shape))

    if g.has_data(weight):
        source = g.array
        return g.computed(lambda: make(np.asarray(source(weight))), g.kind(weight), shape, hint)
    made = g.add("Pad", [weight, g.ints(pads, hint)], hint)
    for i, places in enumerate(taps):
        made = g.add("Gather", [made, g.const(np.ascontiguousarray(places), hint)], hint, axis=2 + 2 * i)
    turned = g.add("Transpose", [g.reshape(made, split, hint)], hint, perm=perm)
    made = g.reshape(turned, shape, hint)
    g.types[made] = g.kind(weight), list(shape)
    return made


def _repeated(g: GraphWriter, bias: str, columns: int, phases: int, hint: str) -> str:
    """Each number as often as there are phases."""
    if phases == 1:
        return bias
    each = g.add("Expand", [g.reshape(bias, [columns, 1], hint), g.ints([columns, phases], hint)], hint)
    return g.reshape(each, [columns * phases], hint)


def _side_by_side(g: GraphWriter, y: str, batch: int | None, columns: int, axes: Sequence[Axis], hint: str) -> str:
    """(batch, columns * strides, rows) with the strides behind the rows of their axes."""
    n, strides, made = len(axes), [axis.stride for axis in axes], [axis.made for axis in axes]
    split, longer = [batch, columns, *strides, *made], [batch, columns]
    longer += [None if rows is None else rows * stride for rows, stride in zip(made, strides, strict=True)]
    if split.count(None) < 2:
        first, last = (g.ints([-1 if d is None else d for d in dims], hint) for dims in (split, longer))
    else:  # several that only a run knows
        rows = {2 + i: _length(g, y, 2 + i, hint) for i, size in enumerate(made) if size is None}
        whole = {} if batch is not None else {0: _length(g, y, 0, hint)}
        first = g.sizes(y, split, hint, {**whole, **{place + n: length for place, length in rows.items()}})
        times = {place: g.ints([strides[place - 2]], hint) for place in rows}
        products = {place: g.add("Mul", [length, times[place]], hint) for place, length in rows.items()}
        last = g.sizes(y, longer, hint, {**whole, **products})
    perm = [0, 1, *(place for i in range(n) for place in (2 + n + i, 2 + i))]
    turned = g.add("Transpose", [g.add("Reshape", [y, first], hint)], hint, perm=perm)
    return g.add("Reshape", [turned, last], hint)


def _length(g: GraphWriter, y: str, axis: int, hint: str) -> str:
    """A vector of one number: how long an axis is in a run."""
    return g.typed(g.add("Shape", [y], hint, start=axis, end=axis + 1), TensorProto.INT64, [1])


def _cut(g: GraphWriter, y: str, axes: Sequence[Axis], hint: str, out: str) -> None:
    """The rows that are to be left of it, under the result's name."""
    places = [2 + i for i, axis in enumerate(axes) if any(axis.cut)]
    if not places:
        g.add("Identity", [y], hint, out=out)
        return
    cuts = [axes[place - 2].cut for place in places]
    bounds = [[low for low, _ in cuts], [-high if high else _END for _, high in cuts], places]
    g.add("Slice", [y, *(g.ints(numbers, hint) for numbers in bounds)], hint, out=out)
