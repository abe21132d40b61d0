"""Shapes across the edge of a subgraph: what the branches of an If agree on, and what a Loop or Scan carries from run to run of its
body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import onnx_ir as ir

from onnx_fa.graph.dims import Shape, recorded
from onnx_fa.graph.ops import attr_int, op_of
from onnx_fa.spec.terms import Dim

_BRANCHES = ("then_branch", "else_branch")
_MAX_VISITS = 3
"""How often a body is followed, each time with fewer dims assumed, before nothing is assumed."""
_MAX_DEPTH = 3
"""Bodies inside each other in which anything is assumed: each is followed anew whenever the one around it is."""
_STATES_SINCE = 9
"""The opset from which the first inputs of a Scan are its states, and have no axis of batches."""


class Walk(Protocol):
    """A walk over a model that keeps what is known of its values."""

    @property
    def depth(self) -> int:
        """How many graphs inside each other are being followed: 1 in the main graph."""

    def shape(self, value: ir.Value) -> Shape | None: ...

    def assume(self, value: ir.Value, shape: Shape | None) -> None:
        """Takes a body's input to have this shape; None for what is recorded of it."""

    def follow(self, graph: ir.Graph) -> None:
        """Goes through the graph's nodes, forgetting what an earlier walk through them found."""


def graphs_of(node: ir.Node) -> list[ir.Graph]:
    """The graphs inside a node."""
    return [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]


def sure_results(node: ir.Node, condition: Sequence[Dim | None] | None) -> list[tuple[ir.Value, ir.Value]]:
    """The outputs of an If whose condition is known, and what the branch that it picks makes of them."""
    branches = _branches(node, condition) if op_of(node) == "If" else []
    return list(zip(node.outputs, branches[0].outputs, strict=False)) if len(branches) == 1 else []


def _branches(node: ir.Node, condition: Sequence[Dim | None] | None) -> list[ir.Graph]:
    """The branches of an If that may run: one where its condition is known."""
    picked = condition[0] if condition is not None and len(condition) == 1 else None
    names = _BRANCHES if not isinstance(picked, int) else (_BRANCHES[0 if picked else 1],)
    return [node.attributes[name].as_graph() for name in names if name in node.attributes]


def follow_graphs(
    node: ir.Node, walk: Walk, opset: int, condition: Sequence[Dim | None] | None = None
) -> list[Shape | None]:
    """Follows the graphs inside a node, and returns the shapes of its results as far as these say them. `condition` is what is
    known of an If's."""
    kind, graphs = op_of(node), graphs_of(node)
    if kind == "Loop" and len(graphs) == 1:
        return _carry(walk, graphs[0], node.inputs[2:], graphs[0].inputs[2:], graphs[0].outputs[1:])
    if kind == "Scan" and len(graphs) == 1 and opset >= _STATES_SINCE:
        states = max(0, len(node.inputs) - attr_int(node, "num_scan_inputs", 0))
        return _carry(walk, graphs[0], node.inputs[:states], graphs[0].inputs[:states], graphs[0].outputs[:states])
    for graph in graphs:
        walk.follow(graph)
    if kind != "If":
        return []
    may_run = _branches(node, condition)
    return [_agreed(*map(walk.shape, results)) for results in zip(*(g.outputs for g in may_run), strict=False)]


def _agreed(first: Shape | None, *others: Shape | None) -> Shape | None:
    """The dims that all shapes have."""
    if first is None or any(other is None or len(other) != len(first) for other in others):
        return None
    return tuple(
        dims[0] if len(set(dims)) == 1 else None for dims in zip(first, *(o or () for o in others), strict=True)
    )


def _carry(
    walk: Walk,
    body: ir.Graph,
    starts: Sequence[ir.Value | None],
    inputs: Sequence[ir.Value],
    ends: Sequence[ir.Value],
) -> list[Shape | None]:
    """Follows a body, and returns the shapes of its carried values that are those of their starts in every run of the body. By
    induction: where the inputs have the shapes of the starts the outputs have them too. Dims for which that fails are assumed no
    longer, and the body is followed again."""
    first = [None if start is None else walk.shape(start) for start in starts]
    if len(inputs) < len(first) or len(ends) < len(first):
        walk.follow(body)
        return []
    for _ in range(_MAX_VISITS if walk.depth <= _MAX_DEPTH else 0):
        for value, assumed in zip(inputs, first, strict=False):
            walk.assume(value, _with_recorded(value, assumed))
        walk.follow(body)
        kept = [_agreed(a, walk.shape(end)) for a, end in zip(first, ends, strict=False)]
        if kept == first:
            return kept
        first = kept
    for value in inputs:
        walk.assume(value, None)
    walk.follow(body)
    return []


def _with_recorded(value: ir.Value, assumed: Shape | None) -> Shape | None:
    """The assumed dims, and what the model says of the input where it gives a number or nothing is assumed: a name that no other
    size has, as exporters give to each, would say less."""
    have = recorded(value)
    if have is None or assumed is None:
        return assumed
    return tuple(map(_either, have, assumed)) if len(have) == len(assumed) else None


def _either(have: Dim | None, assumed: Dim | None) -> Dim | None:
    return have if isinstance(have, int) or assumed is None else assumed
