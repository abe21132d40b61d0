"""Tiny hand-built models for tests of the command line, verify and bench."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

_LAYER = """<ir_version: 9, opset_import: ["": 18]>
layer (float[1, 64, 64] x) => (float[1, 64, 64] y) {
  heads = Constant<value = int64[4] {1, 64, 4, 16}>()
  a = MatMul(x, wq)
  a4 = Reshape(a, heads)
  q = Transpose<perm = [0, 2, 1, 3]>(a4)
  b = MatMul(x, wk)
  b4 = Reshape(b, heads)
  kt = Transpose<perm = [0, 2, 3, 1]>(b4)
  c = MatMul(x, wv)
  c4 = Reshape(c, heads)
  v = Transpose<perm = [0, 2, 1, 3]>(c4)
  s = MatMul(q, kt)
  p = Softmax<axis = -1>(s)
  o = MatMul(p, v)
  ot = Transpose<perm = [0, 2, 1, 3]>(o)
  flat = Constant<value = int64[3] {1, 64, 64}>()
  o3 = Reshape(ot, flat)
  f = MatMul(o3, w1)
  f1 = Add(f, b1)
  h = Relu(f1)
  z = MatMul(h, w2)
  z1 = Add(z, x)
  y = LayerNormalization(z1, gain)
}"""


def layer(path: Path) -> Path:
    """A layer of a transformer: three products of 64 x 64 x 64, attention, a product with a bias and a ReLU behind it, one with a
    residual, and a norm."""
    model = onnx.parser.parse_model(_LAYER)
    rng = np.random.default_rng(0)
    weights = {
        "wq": (64, 64),
        "wk": (64, 64),
        "wv": (64, 64),
        "w1": (64, 256),
        "b1": (256,),
        "w2": (256, 64),
        "gain": (64,),
    }
    for name, shape in weights.items():
        data = rng.standard_normal(shape, dtype=np.float32) / 8
        model.graph.initializer.append(numpy_helper.from_array(data, name))
    onnx.save(model, path)
    return path


def attention(
    path: Path,
    *,
    s: int | str = 20,
    skv: int | str | None = None,
    heads: int = 2,
    d: int = 16,
    batch: int | str = 1,
    mask: bool = True,
    wrong: bool = False,
    probabilities: bool = False,
) -> Path:
    """softmax(q @ k^T * scale [+ mask]) @ v, opset 18. `wrong` adds a softmax that belongs to no attention; `probabilities`
    makes an output of the attention's own."""
    keys = skv or s
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [batch, heads, length, d])
        for n, length in (("q", s), ("k", keys), ("v", keys))
    ]
    nodes = [
        helper.make_node("Transpose", ["k"], ["kt"], "transpose", perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "kt"], ["s0"], "qk"),
        helper.make_node("Mul", ["s0", "scale"], ["s1"], "scaled"),
    ]
    if mask:
        inputs.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, [batch, 1, 1, keys]))
        nodes.append(helper.make_node("Add", ["s1", "mask"], ["s2"], "masked"))
    nodes += [
        helper.make_node("Softmax", ["s2" if mask else "s1"], ["p"], "softmax", axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["o"], "pv"),
    ]
    outputs = [helper.make_tensor_value_info("o", TensorProto.FLOAT, [batch, heads, s, d])]
    if probabilities:
        outputs.append(helper.make_tensor_value_info("p", TensorProto.FLOAT, [batch, heads, s, keys]))
    if wrong:
        nodes.append(helper.make_node("Softmax", ["o"], ["router"], "router_softmax", axis=-1))
        outputs = [helper.make_tensor_value_info("router", TensorProto.FLOAT, [batch, heads, s, d])]
    constants = [numpy_helper.from_array(np.array(d**-0.5, np.float32), "scale")]
    return save(path, nodes, inputs, outputs, constants)


def standard(path: Path, *, opset: int = 23, s: int = 20, heads: int = 2, d: int = 16) -> Path:
    """The ONNX `Attention` op, causal, (1, heads, s, d)."""
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, heads, s, d]) for n in "qkv"]
    node = helper.make_node("Attention", ["q", "k", "v"], ["o"], "attention", is_causal=1)
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, [1, heads, s, d])
    return save(path, [node], inputs, [out], opset=opset)


def encoder(path: Path, *, s: int = 24, d: int = 32, heads: int = 2, vocabulary: int = 11) -> Path:
    """Token ids and a 0/1 padding mask (2, s) through an embedding of 11 words and one self-attention over it."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.standard_normal(shape) * 0.3).astype(np.float32), name)

    split = numpy_helper.from_array(np.array([2, s, heads, d // heads]), "split")
    merge = numpy_helper.from_array(np.array([2, s, d]), "merge")
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["x"], "embed")]
    for n in "qkv":
        perm = [0, 2, 3, 1] if n == "k" else [0, 2, 1, 3]
        nodes += [
            helper.make_node("MatMul", ["x", f"w{n}"], [f"{n}0"], f"proj_{n}"),
            helper.make_node("Reshape", [f"{n}0", "split"], [f"{n}1"], f"split_{n}"),
            helper.make_node("Transpose", [f"{n}1"], [n], f"heads_{n}", perm=perm),
        ]
    nodes += [
        helper.make_node("MatMul", ["q", "k"], ["s0"], "qk"),
        helper.make_node("Mul", ["s0", "scale"], ["s1"], "scaled"),
        helper.make_node("Cast", ["attention_mask"], ["m0"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["m0", "axes"], ["m1"], "unsqueeze"),
        helper.make_node("Sub", ["one", "m1"], ["m2"], "invert"),
        helper.make_node("Mul", ["m2", "least"], ["m3"], "fill"),
        helper.make_node("Add", ["s1", "m3"], ["s2"], "masked"),
        helper.make_node("Softmax", ["s2"], ["p"], "softmax", axis=-1),
        helper.make_node("MatMul", ["p", "v"], ["o0"], "pv"),
        helper.make_node("Transpose", ["o0"], ["o1"], "unheads", perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["o1", "merge"], ["y"], "merge_heads"),
    ]
    constants = [
        weight("table", vocabulary, d),
        *(weight(f"w{n}", d, d) for n in "qkv"),
        split,
        merge,
        numpy_helper.from_array(np.array([1, 2]), "axes"),
        numpy_helper.from_array(np.array(1.0, np.float32), "one"),
        numpy_helper.from_array(np.array(np.finfo(np.float32).min), "least"),
        numpy_helper.from_array(np.array((d // heads) ** -0.5, np.float32), "scale"),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, [2, s]) for n in ("input_ids", "attention_mask")]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, s, d])
    return save(path, nodes, inputs, [out], constants)


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    constants: list[onnx.TensorProto] | None = None,
    opset: int = 18,
) -> Path:
    graph = helper.make_graph(nodes, "main_graph", inputs, outputs, constants or [])
    opsets = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9 if opset < 23 else 11), path)
    return path
