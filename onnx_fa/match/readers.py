"""Finds out who else reads the scores of a site. The rewritten model would compute them a second time for such a reader."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.match.shown import shows_scores

_MAX_NODES_AWAY = 100
"""The search for another use of the scores stops after this many nodes, and takes that there is one."""


def find_other_reader(
    view: GraphView, qk: ir.Node, outputs: Sequence[ir.Value], shown: Sequence[ir.Value] = ()
) -> ir.Node | None:
    """A node that reads the scores, or what is made of them, for something else than the sites with these outputs, another softmax,
    or an output of the model that shows the scores `shown`. With such a reader the scores would be computed twice, and once as a
    whole; those that are shown have to be made as a whole anyway."""
    made = _made_of(view, qk, outputs)
    inside = {qk}
    stack = [p for o in outputs if (p := o.producer()) is not None]
    while stack:
        node = stack.pop()
        if node in inside:
            continue
        inside.add(node)
        stack += [p for i in node.inputs if i is not None and (p := i.producer()) is not None and p in made]
    for node in inside:
        for value in node.outputs:
            if value in outputs:
                continue
            if value.is_graph_output() and value not in shown:
                return node
            for user in view.users(value):
                if value in shown and shows_scores(view, value, user):
                    continue
                if user not in inside and _is_for_something_else(view, user):
                    return user
    return None


def _made_of(view: GraphView, qk: ir.Node, outputs: Sequence[ir.Value]) -> set[ir.Node]:
    """The product of Q and K, and what is made of it but by way of one of the outputs: V of one site may be made of another's
    output."""
    made, stack = {qk}, [qk]
    while stack:
        for value in stack.pop().outputs:
            new = [] if value in outputs else [u for u in view.users(value) if u not in made]
            made.update(new)
            stack += new
    return made


def _is_for_something_else(view: GraphView, node: ir.Node) -> bool:
    """Whether a node leads to a graph output, or far away, without another softmax between."""
    seen, stack = {node}, [node]
    while stack:
        node = stack.pop()
        if op_of(node) in ("Softmax", "LogSoftmax", "Exp"):
            continue
        for value in node.outputs:
            if value.is_graph_output() or len(seen) > _MAX_NODES_AWAY:
                return True
            new = [u for u in view.users(value) if u not in seen]
            seen.update(new)
            stack += new
    return False
