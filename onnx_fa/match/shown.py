"""What a model shows beside the product with V: probabilities (`output_attentions`, `need_weights`), or the scores
(`qk_matmul_output` of onnx's Attention, written out)."""

from __future__ import annotations

import onnx_ir as ir

from onnx_fa.graph.moves import MOVES, REPEATS
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView

_COPYING = (MOVES - REPEATS) | {"Cast", "Concat", "Split"}
_SHOWING = _COPYING | {"ReduceMean", "ReduceSum", "ReduceMax"}
_MAX_NODES_FOLLOWED = 64
"""The walk from the probabilities to the model's outputs gives up after this many nodes."""


def only_shows(view: GraphView, prob: ir.Value, node: ir.Node, by: frozenset[str] = _SHOWING) -> bool:
    """Whether a reader of probabilities leads to outputs of the model and to nothing else, by ops that move, pick or reduce."""
    made = prob.producer()
    seen, stack = {node}, [node]
    while stack:
        at = stack.pop()
        if op_of(at) not in by or made is None or at.graph is not made.graph or len(seen) > _MAX_NODES_FOLLOWED:
            return False
        for value in at.outputs:
            users = view.users(value)
            if not users and not value.is_graph_output() and value is at.outputs[0]:
                return False
            stack += [u for u in users if u not in seen]
            seen.update(users)
    return True


def find_shown_scores(view: GraphView, qk: ir.Node, score: ir.Value) -> list[ir.Value]:
    """The scores, at any stage from the product of Q and K to the softmax of `score`, that are an output of the model too. The
    model's own nodes go on to make these, so that they stay the same to the last bit."""
    found: list[ir.Value] = []
    seen, stack = {score}, [score]
    while stack:
        value = stack.pop()
        node = value.producer()
        if value.is_graph_output() or any(shows_scores(view, value, u) for u in view.users(value)):
            found.append(value)
        if node is None or node is qk:
            continue
        above = [i for i in node.inputs if i is not None and i not in seen and view.depends(i, qk)]
        seen.update(above)
        stack += above
    return found


def shows_scores(view: GraphView, value: ir.Value, node: ir.Node) -> bool:
    """Whether a reader of scores leads to outputs of the model and to nothing else, by ops that copy: what is made of all scores
    of a row (their maximum) is no reason to compute all of them twice."""
    return only_shows(view, value, node, _COPYING)
