"""Elements that a GatherElements picks out of a product of heads, as one node for both, which becomes a call of a kernel for CPUs
(kernels/cpu/indexed_product.py): attention by relative positions, as DeBERTa has it.

    GatherElements(MatMul(a, Transpose(Tile(w))), Expand(places), axis=2)

The Tile repeats the heads for each of a batch, and the Expand gives all heads the same places. Neither is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of
from onnx_fa.kernels.cpu.indexed_product import IndexedProduct, panel_of
from onnx_fa.spec.terms import Dim

INDEXED_PRODUCT = f"{DOMAIN}.IndexedProduct"
"""Inputs as an IndexedProduct has its operands."""
_RANK = 3


def indexed_product_of(operands: Sequence[tuple[Dim, ...]], attributes: Mapping[str, Any]) -> IndexedProduct:
    """The kernel of an IndexedProduct whose operands have these shapes."""
    return IndexedProduct(*operands)


def indexed_product(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Writes the node for a GatherElements that alone reads a product of f32."""
    data, places = node.input
    product = g.maker(data)
    if (
        g.cpu is None
        or product is None
        or op_of(product) != "MatMul"
        or attr_of(node, "axis", 0) not in (-1, _RANK - 1)
    ):
        return False
    if len(g.readers(data)) != 1 or g.is_output(data) or g.kind(data) != TensorProto.FLOAT:
        return False
    a, w = product.input
    heads, turned = _heads(g, w)
    shapes = [g.shape(name) for name in (a, heads, places)]
    if any(shape is None or len(shape) != _RANK for shape in shapes):
        return False
    (*_, K), (_, *sides), _ = (shape or [] for shape in shapes)
    depth, N = reversed(sides) if turned else sides
    if not isinstance(K, int) or depth != K or not isinstance(N, int) or 0 in (K, N):
        return False
    panel = panel_of(N, g.cpu)
    if not panel:
        return False
    hint = node.name or "GatherElements"
    w = _panels(g, heads, turned, (K, N), panel, hint)
    operands = [_rows(g, a), w, *_places(g, places, N, hint)]
    # A product that nothing reads any more would be kept apart from what the compiler packs, and so be made.
    g.nodes = [n for n in g.nodes if data not in n.output]
    g.nodes.append(
        helper.make_node("IndexedProduct", operands, node.output, g.fresh(f"{hint}/IndexedProduct"), domain=DOMAIN)
    )
    return True


def _rows(g: GraphWriter, a: str) -> str:
    """What a left factor (batch H, rows, K) is a copy of: (batch, rows, H, K), as a projection makes it; itself if it is none."""
    merges = g.maker(a)
    turns = g.maker(merges.input[0]) if merges is not None and op_of(merges) == "Reshape" else None
    if merges is None or turns is None or op_of(turns) != "Transpose" or attr_of(turns, "perm", None) != [0, 2, 1, 3]:
        return a
    source, made = g.shape(turns.input[0]), g.shape(a)
    if (
        source is None
        or made is None
        or len(made) != _RANK
        or not all(isinstance(d, int) for d in (*source[2:], made[2]))
    ):
        return a
    target, made = g.maker(merges.input[1]), list(made)
    if target is not None and op_of(target) == "Concat" and len(target.input) == _RANK:
        made[1] = _size(g, target.input[1])
    same = source[1] is not None and made[1:] == [source[1], source[3]] and 0 not in source
    return turns.input[0] if same else a


def _size(g: GraphWriter, name: str) -> int | str | None:
    """The dim that a value is of one number, by what inference calls it; None where it is not read off a shape."""
    maker = g.maker(name)
    while maker is not None and op_of(maker) in ("Unsqueeze", "Squeeze"):
        maker = g.maker(maker.input[0])
    if maker is None or op_of(maker) not in ("Shape", "Gather", "Slice"):
        return None
    shape = maker if op_of(maker) == "Shape" else g.maker(maker.input[0])
    if shape is None or op_of(shape) != "Shape":
        return None
    dims = g.shape(shape.input[0])
    if dims is None:
        return None
    start = attr_of(shape, "start", 0)
    dims = dims[start : attr_of(shape, "end", len(dims))]
    if maker is not shape:
        given = [g.array(x) for x in maker.input[1:]]
        if any(x is None or x.size != 1 for x in given):
            return None
        at, *more = [int(x.reshape(())) for x in given if x is not None]
        if op_of(maker) == "Gather":
            dims = [dims[at]] if -len(dims) <= at < len(dims) else []
        else:
            dims = dims[at : more[0]] if more[1:] in ([], [0], [0, 1]) else []
    return dims[0] if len(dims) == 1 else None


def _heads(g: GraphWriter, w: str) -> tuple[str, bool]:
    """What a product's right factor (batch, K, N) is made of: of heads that may be fewer, which a Tile repeats, and whether that is
    (heads, N, K)."""
    maker = g.maker(w)
    turned = maker is not None and op_of(maker) == "Transpose" and attr_of(maker, "perm", None) == [0, 2, 1]
    value = maker.input[0] if maker is not None and turned else w
    while (maker := g.maker(value)) is not None and (
        (op_of(maker) == "Tile" and _repeats_first(g, maker))
        or (op_of(maker) == "Expand" and _changes_nothing(g, maker))
    ):
        value = maker.input[0]
    return value, turned


def _repeats_first(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Whether a Tile repeats the first of three axes alone."""
    inner, outer = g.shape(node.input[0]), g.shape(node.output[0])
    if inner is None or len(inner) != _RANK:
        return False
    if outer is not None and all(isinstance(d, int) and d > 0 for d in inner[1:]) and inner[1:] == outer[1:]:
        return True
    maker, repeats = g.maker(node.input[1]), g.array(node.input[1])
    if repeats is not None:
        return bool((repeats[1:] == 1).all())
    if maker is None or op_of(maker) != "Concat" or g.shape(maker.input[0]) != [1]:
        return False
    rest = [g.array(name) for name in maker.input[1:]]
    return all(part is not None and (part == 1).all() for part in rest)


def _changes_nothing(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Whether an Expand gives back what it reads."""
    inner = g.shape(node.input[0])
    return inner is not None and all(isinstance(d, int) and d > 0 for d in inner) and inner == g.shape(node.output[0])


def _panels(g: GraphWriter, heads: str, turned: bool, dims: tuple[int, int], panel: int, hint: str) -> str:
    """Heads as (heads, panels, K, panel), columns of zeros behind the last."""
    K, N = dims
    count, rest = -(-N // panel), -N % panel
    if rest:
        heads = g.add("Pad", [heads, g.ints([0, 0, 0, 0, *([rest, 0] if turned else [0, rest])], hint)], hint)
    split, perm = ([0, count, panel, K], [0, 1, 3, 2]) if turned else ([0, K, count, panel], [0, 2, 1, 3])
    return g.add("Transpose", [g.reshape(heads, split, hint)], hint, perm=perm)


def _places(g: GraphWriter, places: str, N: int, hint: str) -> list[str]:
    """Places of i32 from 0 on, before what expands them; and these expanded, where anything does."""
    maker = g.maker(places)
    expands = maker is not None and op_of(maker) == "Expand" and len(g.shape(maker.input[0]) or ()) == _RANK
    source = maker.input[0] if maker is not None and expands else places
    x = g.cast(source, g.kind(source), TensorProto.INT32, hint)
    zero, count, last = (g.const(np.array(n, np.int32), hint) for n in (0, N, N - 1))
    x = g.add("Where", [g.add("Less", [x, zero], hint), g.add("Add", [x, count], hint), x], hint)
    # The kernel reads its stack there: whatever a model asks for, it is to be there.
    x = g.add("Min", [g.add("Max", [x, zero], hint), last], hint)
    return [x, g.add("Expand", [x, maker.input[1]], hint)] if maker is not None and expands else [x]
