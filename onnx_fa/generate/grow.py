"""A decoder whose caches grow in place (graph/growing.py): each past becomes a cache that the caller owns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnx_fa.graph.builder import OnnxBuilder, names_in
from onnx_fa.graph.caches import ROWS, TAKING_A_PAST, CachePair
from onnx_fa.graph.growing import APPEND_ROWS, PAST_ROWS, back_in_place, rows_first
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.ops import attr_int, op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.graph.view import GraphView, default_opset
from onnx_fa.spec.terms import Dim


@dataclass(frozen=True)
class Grown:
    """`model` takes the caches `grown` (input names) rows first, and returns them so; `copied` says of others why not."""

    model: ir.Model
    grown: Mapping[str, int]
    """The axis of the rows in the cache as the model had it."""
    copied: Mapping[str, str]


def grow_caches(model: ir.Model, pairs: Sequence[CachePair], tokens: str) -> Grown:
    """A copy of the model with growing caches, as many as can be. `tokens` (B, S, ...) is the input with the new tokens."""
    work = model.clone()
    infer_shapes(work)
    view = GraphView(work)
    inputs = {str(v.name): v for v in work.graph.inputs}
    outputs = {str(v.name): v for v in work.graph.outputs}
    grown: dict[str, int] = {}
    copied: dict[str, str] = {}
    plans = []
    for pair in pairs:
        past, present = inputs[pair.past], outputs[pair.present]
        found = _find(view, past, present)
        if isinstance(found, str):
            copied[pair.past] = found
        else:
            plans.append((past, present, found))
            grown[pair.past] = found.axis
    builder = OnnxBuilder(work.graph, work.opset_imports.get("", default_opset(work)), "caches", names_in(work), {})
    for past, present, found in plans:
        _grow(work, builder, past, present, found, inputs[tokens])
    if grown:
        for imports in (work.opset_imports, work.graph.opset_imports):
            imports[DOMAIN] = 1
    return Grown(work, grown, copied)


@dataclass(frozen=True)
class _Found:
    """The rows are `axis` of the past, and `total` rows of the present. `node` puts `new` behind the past; it is an attention op
    where `new` is None."""

    axis: int
    total: Dim
    node: ir.Node
    new: ir.Value | None


def _find(view: GraphView, past: ir.Value, present: ir.Value) -> _Found | str:
    """How new rows come into a cache, or why it is copied."""
    node = present.producer()
    while node is not None and op_of(node) == "Identity" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    shape, made = view.shape(past), view.shape(present)
    if node is None or shape is None or made is None or len(shape) != len(made):
        return "its shape, or what makes the present, is unknown"
    places = [i for i, x in enumerate(node.inputs) if x is past]
    if len(places) != 1:
        return f"the present is made by {op_of(node)}, not from the past and new rows"
    axis, new = ROWS, None
    if op_of(node) == "Concat":
        if len(node.inputs) != 2 or places[0] != 0:
            return "new rows do not stand behind the past"
        axis, new = attr_int(node, "axis", 0) % len(shape), node.inputs[1]
    elif op_of(node) == "TensorScatter":
        mode = node.attributes.get("mode")
        if mode is not None and mode.as_string() != "linear":
            return "it is written in a circle"
        axis, new = attr_int(node, "axis", -2) % len(shape), node.inputs[1]
    elif op_of(node) not in TAKING_A_PAST:
        return f"the present is made by {op_of(node)}"
    elif len(shape) != 4:
        return f"{op_of(node)} takes it with {len(shape)} dims"
    elif attr_int(node, "sliding_window_cache", 0):
        return "it holds the rows of a window only"
    total = made[axis]
    if isinstance(shape[axis], int) or isinstance(total, int):
        return f"its length is fixed to {shape[axis] if isinstance(shape[axis], int) else total} rows"
    if total is None:
        return "the length of the present has no name"
    return _Found(axis, total, node, new)


def _grow(
    model: ir.Model, builder: OnnxBuilder, past: ir.Value, present: ir.Value, found: _Found, tokens: ir.Value
) -> None:
    """Puts a growing cache in the place of one past."""
    assert past.shape is not None
    rank, axis, name = len(past.shape), found.axis, str(past.name)
    order = rows_first(rank, axis)
    dims = [past.shape[i] if i != axis else found.total for i in order]
    cache = ir.Value(name=name, shape=ir.Shape(dims), type=past.type)
    builder.nodes = []
    old = builder.op_of(*_split(PAST_ROWS), (cache, tokens), {"axis": axis})
    old.shape, old.type = past.shape, past.type
    past.name = f"{name}/as it was"
    ir.convenience.replace_all_uses_with(past, old)
    at = next(i for i, v in enumerate(model.graph.inputs) if v is past)
    model.graph.inputs[at] = cache
    model.graph.insert_before(_first(model.graph), builder.nodes)
    if found.new is None:
        return
    builder.nodes = []
    rows = builder.op("Transpose", found.new, perm=order)
    made = builder.op_of(*_split(APPEND_ROWS), (cache, rows), {})
    made.shape, made.type = cache.shape, cache.type
    whole = builder.op("Transpose", made, perm=back_in_place(rank, axis))
    joined = found.node.outputs[0]
    whole.shape, whole.type = joined.shape, joined.type
    model.graph.insert_before(found.node, builder.nodes)
    is_output, title = joined.is_graph_output(), joined.name
    ir.convenience.replace_all_uses_with(joined, whole, replace_graph_outputs=True)
    model.graph.remove(found.node, safe=True)
    if is_output:
        whole.name = title


def _first(graph: ir.Graph) -> ir.Node:
    return next(iter(graph))


def _split(op: str) -> tuple[str, str]:
    domain, _, name = op.rpartition(".")
    return domain, name


def return_rows_first(model: ir.Model, presents: Mapping[str, str]) -> dict[str, str]:
    """Makes each present (output name -> input name of its cache) the rows that were appended, in place of what is transposed back.
    Returns, by input name, why that is not so of some."""
    left: dict[str, str] = {}
    for at, value in enumerate(list(model.graph.outputs)):
        cache = presents.get(str(value.name))
        if cache is None:
            continue
        turned = value
        while (node := turned.producer()) is not None and op_of(node) == "Identity" and node.inputs[0] is not None:
            turned = node.inputs[0]
        node = turned.producer()
        rows = node.inputs[0] if node is not None and op_of(node) == "Transpose" else None
        source = rows.producer() if rows is not None else None
        if rows is None or source is None or op_of(source) != APPEND_ROWS:
            left[cache] = "its attention has no kernel that reads it"
            continue
        value.name, rows.name = f"{value.name}/turned", value.name
        model.graph.outputs[at] = rows
    return left
