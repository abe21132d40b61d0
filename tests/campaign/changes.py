"""A copy of a graph whose nodes' results are made others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from .noise import ROUNDING, element_types

LARGEST = float(np.finfo(np.float32).max)
MOVES = ("Transpose", "Reshape", "Slice", "Expand", "Squeeze", "Unsqueeze")
ROUNDS = ("Cast", "Identity", "Dropout")

PRODUCTS = ("MatMul", "FusedMatMul", "Gemm", "Einsum", "Attention")
SOFTMAX = ("Softmax", "LogSoftmax", "Exp", "ReduceLogSumExp")


class Graph:
    """A copy of a model, to which nodes are added behind its own."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = onnx.ModelProto()
        self.model.CopyFrom(model)
        self.opset = next(o.version for o in model.opset_import if not o.domain)
        self.types = element_types(model)
        self.widest = T.DOUBLE if T.DOUBLE in self.types.values() else T.FLOAT
        self.made = {o: n for n in model.graph.node for o in n.output}
        self.constants = {i.name: nh.to_array(i) for i in model.graph.initializer}
        self.nodes: list[onnx.NodeProto] = []
        self.own = f"reading_{len(model.graph.node)}"  # a model that was changed has more nodes

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        out = f"{self.own}_{len(self.nodes)}_{kind}"
        self.nodes.append(h.make_node(kind, inputs, [out], **attributes))
        return out

    def number(self, value: float, kind: int = T.FLOAT) -> str:
        name = f"{self.own}_number_{len(self.model.graph.initializer)}"
        array = np.asarray(value).astype(h.tensor_dtype_to_np_dtype(kind))
        self.model.graph.initializer.append(nh.from_array(array, name))
        return name

    def f32(self, value: str) -> str:
        return self.op("Cast", value, to=T.FLOAT)

    def wide(self, value: str) -> str:
        return self.op("Cast", value, to=self.widest)

    def wide_number(self, value: float) -> str:
        return self.number(value, self.widest)

    def is_nan(self, value: str) -> str:
        return self.op("IsNaN", self.f32(value))

    def above(self, value: str, limit: float) -> str:
        return self.op("Greater", self.op("Abs", self.f32(value)), self.number(limit))

    def is_infinite(self, value: str) -> str:
        return self.above(value, LARGEST)

    def again(self, node: onnx.NodeProto, *inputs: str) -> str:
        """The same node over other inputs."""
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:], copy.output[0], copy.name = inputs, f"{self.own}_{len(self.nodes)}_again", ""
        self.nodes.append(copy)
        return copy.output[0]

    def producer(self, value: str | None, *kinds: str) -> onnx.NodeProto | None:
        node = self.made.get(value or "")
        return node if node is not None and node.op_type in kinds and not node.domain else None

    def changed(self, change: Change) -> onnx.ModelProto | None:
        """The model with every node's result as `change` makes it; None where it changes none."""
        changes = 0
        for old in self.model.graph.node:
            node, at = onnx.NodeProto(), len(self.nodes) + 1
            node.CopyFrom(old)
            self.nodes.append(node)
            if len(node.output) != 1 or node.domain or self.types.get(node.output[0], 0) not in ROUNDING:
                continue
            out, own = node.output[0], f"{self.own}_{node.output[0]}"
            result = change(self, node, own, self.types[out])
            if result is None:
                del self.nodes[at:]
                continue
            node.output[0] = own
            self.nodes.append(h.make_node("Identity", [result], [out]))
            changes += 1
        if not changes:
            return None
        del self.model.graph.node[:]
        self.model.graph.node.extend(self.nodes)
        return self.model


def asks_for_nan(g: Graph, condition: str) -> bool:
    node = g.producer(condition, "IsNaN", "Not")
    return node is not None and (node.op_type == "IsNaN" or asks_for_nan(g, node.input[0]))


Change = Callable[[Graph, onnx.NodeProto, str, int], str | None]
"""(graph, a node, its own result, the type of that) -> the result that it is to have; None where it keeps its own."""
