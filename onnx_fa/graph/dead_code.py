"""Takes out of a graph what a rewrite has left without readers."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from onnx_fa.graph.ops import outer_reads


def sweep(nodes: list[ir.Node]) -> None:
    """Removes nodes whose outputs nobody reads, and then what only they read."""
    while nodes:
        node = nodes.pop()
        if node.graph is None or any(o.uses() or o.is_graph_output() for o in node.outputs):
            continue
        sources = [p for i in node.inputs if i is not None and (p := i.producer()) is not None]
        implicit = [p for sub in outer_reads(node) if (p := sub.producer()) is not None]
        node.graph.remove(node, safe=True)
        nodes += [*sources, *implicit]


def release_inputs(nodes: Iterable[ir.Node]) -> None:
    """Frees what nodes that are not used after all read, in their subgraphs too."""
    for node in nodes:
        node.resize_inputs(0)
        for attr in node.attributes.values():
            if attr.type == ir.AttributeType.GRAPH:
                release_inputs(attr.as_graph().all_nodes())
