"""Convs along one axis of free size. Sequences, as sounds and texts are, have a kernel (sequence_sites.py). Images, such as
spectrograms, go by the kernel for known sizes: as blocks of the axis, which overlap by what their last window reads behind the next
one's begin."""

from __future__ import annotations

import math
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.conv_forms import write_conv
from onnx_fa.iree.legalise.convolutions import CONV_SITE
from onnx_fa.iree.legalise.packed_rows import write_apart
from onnx_fa.iree.legalise.sequence_sites import lone_sequence
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of, copy_without

_PLACES = 48
"""Windows of a block: tiles of 4, 6, 8, 12 and 16 rows divide it, and few sequences are so short that most of it is for nothing."""


@dataclass(frozen=True)
class _Blocks:
    """A Conv of x, of these dims, along its free `axis`. `span`: numbers along it that a window lies over; `before` and `both`:
    pads in front of the axis, and all."""

    dims: tuple[int | str | None, ...]
    axis: int
    span: int
    stride: int
    before: int
    both: int

    @property
    def step(self) -> int:
        """From a block's begin to the next one's."""
        return _PLACES * self.stride

    @property
    def size(self) -> int:
        """Of a block, with what it shares with the next ones."""
        return (_PLACES - 1) * self.stride + self.span

    @property
    def parts(self) -> int:
        """Steps that a block lies over."""
        return -(-self.size // self.step)


def sequence_conv(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Of f32. False where no kernel takes the blocks. Batch and axis may be free, all other sizes are known."""
    if lone_sequence(g, node):
        return True
    found = _blocks_of(g, node)
    if found is None:
        return False
    began, hint = (len(g.nodes), len(g.graph.value_info)), node.name or "Conv"
    rows = _rows(g, node.input[0], found, hint)
    count = g.add("Div", [g.add("Add", [rows, g.ints([_PLACES - 1], hint)], hint), g.ints([_PLACES], hint)], hint)
    made = copy_without(node, "pads", "auto_pad")
    pads = [0 if i % (len(found.dims) - 2) == found.axis - 2 else n for i, n in enumerate(_pads(node, found))]
    made.attribute.append(onnx.helper.make_attribute("pads", pads))
    made.input[0] = _cut(g, node.input[0], found, count, hint)
    made.output[0] = g.fresh(hint)
    sites = len(g.nodes)
    write_conv(g, made)
    y = g.shape(node.output[0])
    if y is None or not any(op_of(n) == CONV_SITE for n in g.nodes[sites:]):
        del g.nodes[began[0] :], g.graph.value_info[began[1] :]
        return False
    _join(g, made.output[0], found, [*y], (count, rows), node)
    return True


def _blocks_of(g: GraphWriter, node: onnx.NodeProto) -> _Blocks | None:
    shape, weight = g.shape(node.input[0]), g.shape(node.input[1])
    if g.cpu is None or g.kind(node.input[0]) != TensorProto.FLOAT or shape is None or weight is None or len(shape) < 3:
        return None
    free = [i for i, d in enumerate(shape[1:], 1) if not isinstance(d, int)]
    if len(free) != 1 or free[0] == 1 or len(weight) != len(shape) or not all(isinstance(d, int) for d in weight):
        return None
    if attr_of(node, "auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        return None
    at, axes = free[0] - 2, len(shape) - 2
    stride, dilation = (attr_of(node, name, [1] * axes)[at] for name in ("strides", "dilations"))
    pads = attr_of(node, "pads", [0] * 2 * axes)
    if min(pads) < 0:
        return None
    span = (int(weight[free[0]] or 0) - 1) * dilation + 1
    return _Blocks(tuple(shape), free[0], span, stride, pads[at], pads[at] + pads[axes + at])


def _pads(node: onnx.NodeProto, b: _Blocks) -> list[int]:
    return list(attr_of(node, "pads", [0] * 2 * (len(b.dims) - 2)))


def _length(g: GraphWriter, x: str, b: _Blocks, hint: str) -> str:
    return g.typed(g.add("Shape", [x], hint, start=b.axis, end=b.axis + 1), TensorProto.INT64, [1])


def _rows(g: GraphWriter, x: str, b: _Blocks, hint: str) -> str:
    """How many windows there are, a vector of one number."""
    room = g.add("Add", [_length(g, x, b, hint), g.ints([b.both - b.span], hint)], hint)
    steps = g.add("Div", [g.add("Max", [room, g.ints([-b.stride], hint)], hint), g.ints([b.stride], hint)], hint)
    return g.add("Add", [steps, g.ints([1], hint)], hint)


def _cut(g: GraphWriter, x: str, b: _Blocks, count: str, hint: str) -> str:
    """The blocks (batch * count, channels, sizes): of steps that lie side by side, which are joined along each."""
    axis, rank, kind = b.axis, len(b.dims), g.kind(x)
    # One more than the last block reads, so that nothing of x is left.
    steps = g.add("Add", [count, g.ints([b.parts], hint)], hint)
    whole = g.add("Mul", [steps, g.ints([b.step], hint)], hint)
    behind = g.add("Sub", [whole, g.add("Add", [_length(g, x, b, hint), g.ints([b.before], hint)], hint)], hint)
    padded = _padded(g, x, b, behind, hint)
    target = [0 if i == 0 else d if isinstance(d, int) else -1 for i, d in enumerate(b.dims)]
    split = g.reshape(padded, [*target[: axis + 1], b.step, *target[axis + 1 :]], hint)
    joined = []
    for part in range(b.parts):
        end = g.add("Add", [count, g.ints([part], hint)], hint)
        piece = g.add("Slice", [split, g.ints([part], hint), end, g.ints([axis], hint)], hint)
        left = b.size - part * b.step
        if left < b.step:
            piece = g.add("Slice", [piece, *(g.ints([n], hint) for n in (0, left, axis + 1))], hint)
        joined.append(piece)
    blocks = g.add("Concat", joined, hint, axis=axis + 1) if len(joined) > 1 else joined[0]
    order = [0, axis, *range(1, axis), *range(axis + 1, rank + 1)]
    turned = g.add("Transpose", [blocks], hint, perm=order)
    sizes = [b.size if i == axis else int(d or 0) for i, d in enumerate(b.dims) if i]
    # Free dims that lead are merged with all others in one (docs/developer/iree-bugs.md).
    flat = g.reshape(turned, [0, 0, math.prod(sizes)], hint)
    made = g.reshape(g.reshape(flat, [-1, math.prod(sizes)], hint), [-1, *sizes], hint)
    return g.typed(made, kind, [None, *sizes])


def _padded(g: GraphWriter, x: str, b: _Blocks, behind: str, hint: str) -> str:
    """x between zeros. A Pad would be one dispatch with what makes x, of which IREE cannot tell how many workgroups it has."""
    kind, free = g.kind(x), [d if i != b.axis else None for i, d in enumerate(b.dims)]
    nothing = onnx.helper.make_tensor("value", kind, [1], [0])

    def zeros(count: str) -> str:
        size = g.sizes(x, b.dims, hint, {b.axis: count})
        return g.typed(g.add("ConstantOfShape", [size], hint, value=nothing), kind, free)

    front = [zeros(g.ints([b.before], hint))] if b.before else []
    return g.typed(g.add("Concat", [*front, x, zeros(behind)], hint, axis=b.axis), kind, free)


def _join(
    g: GraphWriter,
    blocks: str,
    b: _Blocks,
    y: list[int | str | None],
    counts: tuple[str, str],
    node: onnx.NodeProto,
) -> None:
    """The blocks' results as the node's: `counts` of blocks of an element of the batch, and of windows."""
    hint, axis = node.name or "Conv", b.axis
    sizes = [_PLACES if i == axis else int(d or 0) for i, d in enumerate(y) if i]
    batch = g.add("Shape", [node.input[0]], hint, start=0, end=1)
    target = g.add("Concat", [batch, counts[0], g.ints(sizes, hint)], hint, axis=0)
    apart = g.add("Reshape", [blocks, target], hint, allowzero=1)
    apart = g.typed(apart, g.kind(node.input[0]), [y[0], None, *sizes])
    order = [0, *range(2, axis + 1), 1, *range(axis + 1, len(y) + 1)]
    turned = g.add("Transpose", [apart], hint, perm=order)
    whole = g.reshape(turned, [0, *sizes[: axis - 1], -1, *sizes[axis:]], hint)
    if not isinstance(y[0], int):
        # With a residual behind it that is added and padded, IREE cannot tell how many workgroups their dispatch has.
        whole = write_apart(g, g.typed(whole, g.kind(node.input[0]), [y[0], *sizes[: axis - 1], None, *sizes[axis:]]))
    g.add("Slice", [whole, g.ints([0], hint), counts[1], g.ints([axis], hint)], hint, out=node.output[0])
