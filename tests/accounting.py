"""Which softmaxes of a model a report passes over: none, as every test of a rewrite may ask."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from onnx_fa.ops import op_of
from onnx_fa.report import RewriteReport

_LIKE = ("Softmax", "LogSoftmax", "Attention")


def unaccounted(model: onnx.ModelProto, report: RewriteReport) -> list[str]:
    """The softmaxes and attention ops of the graph and its subgraphs that are neither in a site nor have a miss, by name. One whose
    logarithm is undone is known by the name of the Exp that undoes it. Those in functions get other names."""
    said = {m.node for m in report.misses} | {s.name.split("#")[0] for s in report.sites}
    names: list[str] = []
    for graph in _graphs(model.graph):
        for node in graph.node:
            if op_of(node) in _LIKE:
                own = {
                    _label(node),
                    *(_label(n) for n in graph.node if op_of(node) == "LogSoftmax" and op_of(n) == "Exp"),
                }
                names += [] if own & said else [_label(node)]
    return names


def _label(node: onnx.NodeProto) -> str:
    return node.name or f"{node.op_type}:{node.output[0]}"


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attr in node.attribute:
            for inner in (attr.g, *attr.graphs) if attr.type in (attr.GRAPH, attr.GRAPHS) else ():
                yield from _graphs(inner)
