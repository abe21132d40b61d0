"""Softmaxes that more than one node reads, and rewrites of what reads them, which are kept where sites come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from typing import TypeVar

import onnx_ir as ir

from onnx_fa.graph.axes import node_axis
from onnx_fa.graph.dims import Shape
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.view import GraphView
from onnx_fa.match import Match, Patterns, find_sites

_Found = TypeVar("_Found")
_MIN_OPSET = 13
"""Before it a softmax is over all axes from one on."""


def find_shared(view: GraphView) -> Iterator[tuple[ir.Node, Shape, list[ir.Node]]]:
    """Each softmax over the last axis that several nodes read, with its shape and these nodes."""
    if view.opset < _MIN_OPSET:
        return
    for graph in view.model.graphs():
        if isinstance(graph, ir.Function):
            continue
        for node in graph:
            if view.producer(node.outputs[0], "Softmax") is None or node.inputs[0] is None:
                continue
            shape, users = view.shape(node.outputs[0]), view.users(node.outputs[0])
            if shape is not None and len(users) > 1 and node_axis(node, len(shape)) == len(shape) - 1:
                yield node, shape, users


def rewrite_where_sites(
    view: GraphView,
    patterns: Patterns,
    accepts: Callable[[Match], bool],
    find: Callable[[GraphView], Iterable[_Found]],
    change: Callable[[GraphView, _Found], Set[ir.Node]],
) -> bool:
    """Makes, in place, the changes that `find` finds, where all nodes that `change` returns are then anchors of sites that
    `accepts` takes: all is tried in a copy of the model first. Returns whether the model was changed: then the view is not valid
    any more."""
    found = list(find(view))
    if not found:
        return False
    trial = GraphView(view.model.clone())
    anchors = [change(trial, each) for each in list(find(trial))]
    infer_shapes(trial.model)
    sites = {match.anchor for match in find_sites(GraphView(trial.model), patterns)[0] if accepts(match)}
    chosen = [each for each, wanted in zip(found, anchors, strict=True) if wanted <= sites]
    for each in chosen:
        change(view, each)
    if chosen:
        infer_shapes(view.model)
    return bool(chosen)
