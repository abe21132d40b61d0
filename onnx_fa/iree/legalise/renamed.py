"""Other names for the values of a graph."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from onnx_fa.iree.legalise.writer import bodies_of


def own_names(body: onnx.GraphProto) -> set[str]:
    """The values that a body is given, and those that its nodes make."""
    return {v.name for v in body.input} | {name for node in body.node for name in node.output}


def rename_values(graph: onnx.GraphProto, new: Mapping[str, str]) -> None:
    """Gives other names to values of a graph."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        value.name = new.get(value.name, value.name)
    rename_read(graph, new)
    for node in graph.node:
        node.output[:] = [new.get(name, name) for name in node.output]


def rename_read(graph: onnx.GraphProto, new: Mapping[str, str]) -> None:
    """Lets the nodes of a graph, and of those within them, read values by their new names."""
    for node in graph.node:
        node.input[:] = [new.get(name, name) for name in node.input]
        for body in bodies_of(node):
            rename_around(body, new)


def rename_around(body: onnx.GraphProto, new: Mapping[str, str]) -> None:
    """Lets a body, and those within it, read values of the graphs around it by their new names."""
    own = own_names(body)
    outer = {name: to for name, to in new.items() if name not in own}
    for value in body.output:
        value.name = outer.get(value.name, value.name)
    rename_read(body, outer)
