"""A model whose nodes stand in a branch that only a run chooses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

TAKEN = "taken"
"""The input that chooses."""


def in_branch(model: onnx.ModelProto, results: Sequence[Any]) -> onnx.ModelProto:
    """The nodes in a branch of an If, which the first input chooses; the other branch makes zeros of the shapes of `results`, what
    the model gives. Outputs get other names."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    taken = helper.make_graph(graph.node, "taken", [], graph.output, value_info=graph.value_info)
    zeros = {f"{o.name}_zeros": np.zeros_like(x) for o, x in zip(graph.output, results, strict=True)}
    nodes = [helper.make_node("Constant", [], [n], value=numpy_helper.from_array(x)) for n, x in zeros.items()]
    infos = [
        helper.make_tensor_value_info(name, o.type.tensor_type.elem_type, x.shape)
        for (name, x), o in zip(zeros.items(), graph.output, strict=True)
    ]
    other = helper.make_graph(nodes, "other", [], infos)
    names = [f"{o.name}_of_branch" for o in graph.output]
    branch = helper.make_node("If", [TAKEN], names, then_branch=taken, else_branch=other)
    inputs = [helper.make_tensor_value_info(TAKEN, onnx.TensorProto.BOOL, []), *graph.input]
    kept = [onnx.ValueInfoProto.FromString(i.SerializeToString()) for i in inputs]
    for field in ("node", "input", "value_info"):
        del getattr(graph, field)[:]
    graph.node.append(branch)
    graph.input.extend(kept)
    for o, name in zip(graph.output, names, strict=True):
        o.name = name
    return made
