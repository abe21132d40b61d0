"""What of a graph is run, and the removal of what a rewrite has left without readers."""

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
        for attr in node.attributes.values():
            if attr.type == ir.AttributeType.GRAPH:
                release_inputs(attr.as_graph().all_nodes())
        nodes += [*sources, *implicit]


def release_inputs(nodes: Iterable[ir.Node]) -> None:
    """Frees what nodes that are not used after all read, in their subgraphs too."""
    for node in nodes:
        node.resize_inputs(0)
        for attr in node.attributes.values():
            if attr.type == ir.AttributeType.GRAPH:
                release_inputs(attr.as_graph().all_nodes())


def nodes_that_run(model: ir.Model) -> set[ir.Node]:
    """The nodes of the main graph that its outputs need. Others may be left out, and a subgraph may not be run."""
    found: set[ir.Node] = set()
    todo = [p for out in model.graph.outputs if (p := out.producer()) is not None]
    while todo:
        node = todo.pop()
        if node in found or node.graph is not model.graph:
            continue
        found.add(node)
        todo += [p for v in (*node.inputs, *outer_reads(node)) if v is not None and (p := v.producer()) is not None]
    return found
