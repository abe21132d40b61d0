"""A part of a tensor is copied first where the compiler goes wrong with a Slice that it does not copy
(docs/developer/iree-bugs.md): where elements are gathered from it, on GPUs, it reads them as if its rows stood beside each other;
to sort it is refused."""

from __future__ import annotations

from collections.abc import Set

import onnx

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.packed_rows import write_apart
from onnx_fa.iree.legalise.writer import GraphWriter, declare_own_nodes
from onnx_fa.spec.target import Target

_GATHERS = frozenset(["Gather", "GatherElements", "GatherND", "GridSample", "Resize", "Upsample"])
"""Operators that read elements by indices that they compute."""
_SORTS = frozenset(["TopK"])
_SEEN_THROUGH = frozenset(["Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"])
_PARTS = frozenset(["Slice", "Split"])


def copy_sliced_rows(model: onnx.ModelProto, *, target: Target | None = None) -> None:
    """Puts an Apart in front of each TopK of a part of a tensor, and on GPUs of each gather, in place. Types of values are taken
    from `value_info`. Raises ModelError for a gather in the body of another node, where the compiler takes no Apart."""
    g, gathers = GraphWriter(model, target=target), _GATHERS if target is not None and target.is_gpu else frozenset()
    for body in g.bodies():
        for node in body.graph.node:
            if _reads_part(body, node, gathers):
                raise ModelError(
                    f"node {node.name!r}: {op_of(node)} in the body of another node takes elements of a Slice or Split, which IREE "
                    "reads at wrong places on GPUs"
                )
    made = False
    for node in model.graph.node:
        if _reads_part(g, node, gathers | _SORTS):
            node.input[0] = write_apart(g, node.input[0])
            made = True
        g.nodes.append(node)
    if made:
        g.replace_nodes(g.nodes)
        declare_own_nodes(model)


def _reads_part(g: GraphWriter, node: onnx.NodeProto, ops: Set[str]) -> bool:
    return op_of(node) in ops and _is_part(g, node.input[0]) and g.shape(node.input[0]) is not None


def _is_part(g: GraphWriter, value: str) -> bool:
    """Whether a value is cut out of another of several dims, or is that in another shape."""
    maker = g.maker(value)
    while maker is not None and op_of(maker) in _SEEN_THROUGH:
        maker = g.maker(maker.input[0])
    if maker is None or op_of(maker) not in _PARTS:
        return False
    shape = g.shape(maker.input[0])
    return shape is None or len(shape) > 1
