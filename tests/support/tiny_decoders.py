"""Decoders of one layer with caches in every layout: how the new rows come into them, and what says how long they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

VOCABULARY, HIDDEN, HQ, HKV, D = 24, 32, 4, 2, 16
CONTRIB = "com.microsoft"
LOWEST = float(np.finfo(np.float32).min)


class _Graph:
    """Nodes and weights of one decoder, with random numbers of a seed."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int) -> str:
        name = f"weight{len(self.weights)}"
        array = self.rng.standard_normal(shape).astype(np.float32) * (1.5 / np.sqrt(shape[0]))
        self.weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def const(self, array: Any) -> str:
        name = f"const{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, op: str, *inputs: str, out: str = "", domain: str = "", outputs: int = 1, **attrs: Any) -> str:
        names = [out or f"{op.lower()}{len(self.nodes)}"] + [
            f"{op.lower()}{len(self.nodes)}.{i}" for i in range(1, outputs)
        ]
        self.nodes.append(h.make_node(op, list(inputs), names, f"{op}{len(self.nodes)}", domain=domain, **attrs))
        return names[0]

    def project(self, x: str, heads: int, *, split: bool = True) -> str:
        """(B, S, heads * D), or with its heads split off (B, heads, S, D)."""
        flat = self.add("MatMul", x, self.weight(HIDDEN, heads * D))
        if not split:
            return flat
        rows = self.add("Reshape", flat, self.const(np.array([0, 0, heads, D])))
        return self.add("Transpose", rows, perm=[0, 2, 1, 3])

    def embed(self) -> str:
        return self.add("Gather", self.weight(VOCABULARY, HIDDEN), "input_ids")

    def finish(self, x: str, attended: str) -> None:
        """attended: (B, S, HQ * D). Twice, so that a wrong row changes what comes after it."""
        summed = self.add("Add", x, self.add("MatMul", attended, self.weight(HQ * D, HIDDEN)))
        self.add("MatMul", self.add("Tanh", summed), self.weight(HIDDEN, VOCABULARY), out="logits")


def _model(
    g: _Graph, opset: int, extra: list[onnx.ValueInfoProto], rows: int | str = "past", made: int | str = "total"
) -> onnx.ModelProto:
    def cache(name: str, length: int | str) -> onnx.ValueInfoProto:
        return h.make_tensor_value_info(name, T.FLOAT, ["batch", HKV, length, D])

    kv = ("key", "value")
    inputs = [h.make_tensor_value_info("input_ids", T.INT64, ["batch", "seq"]), *extra]
    inputs += [cache(f"past_key_values.0.{x}", rows) for x in kv]
    outputs = [h.make_tensor_value_info("logits", T.FLOAT, ["batch", "seq", VOCABULARY])]
    outputs += [cache(f"present.0.{x}", made) for x in kv]
    graph = h.make_graph(g.nodes, "main_graph", inputs, outputs, g.weights)
    imports = [h.make_opsetid("", opset), h.make_opsetid(CONTRIB, 1)]
    return h.make_model(graph, opset_imports=imports, ir_version=10)


def _mask() -> list[onnx.ValueInfoProto]:
    return [h.make_tensor_value_info("attention_mask", T.INT64, ["batch", "total"])]


def _causal(g: _Graph, total: str, seq: str) -> str:
    """Which keys each query sees, (S, T), of lengths that are scalars."""
    zero, one = g.const(np.array(0)), g.const(np.array(1))
    keys = g.add("Unsqueeze", g.add("Range", zero, total, one), g.const(np.array([0])))
    rows = g.add("Add", g.add("Range", zero, seq, one), g.add("Sub", total, seq))
    return g.add("LessOrEqual", keys, g.add("Unsqueeze", rows, g.const(np.array([1]))))


def _size(g: _Graph, x: str, axis: int) -> str:
    return g.add("Gather", g.add("Shape", x), g.const(np.array(axis)), axis=0)


def concat() -> onnx.ModelProto:
    """Standard ops, as optimum writes them: heads of K and V repeated, a causal mask and a padding mask added."""
    g = _Graph(11)
    x = g.embed()
    q = g.project(x, HQ)
    kv = [
        g.add("Concat", f"past_key_values.0.{name}", g.project(x, HKV), out=f"present.0.{name}", axis=2)
        for name in ("key", "value")
    ]
    seq = _size(g, "input_ids", 1)
    total = g.add("Add", _size(g, "past_key_values.0.key", 2), seq)
    k, v = (_repeated(g, y) for y in kv)
    scores = g.add("Div", g.add("MatMul", q, g.add("Transpose", k, perm=[0, 1, 3, 2])), g.const(np.float32(D**0.5)))
    there = g.add("Unsqueeze", g.add("Cast", "attention_mask", to=T.BOOL), g.const(np.array([1, 2])))
    keep = g.add("And", _causal(g, total, seq), there)
    masked = g.add("Where", keep, scores, g.const(np.float32(LOWEST)))
    attended = g.add("MatMul", g.add("Softmax", masked, axis=-1), v)
    rows = g.add("Transpose", attended, perm=[0, 2, 1, 3])
    g.finish(x, g.add("Reshape", rows, g.const(np.array([0, 0, HQ * D]))))
    return _model(g, 17, _mask())


def _repeated(g: _Graph, kv: str) -> str:
    """Every head of K or V as often as queries share it."""
    b, s = (g.add("Unsqueeze", _size(g, kv, i), g.const(np.array([0]))) for i in (0, 2))
    parts = [b, g.const(np.array([HKV])), g.const(np.array([HQ // HKV])), s, g.const(np.array([D]))]
    wide = g.add("Expand", g.add("Unsqueeze", kv, g.const(np.array([2]))), g.add("Concat", *parts, axis=0))
    return g.add("Reshape", wide, g.const(np.array([0, HQ, -1, D])))


def states() -> onnx.ModelProto:
    """A short convolution and linear attention, whose states are as large behind every token, as LFM and Qwen 3.5 have them."""
    g, taps = _Graph(7), 3
    x = g.embed()
    turned = g.add("Transpose", x, perm=[0, 2, 1])
    given = [turned, g.weight(HIDDEN, 1, taps), "", "past.0.conv"]
    g.nodes.append(
        h.make_node(
            "CausalConvWithState", given, ["mixed", "present.0.conv"], "conv", domain=CONTRIB, activation="silu"
        )
    )
    rows = g.add("Transpose", "mixed", perm=[0, 2, 1])
    q, k, v = (g.project(rows, n, split=False) for n in (HQ, HKV, HKV))
    k = g.add("Tanh", g.add("Mul", k, g.const(np.float32(0.1))))
    rates = [g.add("Sigmoid", g.add("MatMul", x, g.weight(HIDDEN, HKV))) for _ in range(2)]
    g.nodes.append(
        h.make_node(
            "LinearAttention",
            [q, k, v, "past.0.recurrent", g.add("Neg", rates[0]), rates[1]],
            ["attended", "present.0.recurrent"],
            "attention",
            domain=CONTRIB,
            q_num_heads=HQ,
            kv_num_heads=HKV,
        )
    )
    g.finish(x, "attended")
    shapes: dict[str, list[int | str]] = {"conv": ["batch", HIDDEN, taps - 1], "recurrent": ["batch", HKV, D, D]}
    model = _model(g, 17, [])
    for values, word in ((model.graph.input, "past"), (model.graph.output, "present")):
        del values[1:]
        values.extend(h.make_tensor_value_info(f"{word}.0.{n}", T.FLOAT, dims) for n, dims in shapes.items())
    return model


def grouped(seed: int = 2, **attrs: Any) -> onnx.ModelProto:
    """GroupQueryAttention with rotary embedding, as onnxruntime-genai's builder writes it."""
    g = _Graph(seed)
    x = g.embed()
    q, k, v = (g.project(x, n, split=False) for n in (HQ, HKV, HKV))
    count = g.add("ReduceSum", "attention_mask", g.const(np.array([1])), keepdims=0)
    last = g.add("Cast", g.add("Sub", count, g.const(np.array(1))), to=T.INT32)
    total = g.add("Cast", _size(g, "attention_mask", 1), to=T.INT32)
    angles = np.outer(np.arange(64), 1 / 100 ** (np.arange(D // 2) / (D // 2))).astype(np.float32)
    tables = [g.const(np.cos(angles)), g.const(np.sin(angles))]
    names = ["attended", "present.0.key", "present.0.value"]
    pasts = ["past_key_values.0.key", "past_key_values.0.value"]
    g.nodes.append(
        h.make_node(
            "GroupQueryAttention",
            [q, k, v, *pasts, last, total, *tables],
            names,
            "attention",
            domain=CONTRIB,
            num_heads=HQ,
            kv_num_heads=HKV,
            do_rotary=1,
            **attrs,
        )
    )
    g.finish(x, "attended")
    return _model(g, 17, _mask())


def grouped_window() -> onnx.ModelProto:
    """GroupQueryAttention over a window of keys, whose cache still holds all of them."""
    return grouped(1, local_window_size=5)


def multi_head() -> onnx.ModelProto:
    """MultiHeadAttention with a past; as many heads of K and V as of Q."""
    g = _Graph(4)
    x = g.embed()
    q, k, v = (g.project(x, HKV, split=False) for _ in range(3))
    total, seq = _size(g, "attention_mask", 1), _size(g, "input_ids", 1)
    keep = g.add("Unsqueeze", _causal(g, total, seq), g.const(np.array([0, 1])))
    bias = g.add("Where", keep, g.const(np.float32(0)), g.const(np.float32(LOWEST)))
    names = ["attended", "present.0.key", "present.0.value"]
    pasts = ["past_key_values.0.key", "past_key_values.0.value"]
    g.nodes.append(
        h.make_node(
            "MultiHeadAttention", [q, k, v, "", "", bias, *pasts], names, "attention", domain=CONTRIB, num_heads=HKV
        )
    )
    doubled = g.add("Concat", "attended", "attended", axis=2)
    g.finish(x, doubled)
    return _model(g, 17, _mask())


def attention() -> onnx.ModelProto:
    """ONNX's own Attention with a past, causal."""
    g = _Graph(11)
    x = g.embed()
    q, k, v = g.project(x, HQ), g.project(x, HKV), g.project(x, HKV)
    names = ["attended", "present.0.key", "present.0.value"]
    pasts = ["past_key_values.0.key", "past_key_values.0.value"]
    g.nodes.append(h.make_node("Attention", [q, k, v, "", *pasts], names, "attention", is_causal=1))
    rows = g.add("Transpose", "attended", perm=[0, 2, 1, 3])
    g.finish(x, g.add("Reshape", rows, g.const(np.array([0, 0, HQ * D]))))
    return _model(g, 23, [])


def scatter(rows: int | str = "capacity") -> onnx.ModelProto:
    """TensorScatter into caches of `rows` rows, and Attention over those that are there (opset 24)."""
    g = _Graph(11)
    x = g.embed()
    q = g.project(x, HQ)
    kv = [
        g.add(
            "TensorScatter",
            f"past_key_values.0.{name}",
            g.project(x, HKV),
            "write_indices",
            out=f"present.0.{name}",
            axis=-2,
        )
        for name in ("key", "value")
    ]
    zero, one = g.const(np.array(0)), g.const(np.array(1))
    keys = g.add("Unsqueeze", g.add("Range", zero, _size(g, kv[0], 2), one), g.const(np.array([0, 1, 2])))
    first = g.add("Unsqueeze", "write_indices", g.const(np.array([1])))
    at = g.add("Add", g.add("Range", zero, _size(g, "input_ids", 1), one), first)
    keep = g.add("LessOrEqual", keys, g.add("Unsqueeze", at, g.const(np.array([1, 3]))))
    attended = g.add("Attention", q, *kv, keep)
    turned = g.add("Transpose", attended, perm=[0, 2, 1, 3])
    g.finish(x, g.add("Reshape", turned, g.const(np.array([0, 0, HQ * D]))))
    places = [h.make_tensor_value_info("write_indices", T.INT64, ["batch"])]
    return _model(g, 24, places, rows, rows)


IN_PLACE: dict[str, Callable[[], onnx.ModelProto]] = {
    "concat": concat,
    "grouped": grouped,
    "grouped_window": grouped_window,
    "multi_head": multi_head,
    "attention": attention,
    "scatter": scatter,
}
"""Decoders whose caches grow in place."""
