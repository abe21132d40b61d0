"""Programs drawn at random that have no attention: products of batches with norms, masks, factors of rows, moved axes and pieces of
rows around them. What IREE makes of them is the rest of a model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from onnx import helper as h

_ROWS, _COLUMNS, _RESULTS = (1, 3, 5, 7, 12, 15, 17, 31, 33), (7, 16, 24, 33, 64), (5, 16, 32, 48)
"""Some fill their last tile of 8 or 16, others do not."""
_STEPS = "reduced reduced unary sum norm softmax moved cut flat factor mask twice".split()
_UNARY = ("Tanh", "Sigmoid", "Relu", "Erf", "Neg")
_REDUCTIONS = ("ReduceSum", "ReduceMax", "ReduceMean", "ReduceL2", "ReduceSumSquare")


class _Program:
    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: dict[str, list[int]] = {}
        self.shapes: dict[str, list[int]] = {}

    def node(self, op: str, operands: Sequence[str], shape: Sequence[int], **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(h.make_node(op, operands, [name], **attributes))
        self.shapes[name] = list(shape)
        return name

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def input(self, shape: Sequence[int]) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self.shapes[name] = list(shape)
        return name

    def moved(self, x: str) -> str:
        """With the last two axes exchanged."""
        *lead, rows, columns = self.shapes[x]
        n = len(lead)
        return self.node("Transpose", [x], [*lead, columns, rows], perm=[*range(n), n + 1, n])

    def step(self, x: str) -> str:
        shape = self.shapes[x]
        *lead, rows, columns = shape
        kind = self.draw.choice(
            ("reduced", "reduced", "unary", "sum", "norm", "softmax", "moved", "cut", "flat", "factor", "mask", "twice")
        )
        match kind:
            case "reduced":
                axis = self.draw.choice((-1, -1, -2, 0))
                one = [1 if i == axis % len(shape) else d for i, d in enumerate(shape)]
                axes = self.constant(np.array([axis]))
                made = self.node("Abs", [self.node(self.draw.choice(_REDUCTIONS), [x, axes], one)], one)
                above = self.node("Add", [made, self.constant(np.float32(1))], one)
                return self.node(self.draw.choice(("Div", "Sub", "Mul")), [x, above], shape)
            case "unary":
                return self.node(self.draw.choice(_UNARY), [x], shape)
            case "sum":
                return self.node("Add", [x, self.input(shape)], shape)
            case "norm":
                return self.node("LayerNormalization", [x, self.constant(np.ones(columns, np.float32))], shape)
            case "softmax":
                return self.node("Softmax", [x], shape, axis=self.draw.choice((-1, -1, -2)))
            case "moved":
                return self.moved(x)
            case "cut" if rows > 2:
                first, last, axis = (self.constant(np.array([i])) for i in (1, rows, len(lead)))
                return self.node("Slice", [x, first, last, axis], [*lead, rows - 1, columns])
            case "flat" if len(lead) == 2:
                flat = [lead[0] * lead[1], rows, columns]
                return self.node("Reshape", [x, self.constant(np.array(flat))], flat)
            case "factor":
                return self.node("Mul", [x, self.input([*lead, rows, 1])], shape)
            case "mask":
                seen = self.node("Greater", [x, self.constant(np.float32(0.1))], shape)
                return self.node("Where", [seen, x, self.constant(np.float32(0))], shape)
            case "twice" if rows < 40:
                return self.node("Concat", [x, x], [*lead, 2 * rows, columns], axis=len(lead))
        return x

    def product(self, x: str) -> str:
        *lead, rows, columns = self.shapes[x]
        n = self.draw.choice(_RESULTS)
        kind = self.draw.choice(("left", "left", "right", "matrix", "einsum", "self"))
        match kind:
            case "left":
                return self.node("MatMul", [x, self.input([*lead, columns, n])], [*lead, rows, n])
            case "right":
                return self.node("MatMul", [self.input([*lead, n, rows]), x], [*lead, n, columns])
            case "matrix":
                return self.node("MatMul", [x, self.input([columns, n])], [*lead, rows, n])
            case "einsum" if len(lead) == 1:
                other = self.input([*lead, n, columns])
                return self.node("Einsum", [x, other], [*lead, rows, n], equation="bij,bkj->bik")
        return self.node("MatMul", [x, self.moved(x)], [*lead, rows, rows])


def draw_program(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of fixed sizes with one or two products, and what it is run on."""
    p = _Program(seed)
    lead = [p.draw.choice((2, 3, 5)), *p.draw.choice(((), (2,), (3,)))]
    x = p.input([*lead, p.draw.choice(_ROWS), p.draw.choice(_COLUMNS)])
    for most in (3, 2)[: p.draw.randint(1, 2)]:
        for _ in range(p.draw.randint(most - 2, most)):
            x = p.step(x)
        x = p.product(x)
    for _ in range(p.draw.randint(0, 2)):
        x = p.step(x)
    inputs = [h.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in p.inputs.items()]
    output = h.make_tensor_value_info(x, TensorProto.FLOAT, p.shapes[x])
    graph = h.make_graph(p.nodes, "g", inputs, [output], p.constants)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)
    rng = np.random.default_rng(seed)
    return model, {name: rng.standard_normal(shape).astype(np.float32) for name, shape in p.inputs.items()}
