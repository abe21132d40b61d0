"""Rotary embeddings (rotation_spelling.py) as nodes that become calls of a kernel for CUDA (kernels/triton/rotate.py). Where
queries, keys and values are columns of the same rows, and the new keys and values are written into caches, all of that is one
node: alone, each is a dispatch or two, and a decoder's token has them in every layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import onnx
from onnx import helper

from onnx_fa.graph.growing import APPEND_ROWS
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.legalise.rotation_spelling import Columns, Rotation, columns_of, whole
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of, attributes_of
from onnx_fa.spec.rotated import KeptHeads, RotatedSpec
from onnx_fa.spec.terms import Dim, FloatType

ROTATED_ROWS = f"{DOMAIN}.RotatedRows"
"""Inputs and outputs as the operands and results of a RotatedSpec; attributes `first`, `heads`, `D`, and with caches `keys` and
`values`, the first columns of these."""
_ROWS_FIRST = (1, 0, 2, 3)
"""From (B, S, H, D) to a cache's (S, B, H, D)."""


def rotated_spec_of(types: Sequence[tuple[tuple[Dim, ...], str]], attributes: Mapping[str, Any]) -> RotatedSpec:
    """The spec of a RotatedRows whose operands have these shapes and element types."""
    (B, S, width), dtype = types[0]
    assert isinstance(width, int)
    kept = None
    if len(types) > 3:
        length, _, heads, _ = types[3][0]
        assert isinstance(heads, int)
        length = length if isinstance(length, int) else "length"
        kept = KeptHeads(attributes["keys"], attributes["values"], heads, length)
    lead = (B, S)
    return RotatedSpec(
        lead, width, attributes["first"], attributes["heads"], attributes["D"], cast(FloatType, dtype), kept
    )


@dataclass(frozen=True)
class _Appended:
    """Rows (B, S, H, D) that an AppendRows writes into a cache, and the nodes that turn them for it, itself the first."""

    rows: str
    cache: str
    nodes: tuple[onnx.NodeProto, ...]

    @property
    def y(self) -> str:
        return str(self.nodes[0].output[0])


@dataclass(frozen=True)
class _Made:
    """What one node is written for: a rotation, and perhaps the keys' rotation and what is appended. `places` are all that it
    stands for but the first of its nodes, at whose place it is."""

    rotation: Rotation
    place: int
    places: tuple[int, ...]
    keys: Rotation | None = None
    appended: tuple[_Appended, _Appended] | None = None
    values: Columns | None = None


def rotated_rows(g: GraphWriter, rotations: Mapping[int, Rotation]) -> dict[int, list[onnx.NodeProto]]:
    """The nodes at each place where some take the place of rotations, which are given by the place of the last of their nodes, and
    none where nodes are gone."""
    made = dict[int, list[onnx.NodeProto]]()
    left = dict(rotations)
    for place, found in rotations.items():
        if place in left and (whole_made := _with_caches(g, place, found, left)) is not None:
            _write(g, whole_made, made)
            for gone in [p for p, r in left.items() if r in (found, whole_made.keys)]:
                del left[gone]
    for place, found in left.items():
        _write(g, _Made(found, place, found.places), made)
    return made


def _write(g: GraphWriter, found: _Made, made: dict[int, list[onnx.NodeProto]]) -> None:
    read, shape = found.rotation.read, g.shape(found.rotation.y)
    hint, kind = found.rotation.y, g.kind(found.rotation.y)
    assert shape is not None
    lead = shape[:2]
    sizes = [d if isinstance(d, int) else -1 for d in lead]
    start = len(g.nodes)

    def flat(value: str, width: int) -> str:
        return g.typed(g.reshape(value, [*sizes, width], hint), kind, (*lead, width))

    inputs = [flat(read.x, read.width), *(flat(v, read.D // 2) for v in (found.rotation.cos, found.rotation.sin))]
    outputs = [g.typed(g.fresh(hint), kind, (*lead, read.heads * read.D))]
    columns: dict[str, Any] = {"first": read.first, "heads": read.heads, "D": read.D}
    if found.appended is not None and found.keys is not None and found.values is not None:
        inputs += [a.cache for a in found.appended]
        outputs += [a.y for a in found.appended]
        columns |= {"keys": found.keys.read.first, "values": found.values.first}
    name = g.fresh(f"{hint}/RotatedRows")
    g.nodes.append(helper.make_node("RotatedRows", inputs, outputs, name, domain=DOMAIN, **columns))
    g.reshape(outputs[0], [d if isinstance(d, int) else -1 for d in shape], hint, out=found.rotation.y)
    made.update({place: [] for place in found.places})
    made[found.place] = g.nodes[start:]


def _with_caches(g: GraphWriter, place: int, queries: Rotation, left: Mapping[int, Rotation]) -> _Made | None:
    """The rotation with that of the keys and all that goes into the caches, where `queries` goes into none."""
    appended = list(_appended(g))
    if any(a.rows == queries.y for a in appended):
        return None
    of_keys = [(p, r, a) for p, r in left.items() for a in appended if a.rows == r.y and _belong(g, queries, r)]
    if len(of_keys) != 1:
        return None
    ((key_place, keys, key_rows),) = of_keys
    lead = g.shape(queries.y) or []
    if (g.shape(key_rows.cache) or [])[1:] != [lead[0], keys.read.heads, keys.read.D]:
        return None  # sizes that the file says of one of them only
    for rows in appended:
        within = list(rows.nodes)
        shape = g.shape(rows.rows) or []
        if rows is key_rows or shape != g.shape(keys.y) or g.shape(rows.cache) != g.shape(key_rows.cache):
            continue
        read = columns_of(g, rows.rows, keys.read.heads, keys.read.D, within, rows.y)
        places = whole(g, within, rows.y)
        if read.x != queries.read.x or places is None or g.kind(rows.cache) != g.kind(queries.y):
            continue
        turned = whole(g, [*key_rows.nodes, g.graph.node[key_place]], key_rows.y)
        first = min(place, key_place)
        if turned is None or any(_comes_behind(g, a.cache, first) for a in (key_rows, rows)):
            return None
        gone = {*places, *turned, *queries.places, *keys.places, place, key_place}
        gone |= {g.place(a.y) for a in (key_rows, rows)}
        tables = queries if first == place else keys
        rotation = Rotation(queries.read, tables.cos, tables.sin, queries.y, queries.places)
        return _Made(rotation, first, tuple(gone - {first}), keys, (key_rows, rows), read)
    return None


def _belong(g: GraphWriter, queries: Rotation, keys: Rotation) -> bool:
    """Whether a rotation is that of the keys of these queries: of the same rows, by the same tables."""
    alike = queries.read.x == keys.read.x and queries.read.D == keys.read.D
    alike = alike and queries.read.width == keys.read.width
    return alike and _equal(g, queries.cos, keys.cos) and _equal(g, queries.sin, keys.sin)


def _equal(g: GraphWriter, a: str, b: str) -> bool:
    """Whether two values are the same, or are made by the same operators of the same values."""
    if a == b:
        return True
    nodes = g.maker(a), g.maker(b)
    if nodes[0] is None or nodes[1] is None or op_of(nodes[0]) not in ("Gather", "Unsqueeze", "Reshape"):
        return False
    first, second = nodes
    assert first is not None and second is not None
    alike = op_of(first) == op_of(second) and attributes_of(first) == attributes_of(second)
    return (
        alike
        and len(first.input) == len(second.input)
        and all(_equal(g, x, y) for x, y in zip(first.input, second.input, strict=True))
    )


def _comes_behind(g: GraphWriter, value: str, place: int) -> bool:
    """Whether a value is made only behind a place."""
    return g.maker(value) is not None and g.place(value) > place


def _appended(g: GraphWriter) -> Iterator[_Appended]:
    for node in g.graph.node:
        if op_of(node) == APPEND_ROWS and (found := _turned(g, node)) is not None:
            yield found


def _turned(g: GraphWriter, node: onnx.NodeProto) -> _Appended | None:
    """What is appended, before Transposes brought its rows to the front."""
    cache, value = node.input
    shape = g.shape(cache) or []
    if len(shape) != len(_ROWS_FIRST) or None in shape:
        return None
    nodes, perm = [node], tuple(range(len(_ROWS_FIRST)))
    while (maker := g.maker(value)) is not None and op_of(maker) == "Transpose" and perm != _ROWS_FIRST:
        own = attr_of(maker, "perm", [])
        if len(own) != len(perm):
            return None
        perm = tuple(own[axis] for axis in perm)
        nodes.append(maker)
        value = maker.input[0]
    return _Appended(value, cache, tuple(nodes)) if perm == _ROWS_FIRST else None
