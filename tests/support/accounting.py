"""Which softmaxes of a model a report passes over: none, as every test of a rewrite may ask."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import onnx_ir as ir

from onnx_fa.forms.report import RewriteReport
from onnx_fa.graph.io import load
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.ops import op_of
from onnx_fa.match.prepare.functions import inline_attention
from onnx_fa.patterns import PATTERNS

_LIKE = ("Softmax", "LogSoftmax", "Attention")


def unaccounted(model: onnx.ModelProto, report: RewriteReport) -> list[str]:
    """The softmaxes and attention ops of the graph and its subgraphs that are neither in a site nor have a miss, by name. One whose
    logarithm is undone is known by the name of the Exp that undoes it. Those in functions are looked for where a site has taken
    the function in: there they have the names that a report gives them."""
    said = {m.node for m in report.misses} | {s.name.split("#")[0] for s in report.sites}
    names: list[str] = []
    for graph in _graphs(_as_found(model).graph):
        for node in graph.node:
            if op_of(node) in _LIKE:
                own = {
                    _label(node),
                    *(_label(n) for n in graph.node if op_of(node) == "LogSoftmax" and op_of(n) == "Exp"),
                }
                names += [] if own & said else [_label(node)]
    return names


def _as_found(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the functions inlined that hold a part of an attention."""
    if not model.functions:
        return model
    work = load(model)
    infer_shapes(work)
    inline_attention(work, PATTERNS)
    return ir.to_proto(work)


def _label(node: onnx.NodeProto) -> str:
    return node.name or f"{node.op_type}:{node.output[0]}"


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attr in node.attribute:
            for inner in (attr.g, *attr.graphs) if attr.type in (attr.GRAPH, attr.GRAPHS) else ():
                yield from _graphs(inner)
