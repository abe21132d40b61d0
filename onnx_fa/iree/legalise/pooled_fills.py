"""A mean over the windows of a tensor that is one number throughout (zeros, a row that is expanded) is that number divided by the
places of a window: the compiler folds the sum of a window into one of its places, silently (docs/developer/iree-bugs.md). It does
not see through an Apart."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.fills import is_fill, of_the_run
from onnx_fa.iree.legalise.packed_rows import write_apart
from onnx_fa.iree.legalise.writer import GraphWriter, declare_own_nodes
from onnx_fa.spec.target import Target

_POOLS = frozenset(("AveragePool", "GlobalAveragePool", "GlobalLpPool", "LpPool"))


def keep_pooled_fills_apart(model: onnx.ModelProto, *, target: Target | None = None) -> None:
    """Computes what a pool sums first where no number of the run decides it, in place; in the bodies of other nodes, where the
    compiler takes no Apart, a number of the model's inputs chooses it. Types of values are taken from `value_info`."""
    g = GraphWriter(model, target=target)
    inputs = [v.name for v in model.graph.input if not g.is_constant(v.name)]
    for body in g.bodies():
        _copy(body, lambda inner, value: of_the_run(inner, value, inputs, value))
    if _copy(g, write_apart):
        declare_own_nodes(model)


def _copy(g: GraphWriter, copied: Callable[[GraphWriter, str], str]) -> bool:
    found = False
    for node in g.graph.node:
        if op_of(node) in _POOLS and g.shape(node.input[0]) is not None and is_fill(g, node.input[0]):
            node.input[0] = copied(g, node.input[0])
            found = True
        g.nodes.append(node)
    if found:
        g.replace_nodes(g.nodes)
    else:
        g.nodes.clear()
    return found
