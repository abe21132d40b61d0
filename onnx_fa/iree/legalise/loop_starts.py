"""What a Loop carries from its start is in memory of its own (docs/developer/iree-bugs.md).

The compiler puts values that are computed together into one allocation. Of one that a loop carries it forgets where in there it
lies if its size is the run's: the loop begins with what lies at the front, silently (loop_start.mlir); likewise in each round,
where a tensor that no number of the run decides is made anew beside it. It does not see through an Apart.
"""

from __future__ import annotations

import onnx

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.fills import is_free_fill
from onnx_fa.iree.legalise.packed_rows import write_apart
from onnx_fa.iree.legalise.renamed import own_names, rename_around
from onnx_fa.iree.legalise.writer import GraphWriter, all_nodes, bodies_of, declare_own_nodes
from onnx_fa.spec.target import Target


def keep_starts_apart(model: onnx.ModelProto, *, target: Target | None = None) -> None:
    """Puts an Apart in front of each carried value of free sizes of the graph's Loops, and behind the fills that their bodies read,
    in place. Types of values are taken from `value_info`."""
    g = GraphWriter(model, target=target)
    made = {name for node in model.graph.node for name in node.output}
    apart = dict[str, str]()
    found = False
    for node in model.graph.node:
        if op_of(node) == "Loop":
            body = bodies_of(node)[0]
            for name in sorted(_read_within(body) & made):
                if name not in apart and g.shape(name) is not None and is_free_fill(g, name):
                    apart[name] = write_apart(g, name)
            rename_around(body, apart)
            for i in range(2, len(node.input)):
                if g.shape(node.input[i]) is not None and g.is_free(node.input[i]):
                    node.input[i] = write_apart(g, node.input[i])
                    found = True
        g.nodes.append(node)
    if found or apart:
        g.replace_nodes(g.nodes)
        declare_own_nodes(model)


def _read_within(body: onnx.GraphProto) -> set[str]:
    """What the nodes of a body read that it does not make itself."""
    return {name for node in all_nodes(body) for name in node.input} - own_names(body)
