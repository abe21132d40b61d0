"""Score and after-softmax layers that leave values as they are: float casts, Identity, Dropout at inference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from onnx_fa.graph_view import FLOATS, GraphView
from onnx_fa.match import After, Nothing, Peel


def _is_noop(view: GraphView, node: ir.Node) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Cast":
        # Attention is computed with f32 accumulation whatever the operands' type, so a cast between float types adds nothing.
        source = node.inputs[0]
        return source is not None and source.dtype in FLOATS and node.outputs[0].dtype in FLOATS
    if node.op_type == "Dropout":
        mask_unused = len(node.outputs) < 2 or not list(node.outputs[1].uses())
        training = node.inputs[2] if len(node.inputs) > 2 else None
        return mask_unused and (training is None or view.scalar(training) == 0.0)
    return node.op_type == "Identity"


def on_score(view: GraphView, value: ir.Value) -> Iterator[Peel]:
    node = value.producer()
    if node is not None and _is_noop(view, node) and node.inputs[0] is not None:
        yield Peel(Nothing(), node.inputs[0], (node,))


def on_probabilities(view: GraphView, value: ir.Value, users: Sequence[ir.Node]) -> After | None:
    if len(users) == 1 and _is_noop(view, users[0]):
        return After(users[0].outputs[0], (users[0],))
    return None
