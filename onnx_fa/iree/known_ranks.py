"""Values of which only a run knows how many dims they have: the stock importer takes each for a single number, and what reads it
gives other numbers, silently."""

from __future__ import annotations

import onnx

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import all_nodes, bodies_of


def check_ranks(graph: onnx.GraphProto) -> None:
    """Types of values are taken from `value_info`. Raises ModelError for a value whose number of dims is unknown, and for a Tile
    whose repeats are of unknown number, which IREE leaves as it is."""
    types = {v.name: v.type for v in (*graph.input, *graph.value_info, *graph.output)}
    read = {name for node in all_nodes(graph) for name in node.input} | {v.name for v in graph.output}
    for node in graph.node:
        for name in read.intersection(node.output):
            kind = types.get(name)
            if kind is not None and kind.HasField("tensor_type") and not kind.tensor_type.HasField("shape"):
                raise ModelError(
                    f"node {node.name!r} ({op_of(node)}): only a run knows how many dims {name!r} has, and IREE would take it for "
                    "a single number: give the model sizes (--dim), or let it compute a shape of a known length"
                )
        if op_of(node) == "Tile" and _is_of_unknown_length(types.get(node.input[1])):
            raise ModelError(f"node {node.name!r}: Tile takes repeats of unknown number, which IREE leaves out")
        for body in bodies_of(node):
            check_ranks(body)


def _is_of_unknown_length(kind: onnx.TypeProto | None) -> bool:
    dims = [] if kind is None else kind.tensor_type.shape.dim
    return len(dims) == 1 and not dims[0].HasField("dim_value")
