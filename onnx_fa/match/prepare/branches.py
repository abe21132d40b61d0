"""Ifs inside an attention of which it is sure which branch gives their results: that branch takes their place before matching."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnx_fa.graph.branches import put_in_place
from onnx_fa.graph.carried import graphs_of
from onnx_fa.graph.empty_guards import is_computed, sure_branch
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match import Match, Patterns, find_sites
from onnx_fa.match.prepare.functions import nodes_of

_MARK = "onnx_fa.branch."
"""Prefix of the metadata that nodes of a branch carry while it is found out whether the branch is needed."""


def take_branches(model: ir.Model, patterns: Patterns, accepts: Callable[[Match], bool]) -> None:
    """Puts sure branches in the place of their Ifs in the main graph, in place, if some node of them lies inside a recognised
    attention that `accepts` takes. All other Ifs stay as they are."""
    if not any(op_of(node) == "If" and is_computed(node.inputs[0]) for node in model.graph):
        return
    trial = model.clone()
    for number, node in enumerate(_ifs(trial)):
        for branch in graphs_of(node):
            for inner in branch.all_nodes():
                inner.metadata_props[f"{_MARK}{number}"] = ""
    if not _take(trial, None):
        return
    infer_shapes(trial)
    matches, _ = find_sites(GraphView(trial), patterns)
    needed = {mark for match in matches if accepts(match) for node in nodes_of(match) for mark in node.metadata_props}
    chosen = {node for number, node in enumerate(_ifs(model)) if f"{_MARK}{number}" in needed}
    if chosen:
        _take(model, chosen)
        infer_shapes(model)


def with_sure_branches(model: ir.Model) -> ir.Model:
    """A copy of the model with all sure branches in the place of their Ifs in the main graph; the model itself where it has none.
    IREE takes no If whose branches give results of other ranks or sizes, as TorchScript writes them for torch.tile, though
    it is sure which one runs."""
    if not any(op_of(node) == "If" and is_computed(node.inputs[0]) for node in model.graph):
        return model
    decided = model.clone()
    _take(decided, None)
    return decided


def _ifs(model: ir.Model) -> list[ir.Node]:
    """All Ifs, in an order that a clone of the model has too."""
    return [node for node in model.graph.all_nodes() if op_of(node) == "If"]


def _take(model: ir.Model, chosen: set[ir.Node] | None) -> bool:
    """Puts the sure branches of these Ifs (all of them for None) in place, as long as there are any; returns whether there were."""
    took = False
    while True:
        view = GraphView(model)
        found = [
            (node, branch)
            for node in model.graph
            if op_of(node) == "If"
            and (chosen is None or node in chosen)
            and (branch := sure_branch(view, node)) is not None
        ]
        for node, branch in found:
            put_in_place(model, node, branch)
        if not found:
            return took
        took = True
