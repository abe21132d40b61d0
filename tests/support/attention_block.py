"""An attention with 4-D operands as part of a transformer block: projections before it, one and a norm behind it."""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

Style = Literal["post-norm", "pre-norm"]
STYLES: tuple[Style, ...] = ("post-norm", "pre-norm")


class _Block:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.opset = next(o.version for o in model.opset_import if o.domain == "")
        self.nodes: list[onnx.NodeProto] = []
        self.inits: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(0)

    def op(self, kind: str, *inputs: str, **attrs: object) -> str:
        name = f"block_{kind}_{len(self.nodes)}"
        self.nodes.append(h.make_node(kind, list(inputs), [f"{name}_out"], name=name, **attrs))
        return f"{name}_out"

    def const(self, array: object, dtype: type = np.float32) -> str:
        name = f"block_const_{len(self.inits)}"
        self.inits.append(nh.from_array(np.asarray(array, dtype), name))
        return name

    def linear(self, x: str, width: int, out: int) -> str:
        weight = self.rng.standard_normal((width, out)) / np.sqrt(width)
        return self.op("Add", self.op("MatMul", x, self.const(weight)), self.const(self.rng.standard_normal(out) / 10))

    def norm(self, x: str, width: int) -> str:
        scale, bias = self.const(np.ones(width)), self.const(np.zeros(width))
        if self.opset >= 17:
            return self.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-5)
        centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
        variance = self.op("ReduceMean", self.op("Pow", centred, self.const(2.0)), axes=[-1])
        root = self.op("Sqrt", self.op("Add", variance, self.const(1e-5)))
        return self.op("Add", self.op("Mul", self.op("Div", centred, root), scale), bias)

    def split(self, x: str, heads: int, width: int, perm: tuple[int, ...]) -> str:
        x = self.op("Reshape", x, self.const([0, 0, heads, width], np.int64))
        return x if perm == (0, 1, 2, 3) else self.op("Transpose", x, perm=list(perm))


def in_block(model: onnx.ModelProto, style: Style) -> onnx.ModelProto | None:
    """A block around `model`, a graph of inputs q, k, v (f32, 4-D, q and v as B H S D) and one output; None where it is not one.

    The block's input x is that of all three projections where the lengths agree, else K and V come from an input y.
    """
    infos = {i.name: i for i in model.graph.input}
    if not {"q", "k", "v"} <= set(infos) or len(model.graph.output) != 1:
        return None
    shapes = {n: [d.dim_value for d in infos[n].type.tensor_type.shape.dim] for n in "qkv"}
    out = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    if any(len(s) != 4 or not all(s) or infos[n].type.tensor_type.elem_type != T.FLOAT for n, s in shapes.items()):
        return None
    (batch, q_heads, q_len, width), (_, kv_heads, kv_len, v_width) = shapes["q"], shapes["v"]
    layouts = {
        (batch, kv_heads, kv_len, width): (0, 2, 1, 3),
        (batch, kv_len, kv_heads, width): (0, 1, 2, 3),
        (batch, kv_heads, width, kv_len): (0, 2, 3, 1),
    }
    perm = layouts.get(tuple(shapes["k"]))
    if perm is None or out != [batch, q_heads, q_len, v_width]:
        return None
    hidden = q_heads * width
    b = _Block(model)
    x, y = "x", "x" if q_len == kv_len else "y"
    residual = x
    if style == "post-norm":
        residual = x = b.norm(x, hidden)
    else:
        x = b.norm(x, hidden)
    y = x if y == "x" else y
    made = {
        "q": b.split(b.linear(x, hidden, hidden), q_heads, width, (0, 2, 1, 3)),
        "k": b.split(b.linear(y, hidden, kv_heads * width), kv_heads, width, perm),
        "v": b.split(b.linear(y, hidden, kv_heads * v_width), kv_heads, v_width, (0, 2, 1, 3)),
    }
    for node in model.graph.node:
        inner = onnx.NodeProto()
        inner.CopyFrom(node)
        renamed = [made.get(i, i) for i in inner.input]
        del inner.input[:]
        inner.input.extend(renamed)
        b.nodes.append(inner)
    merged = b.op("Transpose", model.graph.output[0].name, perm=[0, 2, 1, 3])
    merged = b.op("Reshape", merged, b.const([0, 0, q_heads * v_width], np.int64))
    total = b.op("Add", b.linear(merged, q_heads * v_width, hidden), residual)
    b.nodes.append(h.make_node("Identity", [b.norm(total, hidden)], ["block_out"], name="block_last"))
    inputs = [h.make_tensor_value_info("x", T.FLOAT, [batch, q_len, hidden])]
    if q_len != kv_len:
        inputs.append(h.make_tensor_value_info("y", T.FLOAT, [batch, kv_len, hidden]))
    inputs += [i for n, i in infos.items() if n not in ("q", "k", "v")]
    outputs = [h.make_tensor_value_info("block_out", T.FLOAT, [batch, q_len, hidden])]
    graph = h.make_graph(b.nodes, "block", inputs, outputs, [*model.graph.initializer, *b.inits])
    block = h.make_model(graph, opset_imports=list(model.opset_import), ir_version=model.ir_version)
    onnx.checker.check_model(block)
    return block
