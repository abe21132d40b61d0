"""Probabilities that a model shows: outputs of it beside the product with V (`output_attentions`, `need_weights`)."""

from __future__ import annotations

import onnx_ir as ir

from onnx_fa.graph.moves import MOVES, REPEATS
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView

_SHOWING = (MOVES - REPEATS) | {"Cast", "Concat", "Split", "ReduceMean", "ReduceSum", "ReduceMax"}
_MAX_NODES_FOLLOWED = 64
"""The walk from the probabilities to the model's outputs gives up after this many nodes."""


def only_shows(view: GraphView, prob: ir.Value, node: ir.Node) -> bool:
    """Whether a reader of probabilities leads to outputs of the model and to nothing else, by ops that move, pick or reduce."""
    made = prob.producer()
    seen, stack = {node}, [node]
    while stack:
        at = stack.pop()
        if op_of(at) not in _SHOWING or made is None or at.graph is not made.graph or len(seen) > _MAX_NODES_FOLLOWED:
            return False
        for value in at.outputs:
            users = view.users(value)
            if not users and not value.is_graph_output() and value is at.outputs[0]:
                return False
            stack += [u for u in users if u not in seen]
            seen.update(users)
    return True
