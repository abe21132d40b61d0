"""Operands that a graph computes although they are known: bounds that are computed from the sizes of weights or of images whose
channels are known, which exporters write for models with free sizes, conditions of a Compress that are (tf2onnx's symmetric pads),
and weights under other names. Rules that read constants see them so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.iree.legalise.writer import all_nodes

_BOUNDED = ("Slice", "Pad", "Split", "Compress")
"""Operators that have whole numbers behind their first operand, or truths, which say what of it is taken."""


def known_bounds(view: GraphView) -> dict[str, list[int] | list[bool]]:
    """The values by which nodes of the main graph cut, pad and choose that are computed there, and that every run computes the
    same."""
    found = dict[str, list[int] | list[bool]]()
    for node in view.model.graph:
        if op_of(node) not in _BOUNDED:
            continue
        for value in node.inputs[1:]:
            if value is None or value.producer() is None:
                continue
            if op_of(node) == "Compress" and value.name and (chosen := view.const(value)) is not None:
                found[value.name] = chosen.astype(np.bool_).ravel().tolist()
            if value.dtype not in (ir.DataType.INT64, None):
                continue
            dims = view.dims(value)
            numbers = [d for d in dims or () if isinstance(d, int)]
            if value.name and numbers and len(numbers) == len(dims or ()) and _is_vector(view, value):
                found[value.name] = numbers
    return found


def known_parts(view: GraphView) -> dict[str, list[int | None]]:
    """The pads of the main graph of which some numbers are the same in every run: None stands for the others."""
    found = dict[str, list[int | None]]()
    for node in view.model.graph:
        pads = node.inputs[1] if op_of(node) == "Pad" and len(node.inputs) > 1 else None
        if pads is None or not pads.name or pads.producer() is None or not _is_vector(view, pads):
            continue
        numbers = [d if isinstance(d, int) else None for d in view.dims(pads) or ()]
        if 0 < numbers.count(None) < len(numbers):
            found[pads.name] = numbers
    return found


def write_known_parts(model: onnx.ModelProto, parts: Mapping[str, Sequence[int | None]]) -> None:
    """Gives Pads those numbers as constants, between single ones of the run, in place. Rules see by that which axes are padded."""
    nodes, written = list[onnx.NodeProto](), dict[str, str]()
    for node in model.graph.node:
        name = node.input[1] if op_of(node) == "Pad" and len(node.input) > 1 else ""
        if name in parts:
            if name not in written:
                written[name] = f"{name}/parts"
                nodes += _apart(model.graph, name, parts[name], written[name])
            node.input[1] = written[name]
        nodes.append(node)
    if written:
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del model.graph.node[:]
        model.graph.node.extend(nodes)


def _apart(graph: onnx.GraphProto, name: str, numbers: Sequence[int | None], out: str) -> list[onnx.NodeProto]:
    """Nodes that put constants and single numbers of a vector behind each other."""
    made, given = list[onnx.NodeProto](), list[str]()
    for i, number in enumerate(numbers):
        given.append(f"{out}/{i}")
        if number is not None:
            graph.initializer.append(numpy_helper.from_array(np.array([number]), given[-1]))
            continue
        place = f"{given[-1]}/place"
        graph.initializer.append(numpy_helper.from_array(np.array([i]), place))
        made.append(helper.make_node("Gather", [name, place], [given[-1]], given[-1], axis=0))
    return [*made, helper.make_node("Concat", given, [out], out, axis=0)]


def _is_vector(view: GraphView, value: ir.Value) -> bool:
    shape = view.shape(value)
    return shape is not None and len(shape) == 1


def write_known_operands(model: onnx.ModelProto, bounds: Mapping[str, Sequence[int] | Sequence[bool]]) -> None:
    """Gives nodes those bounds as constants, and weights by their own names instead of by those of Identities, in place."""
    graph = model.graph
    weights = {t.name for t in graph.initializer} - {v.name for v in graph.input}
    renamed: dict[str, str] = {}
    for node in graph.node:
        source = node.input[0] if op_of(node) == "Identity" else ""
        if (source := renamed.get(source, source)) in weights:
            renamed[node.output[0]] = source
    for node in all_nodes(graph):
        for i, name in enumerate(node.input):
            if name in renamed:
                node.input[i] = renamed[name]
    written: dict[str, str] = {}
    for node in graph.node:
        if op_of(node) not in _BOUNDED:
            continue
        for i, name in enumerate(node.input):
            if i and name in bounds:
                node.input[i] = written.setdefault(name, f"{name}/known")
    for name, constant in written.items():
        kind = np.bool_ if all(isinstance(each, bool) for each in bounds[name]) else np.int64
        graph.initializer.append(numpy_helper.from_array(np.array(bounds[name], kind), constant))
