"""Model-local functions: those that hold a part of an attention are inlined before matching, all others stay as they are."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import PassError
from onnx_ir.passes.common import InlinePass

from onnx_fa.errors import ModelError
from onnx_fa.graph.builder import unused_name
from onnx_fa.graph.casts import dequantized_by
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.ops import STANDARD, op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match import Match, Patterns, find_sites, values_of
from onnx_fa.match.misses import Miss

_MARK = "onnx_fa.in."
"""Prefix of the metadata that nodes of a function carry while it is found out whether to inline it."""


def inline_attention(model: ir.Model, patterns: Patterns) -> list[Miss]:
    """Inlines, in place, every function of which some node lies inside a recognised attention, with the functions that call it,
    and those that lie between an operand and its DequantizeLinear: a form has to write that out (`forms/integers.py`).

    Returns the misses inside functions that stay. The model is left alone when no function needs to be inlined. Raises ModelError
    for a function in ONNX's own domain.
    """
    if not model.functions:
        return []
    for function in model.functions.values():
        if function.domain in STANDARD:
            raise ModelError(
                f"function {function.name!r} of the model stands in the domain of ONNX's own operators, where runtimes differ in "
                "what a call of it means; rename its domain"
            )
    _name_unused_outputs(model)
    trial = model.clone()
    for key, function in trial.functions.items():
        for node in function.all_nodes():
            node.metadata_props[_mark(key)] = ""
    try:
        InlinePass()(trial)
    except (PassError, ValueError) as e:
        return _not_inlined(model, e)
    infer_shapes(trial)
    matches, misses = find_sites(GraphView(trial), patterns)
    needed = {mark for match in matches for node in nodes_of(match) for mark in node.metadata_props}
    marked = {
        node.name: [k for k in node.metadata_props if k.startswith(_MARK)]
        for graph in trial.graphs()
        for node in graph
        if node.name
    }
    inside = [m for m in misses if any(mark not in needed for mark in marked.get(m.node, ()))]
    if any(_mark(key) in needed for key in model.functions):
        InlinePass(criteria=lambda function: _mark(function.identifier()) in needed)(model)
        infer_shapes(model)
    return inside


def _name_unused_outputs(model: ir.Model) -> None:
    """Names the outputs of calls that nobody reads. The inliner would give the function's own value the empty name, which
    means "absent" to the nodes that read it, and a call loses trailing empty outputs when it is saved."""
    calls = [*model.graph.all_nodes(), *(n for f in model.functions.values() for n in f.all_nodes())]
    taken = {o.name for n in calls for o in n.outputs if o.name}
    taken |= {i.name for n in calls for i in n.inputs if i is not None and i.name}
    for node in calls:
        if node.op_identifier() not in model.functions:
            continue
        for i, out in enumerate(node.outputs):
            if not out.name:
                out.name = unused_name(f"{node.name or node.op_type}/unused_{i}", taken)


def _mark(key: tuple[str, str, str]) -> str:
    return _MARK + ".".join(key)


def nodes_of(match: Match) -> list[ir.Node]:
    """The nodes from a match's operands, or from the DequantizeLinear of one, to its output, but not what only asks for shapes."""
    stop = set(values_of(*match.operands))
    found: dict[ir.Node, None] = {}
    todo = [match.output]
    while todo:
        value = todo.pop()
        node = value.producer()
        if value in stop or node is None or node in found:
            continue
        found[node] = None
        if op_of(node) not in ("Shape", "Size"):
            todo += [i for i in node.inputs if i is not None]
    return [match.anchor, *found, *(node for operand in stop for node in dequantized_by(operand))]


def _not_inlined(model: ir.Model, error: Exception) -> list[Miss]:
    """A miss for every softmax or attention op in a function, where functions cannot be inlined."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    reason = f"the function cannot be inlined: {cause}"
    misses = []
    for function in model.functions.values():
        for node in function:
            if op_of(node) in ("Softmax", "Attention"):
                misses.append(
                    Miss(node.name or node.op_type, op_of(node), f"inside function {function.name}: {reason}")
                )
    return misses
