"""Rotary embeddings in the operators that they are spelled in (graph/rotary.py), as whoever makes kernels of them reads them.

    y = Concat(Sub(Mul(a, cos), Mul(b, sin)), Add(Mul(a, sin), Mul(b, cos)))

a and b are the halves of each head of x (B, S, H, D), cos and sin are (B, S, 1, D / 2)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

_AXIS = 3


@dataclass(frozen=True)
class Columns:
    """`heads` of D numbers, from column `first` on, of the value `x`, whose rows are `width` numbers."""

    x: str
    first: int
    width: int
    heads: int
    D: int


@dataclass(frozen=True)
class Rotation:
    """A rotation of columns, and the places of what it is spelled in, the last of which makes `y`."""

    read: Columns
    cos: str
    sin: str
    y: str
    places: tuple[int, ...]


def rotation_at(g: GraphWriter, node: onnx.NodeProto, place: int, kinds: Collection[int]) -> Rotation | None:
    """The rotation whose halves a Concat joins, of numbers of one of these types."""
    shape = g.shape(node.output[0]) if node.output else None
    if op_of(node) != "Concat" or len(node.input) != 2 or shape is None or len(shape) != _AXIS + 1:
        return None
    if attr_of(node, "axis", 0) not in (-1, _AXIS) or g.kind(node.output[0]) not in kinds:
        return None
    within = [node]
    parts = [_of_two(g, value, op, within) for value, op in zip(node.input, ("Sub", "Add"), strict=True)]
    factors = [[_of_two(g, v, "Mul", within) for v in part] for part in parts if part is not None]
    if len(factors) != 2 or any(f is None for pair in factors for f in pair):
        return None
    (a_cos, b_sin), (a_sin, b_cos) = ([set(f) for f in pair if f is not None] for pair in factors)
    a, b, cos, sin = (list(x & y) for x, y in ((a_cos, a_sin), (b_sin, b_cos), (a_cos, b_cos), (b_sin, a_sin)))
    if not all(len(one) == 1 for one in (a, b, cos, sin)) or len({*a, *b, *cos, *sin}) != 4:
        return None
    heads = _halves(g, a[0], b[0], within)
    if heads is None or g.shape(heads) != shape:
        return None
    *lead, H, D = shape
    free = [d for d in lead if not isinstance(d, int)]
    if not isinstance(H, int) or not isinstance(D, int) or len(free) > 1 or None in lead or 0 in lead:
        return None
    if any(g.shape(table[0]) != [*lead, 1, D // 2] for table in (cos, sin)):
        return None
    read = columns_of(g, heads, H, D, within, node.output[0])
    places = whole(g, within, node.output[0])
    return None if places is None else Rotation(read, cos[0], sin[0], node.output[0], (*places, place))


def _of_two(g: GraphWriter, value: str, op: str, within: list[onnx.NodeProto]) -> tuple[str, str] | None:
    """The two operands of the node of this op that makes a value."""
    node = g.maker(value)
    if node is None or op_of(node) != op or len(set(node.input)) != 2:
        return None
    within.append(node)
    return node.input[0], node.input[1]


def _halves(g: GraphWriter, a: str, b: str, within: list[onnx.NodeProto]) -> str | None:
    """The value whose last dim a and b are the halves of."""
    first, second = _slice(g, a), _slice(g, b)
    if first is None or second is None or first[0] != second[0]:
        return None
    width = (g.shape(first[0]) or [None])[-1]
    if not isinstance(width, int) or width % 2 or (first[1:], second[1:]) != ((0, width // 2), (width // 2, width)):
        return None
    within += [node for node in map(g.maker, (a, b)) if node is not None]
    return first[0]


def columns_of(g: GraphWriter, value: str, heads: int, D: int, within: list[onnx.NodeProto], last: str) -> Columns:
    """What `value` (..., heads, D) is columns of: where a Reshape of a Slice makes it, and nobody but the nodes `within`, which
    make `last`, reads these, what is sliced, and the two nodes join those; else itself."""
    itself = Columns(value, 0, heads * D, heads, D)
    reshape = g.maker(value)
    if reshape is None or op_of(reshape) != "Reshape":
        return itself
    flat, rows = g.shape(reshape.input[0]), (g.shape(value) or [])[:-2]
    columns, node = _slice(g, reshape.input[0]), g.maker(reshape.input[0])
    if columns is None or node is None or flat != [*rows, heads * D] or columns[2] - columns[1] != heads * D:
        return itself
    shape = g.shape(columns[0])
    if shape is None or shape[:-1] != rows or not isinstance(shape[-1], int):
        return itself
    inner = [reshape, node]
    if whole(g, [*within, *inner], last) is None:
        return itself
    within += inner
    return Columns(columns[0], columns[1], shape[-1], heads, D)


def _slice(g: GraphWriter, value: str) -> tuple[str, int, int] | None:
    """The value of whose last dim a Slice takes neighbours, and where these begin and end."""
    node = g.maker(value)
    if node is None or op_of(node) != "Slice" or len(node.input) < 4:
        return None
    shape, bounds = g.shape(node.input[0]), [g.array(name) for name in node.input[1:] if name]
    if shape is None or not isinstance(shape[-1], int) or any(b is None or b.size != 1 for b in bounds):
        return None
    start, end, axis, *step = (int(b.reshape(())) for b in bounds if b is not None)
    if axis not in (-1, len(shape) - 1) or step not in ([], [1]):
        return None
    start, end = (max(0, min(n + shape[-1] * (n < 0), shape[-1])) for n in (start, end))
    return node.input[0], start, end


def whole(g: GraphWriter, nodes: Sequence[onnx.NodeProto], y: str) -> tuple[int, ...] | None:
    """The places of nodes, but for that which makes y, where nothing else reads what they make."""
    outputs = {node.output[0] for node in nodes}
    places = {g.place(name) for name in outputs}
    if any(g.is_output(name) or not places.issuperset(g.readers(name)) for name in outputs - {y}):
        return None
    return tuple(i for i in sorted(places) if g.graph.node[i].output[0] != y)
