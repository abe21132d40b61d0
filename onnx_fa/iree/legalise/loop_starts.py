"""What a Loop carries from its start is in memory of its own (docs/developer/iree-bugs.md).

The compiler puts values that are computed together into one allocation. Of one that a loop carries it forgets where in there it
lies if its size is the run's: the loop begins with what lies at the front, silently (loop_start.mlir). It does not see through an
Apart.
"""

from __future__ import annotations

import onnx

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.packed_rows import write_apart
from onnx_fa.iree.legalise.writer import GraphWriter, declare_own_nodes
from onnx_fa.spec.target import Target


def keep_starts_apart(model: onnx.ModelProto, *, target: Target | None = None) -> None:
    """Puts an Apart in front of each carried value of free sizes of the graph's Loops, in place. Types of values are taken from
    `value_info`."""
    g = GraphWriter(model, target=target)
    found = False
    for node in model.graph.node:
        for i in range(2, len(node.input)) if op_of(node) == "Loop" else ():
            shape = g.shape(node.input[i])
            if shape is not None and any(not isinstance(d, int) for d in shape):
                node.input[i] = write_apart(g, node.input[i])
                found = True
        g.nodes.append(node)
    if found:
        g.replace_nodes(g.nodes)
        declare_own_nodes(model)
