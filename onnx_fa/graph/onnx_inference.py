"""ONNX's own inference of types and shapes, on a model in memory. onnx_ir's pass for it reads the whole inferred model back, every
node and attribute of it; only what was inferred is read here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial

import onnx
import onnx_ir as ir

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.scaled_sizes import infer_as_run

_FAULT = re.compile(r"\(op_type:(\S+), node name: (.*?)\): (?:\[\w+\] )*(.+)")
"""The first node that a message of ONNX's inference names."""
_LARGE = 1000
"""Bytes of an initializer that inference does not get: it follows numbers of shapes, which are small."""


def infer_by_onnx(model: ir.Model, *, data_prop: bool) -> None:
    """Fills in what ONNX's inference finds, in the graph and its subgraphs, whose values all have names of their own. `data_prop`:
    it follows the numbers of shapes. Where inference fails, nothing changes: models that contradict themselves are refused
    elsewhere."""
    try:
        proto = _without_large(model)
        write_onesided(proto.graph.node)
        inferred = infer_as_run(proto, lambda each: onnx.shape_inference.infer_shapes(each, data_prop=data_prop))
    except Exception:  # of protobuf, of ONNX, and of onnx_ir for what it cannot write
        return
    found = {info.name: info.type for info in _infos(inferred.graph)}
    for value in _values(model.graph):
        if value.name not in found:
            continue
        shape = ir.serde.deserialize_type_proto_for_shape(found[value.name])
        if shape is not None and shape != value.shape:
            value.shape = shape
        kind = ir.serde.deserialize_type_proto_for_type(found[value.name])
        if kind is not None and not isinstance(kind, ir.TensorType):
            value.type = kind  # a sequence of tensors is none
        elif kind is not None and kind.dtype != value.dtype:
            value.dtype = kind.dtype


def find_fault(model: ir.Model) -> str:
    """What ONNX's inference says of a node whose types, or sizes, do not fit its operator; "" where it finds no such node. It stops
    at nothing else of a model that is wrong."""
    try:
        proto = _without_large(model)
    except Exception:  # of onnx_ir, for what it cannot write
        return ""
    write_onesided(proto.graph.node)
    for strict in (False, True):
        try:
            infer_as_run(proto, partial(onnx.shape_inference.infer_shapes, check_type=True, strict_mode=strict))
        except Exception as e:  # of protobuf, for models that are too large, and of ONNX
            if (found := _FAULT.search(str(e))) is not None:
                op, name, said = found.groups()
                return f"node {name!r} ({op}): {said}"
    return ""


def write_onesided(nodes: Iterable[onnx.NodeProto]) -> None:
    """Gives each STFT that leaves out `onesided` its default, in place: ONNX's inference takes 0 for that, and not 1."""
    for node in nodes:
        if op_of(node) == "STFT" and all(a.name != "onesided" for a in node.attribute):
            node.attribute.append(onnx.helper.make_attribute("onesided", 1))


def _without_large(model: ir.Model) -> onnx.ModelProto:
    """The model with initializers as inputs too, and large ones as inputs only."""
    graph = model.graph
    inputs, initializers = list(graph.inputs), list(graph.initializers.values())
    try:
        for value in initializers:
            tensor = value.const_value
            if tensor is not None:
                value.shape = value.shape if value.shape is not None else ir.Shape(tensor.shape.numpy())
                value.dtype = value.dtype if value.dtype is not None else tensor.dtype
            if not value.is_graph_input():
                graph.inputs.append(value)
            if tensor is None or tensor.nbytes > _LARGE:
                assert value.name is not None
                del graph.initializers[value.name]
        return ir.to_proto(model)
    finally:
        graph.inputs.clear()
        graph.inputs.extend(inputs)
        graph.initializers.clear()
        for value in initializers:
            graph.initializers.add(value)


def _infos(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    """What is said of values, of subgraphs too."""
    yield from graph.value_info
    yield from graph.input
    yield from graph.output
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _infos(attribute.g)
            elif attribute.type == onnx.AttributeProto.GRAPHS:
                for subgraph in attribute.graphs:
                    yield from _infos(subgraph)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Inputs and results, of subgraphs too."""
    for each in (graph, *graph.subgraphs()):
        yield from each.inputs
    for node in graph.all_nodes():
        yield from node.outputs
