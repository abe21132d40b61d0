"""Rotary embeddings, in the operators that they are spelled in (graph/rotary.py), as one node each, which becomes a call of a
kernel for CPUs (kernels/cpu/rotate.py). The compiler makes four dispatches of each: two of arithmetic, and two that copy halves.

    y = Concat(Sub(Mul(a, cos), Mul(b, sin)), Add(Mul(a, sin), Mul(b, cos)))

a and b are the halves of each head of x (B, S, H, D), cos and sin are (B, S, 1, D / 2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of, declare_own_nodes
from onnx_fa.kernels.cpu.rotate import RotatedHeads
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim

ROTATED_HEADS = f"{DOMAIN}.RotatedHeads"
"""Inputs x (rows, width), cos and sin (rows, D / 2); attributes `first`, `heads`, `D`."""
_AXIS = 3


def rotated_heads_of(operands: Sequence[tuple[Dim, ...]], attributes: Mapping[str, Any]) -> RotatedHeads:
    """The kernel of a RotatedHeads whose operands have these shapes."""
    rows, width = operands[0]
    assert isinstance(width, int)
    return RotatedHeads(rows if isinstance(rows, int) else None, width, **attributes)


@dataclass(frozen=True)
class _Rotation:
    """A rotation of `x`, columns of a value, and the places of what it is spelled in, the last of which makes `y`."""

    spec: RotatedHeads
    x: str
    cos: str
    sin: str
    y: str
    places: tuple[int, ...]


def find_rotations(
    model: onnx.ModelProto, held: Mapping[str, ir.TensorProtocol] | None = None, *, target: Target | None = None
) -> None:
    """Writes a node for each rotation of f32 whose heads lie side by side, in place. Types of values are taken from
    `value_info`."""
    g = GraphWriter(model, held, target=target)
    if g.cpu is None or g.cpu.kernels != "auto":
        return
    found = {place: r for place, node in enumerate(model.graph.node) if (r := _rotation(g, node, place)) is not None}
    if not found:
        return
    gone = {place for r in found.values() for place in r.places}
    nodes = list[onnx.NodeProto]()
    for place, node in enumerate(model.graph.node):
        if place in found:
            start = len(g.nodes)
            _write(g, found[place], node.name or node.output[0])
            nodes += g.nodes[start:]
        elif place not in gone:
            nodes.append(node)
    g.replace_nodes(nodes)
    declare_own_nodes(model)


def _write(g: GraphWriter, found: _Rotation, hint: str) -> None:
    spec, shape = found.spec, g.shape(found.y)
    assert shape is not None
    rows = -1 if spec.rows is None else spec.rows

    def flat(value: str, width: int) -> str:
        return g.typed(g.reshape(value, [rows, width], hint), TensorProto.FLOAT, (spec.lead, width))

    inputs = [flat(found.x, spec.width), flat(found.cos, spec.D // 2), flat(found.sin, spec.D // 2)]
    made = g.typed(g.fresh(hint), TensorProto.FLOAT, (spec.lead, spec.heads * spec.D))
    g.nodes.append(
        helper.make_node(
            "RotatedHeads",
            inputs,
            [made],
            g.fresh(f"{hint}/RotatedHeads"),
            domain=DOMAIN,
            first=spec.first,
            heads=spec.heads,
            D=spec.D,
        )
    )
    g.reshape(made, [d if isinstance(d, int) else -1 for d in shape], hint, out=found.y)


def _rotation(g: GraphWriter, node: onnx.NodeProto, place: int) -> _Rotation | None:
    """The rotation whose halves a Concat joins."""
    shape = g.shape(node.output[0]) if node.output else None
    if op_of(node) != "Concat" or len(node.input) != 2 or shape is None or len(shape) != _AXIS + 1:
        return None
    if attr_of(node, "axis", 0) not in (-1, _AXIS) or g.kind(node.output[0]) != TensorProto.FLOAT:
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
    x, first, width = _columns_of(g, heads, H * D, within)
    places = _whole(g, within, node.output[0])
    rows = None if free else math.prod(d for d in lead if isinstance(d, int))
    spec = RotatedHeads(rows, width, first, H, D)
    assert g.cpu is not None
    if places is None or not spec.lanes(g.cpu):
        return None
    return _Rotation(spec, x, cos[0], sin[0], node.output[0], (*places, place))


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


def _columns_of(g: GraphWriter, heads: str, width: int, within: list[onnx.NodeProto]) -> tuple[str, int, int]:
    """The value of which heads are columns from the second number on, and how many it has: where a Reshape of a Slice makes them,
    and the rotation alone reads these, what is sliced; else themselves."""
    reshape = g.maker(heads)
    if reshape is None or op_of(reshape) != "Reshape":
        return heads, 0, width
    flat, rows = g.shape(reshape.input[0]), (g.shape(heads) or [])[:-2]
    columns = _slice(g, reshape.input[0])
    node = g.maker(reshape.input[0])
    if columns is None or node is None or flat != [*rows, width] or columns[2] - columns[1] != width:
        return heads, 0, width
    whole = g.shape(columns[0])
    if whole is None or whole[:-1] != rows or not isinstance(whole[-1], int):
        return heads, 0, width
    inner = [reshape, node]
    if _whole(g, [*within, *inner], within[0].output[0]) is None:
        return heads, 0, width
    within += inner
    return columns[0], columns[1], whole[-1]


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


def _whole(g: GraphWriter, nodes: Sequence[onnx.NodeProto], y: str) -> tuple[int, ...] | None:
    """The places of nodes, but for that which makes y, where nothing else reads what they make."""
    outputs = {node.output[0] for node in nodes}
    places = {g.place(name) for name in outputs}
    if any(g.is_output(name) or not places.issuperset(g.readers(name)) for name in outputs - {y}):
        return None
    return tuple(i for i in sorted(places) if g.graph.node[i].output[0] != y)
