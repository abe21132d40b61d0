"""Score and after-softmax layers that only move axes: Reshape, Transpose, Squeeze, Unsqueeze, Flatten."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnx_fa.graph.moves import REGROUPS
from onnx_fa.graph.view import GraphView
from onnx_fa.match import After, Anchor, Peel, Regroup


def peel_regroup(view: GraphView, value: ir.Value) -> Iterator[Peel]:
    """A node that only moves axes of the scores."""
    node = view.producer(value, *REGROUPS)
    if node is not None and node.inputs[0] is not None:
        yield Peel(Regroup(node), node.inputs[0])


def follow_regroup(view: GraphView, anchor: Anchor, value: ir.Value, users: Sequence[ir.Node]) -> After | None:
    """A node that only moves axes of the probabilities, and alone reads them."""
    if len(users) != 1 or view.producer(users[0].outputs[0], *REGROUPS) is None or users[0].inputs[0] is not value:
        return None
    return After(users[0].outputs[0], regroup=users[0])
