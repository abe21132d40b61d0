"""Graphs with QuantizeLinear and DequantizeLinear as onnxruntime's operators on bytes, the other way round than they are read:
DequantizeLinear, MatMul, Add, Mul or Softmax, and QuantizeLinear become one node."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper as h
from onnx import numpy_helper

OPERATORS = {
    "MatMul": ("", "QLinearMatMul"),
    "Add": ("com.microsoft", "QLinearAdd"),
    "Mul": ("com.microsoft", "QLinearMul"),
    "Softmax": ("com.microsoft", "QLinearSoftmax"),
}
MOVES = ("Transpose", "Reshape", "Unsqueeze", "Expand")


def on_bytes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every op that has an operator on bytes as one, where its operands and its result are bytes with one constant
    scale and zero point each. Bytes are moved and repeated in place of what they stand for; a constant factor is a byte of 1 with
    the factor as its scale, and inputs that are added are rounded to bytes."""
    new = onnx.ModelProto()
    new.CopyFrom(model)
    graph = _Graph(new)
    graph.round_operands()
    graph.move_bytes()
    graph.join()
    del new.graph.node[:]
    new.graph.node.extend(graph.read())
    new.graph.initializer.extend(numpy_helper.from_array(x, name) for name, x in graph.constants.items())
    if any(node.domain for node in new.graph.node):
        new.opset_import.append(h.make_opsetid("com.microsoft", 1))
    return new


class _Graph:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.nodes = [*model.graph.node]
        self.given = {value.name for value in model.graph.input}
        self.outputs = {value.name for value in model.graph.output}
        self.known = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        self.constants: dict[str, Any] = {}
        signed = any(x.dtype == np.int8 for x in self.known.values())
        self.kind, self.middle = (np.int8, 0) if signed else (np.uint8, 128)

    def made(self) -> dict[str, onnx.NodeProto]:
        return {o: node for node in self.nodes for o in node.output}

    def readers(self, name: str) -> list[onnx.NodeProto]:
        return [node for node in self.nodes for i in node.input if i == name]

    def round_operands(self) -> None:
        """The other operand of a Mul or Add as bytes."""
        nodes: list[onnx.NodeProto] = []
        for node in self.nodes:
            for i, name in enumerate(node.input if node.op_type in ("Mul", "Add") else ()):
                factor = self.known.get(name)
                step, zero, source = f"{name}_step", f"{name}_zero", f"{name}_bytes"
                if factor is not None and factor.size == 1:
                    self.constants[source] = np.asarray(self.middle + 1, self.kind)
                elif node.op_type == "Add" and name in self.given:
                    nodes.append(h.make_node("QuantizeLinear", [name, step, zero], [source]))
                else:
                    continue
                self.constants[step] = np.asarray(0.03125 if factor is None else factor, np.float32)
                self.constants[zero] = np.asarray(self.middle, self.kind)
                nodes.append(h.make_node("DequantizeLinear", [source, step, zero], [f"{name}_floats"]))
                node.input[i] = f"{name}_floats"
            nodes.append(node)
        self.nodes = nodes
        self.known |= self.constants

    def move_bytes(self) -> None:
        """DequantizeLinear with one scale behind what moves its result, in place of in front of it."""
        for node in [*self.nodes]:
            source = self.made().get(node.input[0]) if node.op_type in MOVES else None
            if source is None or source.op_type != "DequantizeLinear" or self.known[source.input[1]].size > 1:
                continue
            if len(self.readers(source.output[0])) > 1:
                continue
            integers, floats, moved = source.input[0], source.output[0], node.output[0]
            node.input[0], node.output[0] = integers, floats
            source.input[0], source.output[0] = floats, moved
            self.nodes.remove(source)
            self.nodes.insert(self.nodes.index(node) + 1, source)

    def join(self) -> None:
        """DequantizeLinear, an op and QuantizeLinear as one node."""
        for node in [*self.nodes]:
            behind = self.readers(node.output[0]) if node.op_type in OPERATORS else []
            if [n.op_type for n in behind] != ["QuantizeLinear"] or node.output[0] in self.outputs:
                continue
            before = [self.made().get(name) for name in node.input]
            operands = [self.grid(n) for n in before if n is not None and n.op_type == "DequantizeLinear"]
            result = self.grid(behind[0])
            if len(operands) != len(node.input) or None in operands or result is None:
                continue
            domain, name = OPERATORS[node.op_type]
            softmax: dict[str, Any] = {"axis": -1, "opset": 13} if node.op_type == "Softmax" else {}
            inputs = [x for operand in operands if operand is not None for x in operand] + result[1:]
            out = behind[0].output[0]
            self.nodes[self.nodes.index(node)] = h.make_node(
                name, inputs, [out], name=node.name, domain=domain, **softmax
            )
            self.nodes.remove(behind[0])

    def grid(self, node: onnx.NodeProto) -> list[str] | None:
        """What a QuantizeLinear or DequantizeLinear reads, where that has one constant scale and zero point of 8 bits."""
        numbers = [self.known.get(name) for name in node.input[1:3]]
        one = len(numbers) == 2 and all(x is not None and x.size == 1 for x in numbers)
        return [*node.input] if one and numbers[1].dtype.itemsize == 1 else None  # type: ignore[union-attr]

    def read(self) -> list[onnx.NodeProto]:
        """The nodes that the outputs need."""
        needed, kept = set(self.outputs), list[onnx.NodeProto]()
        for node in reversed(self.nodes):
            if needed & set(node.output):
                needed |= set(node.input)
                kept.insert(0, node)
        return kept
