"""On GPUs a part of a tensor from which elements are gathered is copied first: the compiler reads a Slice that it does not copy, by
indices that are computed, as if its rows stood beside each other (docs/developer/iree-bugs.md)."""

from __future__ import annotations

import onnx

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.packed_rows import write_apart
from onnx_fa.iree.legalise.writer import GraphWriter, declare_own_nodes
from onnx_fa.spec.target import Target

_GATHERS = frozenset(["Gather", "GatherElements", "GatherND", "GridSample", "Resize", "Upsample"])
"""Operators that read elements by indices that they compute."""
_SEEN_THROUGH = frozenset(["Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"])
_PARTS = frozenset(["Slice", "Split"])


def copy_sliced_rows(model: onnx.ModelProto, *, target: Target | None = None) -> None:
    """Puts an Apart in front of each gather from a part of a tensor, in place. Types of values are taken from `value_info`. Raises
    ModelError for a gather in the body of another node, where the compiler takes no Apart."""
    if target is None or not target.is_gpu:
        return
    g = GraphWriter(model, target=target)
    for body in g.bodies():
        for node in body.graph.node:
            if _gathers_from_part(body, node):
                raise ModelError(
                    f"node {node.name!r}: {op_of(node)} in the body of another node takes elements of a Slice or Split, which IREE "
                    "reads at wrong places on GPUs"
                )
    made = False
    for node in model.graph.node:
        if _gathers_from_part(g, node):
            node.input[0] = write_apart(g, node.input[0])
            made = True
        g.nodes.append(node)
    if made:
        g.replace_nodes(g.nodes)
        declare_own_nodes(model)


def _gathers_from_part(g: GraphWriter, node: onnx.NodeProto) -> bool:
    return op_of(node) in _GATHERS and _is_part(g, node.input[0]) and g.shape(node.input[0]) is not None


def _is_part(g: GraphWriter, value: str) -> bool:
    """Whether a value is cut out of another of several dims, or is that in another shape."""
    maker = g.maker(value)
    while maker is not None and op_of(maker) in _SEEN_THROUGH:
        maker = g.maker(maker.input[0])
    if maker is None or op_of(maker) not in _PARTS:
        return False
    shape = g.shape(maker.input[0])
    return shape is None or len(shape) > 1
