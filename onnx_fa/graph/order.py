"""Nodes behind what they read. ONNX asks for that order; onnxruntime makes it itself of a model's own nodes, and some converters
leave it to that."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import onnx

from onnx_fa.graph.checks.nodes import graphs_of


def in_order(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model itself where every node of its graph stands behind those whose results it or its subgraphs read, else a copy in
    which it does. Of nodes that may come next the first in the file does. A graph with a cycle stays, and so do the nodes of
    subgraphs and functions, which onnxruntime refuses in another order."""
    order = _sorted(model.graph)
    if order == [*range(len(order))]:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(model.graph.node[i] for i in order)
    return result


def _sorted(graph: onnx.GraphProto) -> list[int]:
    """The places of the nodes, each behind those that it waits for; as they are for a cycle."""
    given = {value.name for value in (*graph.input, *graph.initializer)}
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output if name and name not in given}
    waits = [{makers[name] for name in _read(node) if name in makers} for node in graph.node]
    readers: dict[int, list[int]] = {}
    for i, before in enumerate(waits):
        for maker in before:
            readers.setdefault(maker, []).append(i)
    ready = [i for i, before in enumerate(waits) if not before]
    order: list[int] = []
    while ready:
        maker = heapq.heappop(ready)
        order.append(maker)
        for reader in readers.get(maker, ()):
            waits[reader].discard(maker)
            if not waits[reader]:
                heapq.heappush(ready, reader)
    return order if len(order) == len(graph.node) else [*range(len(graph.node))]


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node reads, and those that its subgraphs read and do not make."""
    yield from node.input
    for graph in graphs_of(node):
        made = {name for inner in graph.node for name in inner.output}
        made |= {value.name for value in (*graph.input, *graph.initializer)}
        read = {name for inner in graph.node for name in _read(inner)} | {value.name for value in graph.output}
        yield from read - made
