"""Bodies of If, Loop and Scan get what is known around them: ONNX's inference of shapes looks for axes, bounds and the like in the
graph of a node alone, and the importer takes a value of unknown shape to be a single number."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from onnx_fa.graph.builder import unused_name
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import all_nodes, bodies_of, constants_of

_MOST_BYTES = 1 << 12


def prepare_bodies(model: onnx.ModelProto) -> None:
    """In place: every body gets initializers of its own for the small constants of graphs around it that its nodes read, and the
    round and the condition that a Loop gives to its body are single numbers, also where the model does not say so."""
    taken = {t.name for t in model.graph.initializer} | {i.name for i in model.graph.input}
    taken |= {name for node in all_nodes(model.graph) for name in node.output}
    _copy(model.graph, {}, taken)


def _copy(graph: onnx.GraphProto, around: Mapping[str, onnx.TensorProto], taken: set[str]) -> None:
    """`around`: the constants of graphs that hold this one."""
    copied: dict[str, str] = {}
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name in around:
                if name not in copied:
                    copied[name] = unused_name(f"{name}_here", taken)
                    graph.initializer.add().CopyFrom(around[name])
                    graph.initializer[-1].name = copied[name]
                node.input[place] = copied[name]
    small = {name: t for name, t in constants_of(graph).items() if t.ByteSize() <= _MOST_BYTES and not _elsewhere(t)}
    for node in graph.node:
        for body in bodies_of(node):
            for value in body.input[:2] if op_of(node) == "Loop" else ():
                value.type.tensor_type.shape.SetInParent()
            _copy(body, {**around, **small}, taken)


def _elsewhere(tensor: onnx.TensorProto) -> bool:
    return tensor.data_location == onnx.TensorProto.EXTERNAL
