"""Small attention graphs in every spelling that the matcher claims to know: one axis per field, any combination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from tests.support.weights import WEIGHTS

SCALE = ("none", "q", "k", "both", "mul", "mul_left", "div", "mul_4d", "after_mask", "twice", "runtime", "heads")
KT = ("transpose", "sandwich", "bshd", "given", "bmm", "einsum", "keys_first", "fused", "rank_5")
PV = ("matmul", "left", "einsum", "folded", "fused")
"""How the probabilities are multiplied with V."""
REPEAT = ("expand", "tile", "concat", "gather")
"""How K/V heads are repeated, where there are fewer of them."""
MASK = (
    "none",
    "add",
    "add_left",
    "sub",
    "where",
    "where_swapped",
    "bool_add",
    "and",
    "const_causal",
    "range_causal",
    "const_window",
)
SOFTMAX = (
    "op",
    "explicit",
    "deferred",
    "cast",
    "positive_axis",
    "unsqueezed",
    "log",
    "log_sum_exp",
    "shifted",
    "plus_one",
    "column",
)
WEIGHT = tuple(WEIGHTS)
"""What may stand in place of a softmax: further values of `softmax`."""
GUARD = ("none", "isnan", "dropout", "identity", "not_nan", "lost_rows", "row_factor", "key_factor", "zeros_like")


@dataclass(frozen=True)
class Spelling:
    """A graph of one attention, B batch rows, Hq and Hkv heads, lengths Sq and Skv, head dims D and Dv."""

    scale: str = "mul"
    kt: str = "transpose"
    pv: str = "matmul"
    repeat: str = "expand"
    mask: str = "none"
    softmax: str = "op"
    guard: str = "none"
    softcap: bool = False
    B: int = 2
    Hq: int = 4
    Hkv: int = 4
    Sq: int = 7
    Skv: int = 9
    D: int = 8
    Dv: int = 6
    opset: int = 18
    fill: float = float("-inf")


class Graph:
    """Nodes and initializers by name, with fresh value names."""

    def __init__(self, opset: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inits: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.opset = opset

    def op(self, kind: str, *inputs: str, outs: int = 1, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        outputs = [name, *(f"{name}_{i}" for i in range(1, outs))]
        self.nodes.append(h.make_node(kind, list(inputs), outputs, name=f"n{len(self.nodes)}_{kind}", **attrs))
        return name

    def const(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.inits)}"
        self.inits.append(nh.from_array(np.asarray(value, dtype), name))
        return name

    def input(self, name: str, shape: list[int | str], dtype: int = T.FLOAT) -> str:
        self.inputs.append(h.make_tensor_value_info(name, dtype, shape))
        return name

    def model(self, outputs: dict[str, tuple[list[int | str], int]]) -> onnx.ModelProto:
        infos = [h.make_tensor_value_info(n, t, s) for n, (s, t) in outputs.items()]
        graph = h.make_graph(self.nodes, "g", self.inputs, infos, self.inits)
        opsets = [h.make_opsetid("", self.opset)]
        opsets += [h.make_opsetid(d, 1) for d in {n.domain for n in self.nodes} - {""}]
        model = h.make_model(graph, opset_imports=opsets, ir_version=10)
        onnx.checker.check_model(model)
        return model


def build(s: Spelling) -> onnx.ModelProto:
    """The graph of a spelling. Inputs q, k, v (and mask), output o. Raises ValueError for one that cannot be."""
    if s.pv != "matmul" and (s.softmax == "deferred" or s.kt == "bmm"):
        raise ValueError("the division by the row sum, or the reshape back, stands right behind a plain matmul")
    g = Graph(s.opset)
    q = g.input("q", [s.B, s.Hq, s.Sq, s.D])
    heads = s.Hkv
    k_shape: list[int | str] = [s.B, s.Skv, heads, s.D] if s.kt == "bshd" else [s.B, heads, s.Skv, s.D]
    if s.kt == "given":
        k_shape = [s.B, heads, s.D, s.Skv]
    k, v = g.input("k", k_shape), g.input("v", [s.B, heads, s.Skv, s.Dv])
    factor = s.D**-0.5
    if s.scale == "q":
        q = g.op("Mul", q, g.const(factor))
    if s.scale in ("both", "twice"):
        q = g.op("Mul", q, g.const(np.sqrt(factor)))
    kt = _transposed_k(g, s, k)
    if s.scale == "k":
        kt = g.op("Div", kt, g.const(1 / factor))
    if s.scale in ("both", "twice"):
        kt = g.op("Mul", g.const(np.sqrt(factor)), kt)
    if s.Hkv != s.Hq:
        v = _repeat(g, s, v, s.Dv)
    if s.kt == "bmm":
        q = g.op("Reshape", q, g.const([-1, s.Sq, s.D], np.int64))
        v = g.op("Reshape", v, g.const([-1, s.Skv, s.Dv], np.int64))
    score = _product(g, s, q, kt)
    if s.kt == "bmm":
        score = g.op("Reshape", score, g.const([s.B, s.Hq, s.Sq, s.Skv], np.int64)) if s.mask != "none" else score
    score = _scaled(g, s, score, factor)
    if s.softcap:
        score = g.op("Mul", g.op("Tanh", g.op("Div", score, g.const(3.0))), g.const(3.0))
    score = _masked(g, s, score)
    if s.scale == "after_mask":
        score = g.op("Mul", score, g.const(factor))
    if s.kt == "bmm" and s.mask != "none":
        score = g.op("Reshape", score, g.const([-1, s.Sq, s.Skv], np.int64))
    out = _softmax_times_v(g, s, score, v)
    if s.kt == "bmm":
        out = g.op("Reshape", out, g.const([s.B, s.Hq, s.Sq, s.Dv], np.int64))
    g.nodes.append(h.make_node("Identity", [out], ["o"], name="out"))
    return g.model({"o": ([s.B, s.Hq, s.Sq, s.Dv], T.FLOAT)})


def _product(g: Graph, s: Spelling, q: str, k: str) -> str:
    """The score, of K or K^T as `_transposed_k` gave it."""
    match s.kt:
        case "einsum":
            return g.op("Einsum", q, k, equation="bhid,bhjd->bhij")
        case "keys_first":
            score = g.op("MatMul", k, g.op("Transpose", q, perm=[0, 1, 3, 2]))
            return g.op("Transpose", score, perm=[0, 1, 3, 2])
        case "fused":
            return g.op("FusedMatMul", q, k, transB=1, alpha=0.5, domain="com.microsoft")
        case "rank_5":
            one = g.const([1], np.int64)
            score = g.op("MatMul", g.op("Unsqueeze", q, one), g.op("Unsqueeze", k, one))
            return g.op("Squeeze", score, one)
    return g.op("MatMul", q, k)


def _repeat(g: Graph, s: Spelling, x: str, width: int) -> str:
    group = s.Hq // s.Hkv
    if s.repeat == "gather":
        return g.op("Gather", x, g.const(np.repeat(np.arange(s.Hkv), group), np.int64), axis=1)
    x = g.op("Unsqueeze", x, g.const([2], np.int64))
    if s.repeat == "expand":
        x = g.op("Expand", x, g.const([s.B, s.Hkv, group, s.Skv, width], np.int64))
    elif s.repeat == "tile":
        x = g.op("Tile", x, g.const([1, 1, group, 1, 1], np.int64))
    else:
        x = g.op("Concat", *[x] * group, axis=2)
    return g.op("Reshape", x, g.const([s.B, s.Hq, s.Skv, width], np.int64))


def _transposed_k(g: Graph, s: Spelling, k: str) -> str:
    if s.kt == "given":
        return k
    if s.kt == "bshd":
        return g.op("Transpose", k, perm=[0, 2, 3, 1])
    if s.Hkv != s.Hq:
        k = _repeat(g, s, k, s.D)
    if s.kt in ("einsum", "keys_first", "fused"):
        return k
    if s.kt in ("transpose", "rank_5"):
        return g.op("Transpose", k, perm=[0, 1, 3, 2])
    k = g.op("Reshape", k, g.const([-1, s.Skv, s.D], np.int64))
    k = g.op("Transpose", k, perm=[0, 2, 1])
    return k if s.kt == "bmm" else g.op("Reshape", k, g.const([s.B, s.Hq, s.D, s.Skv], np.int64))


def _scaled(g: Graph, s: Spelling, score: str, factor: float) -> str:
    match s.scale:
        case "mul":
            return g.op("Mul", score, g.const([factor]))
        case "mul_left":
            return g.op("Mul", g.const(factor), score)
        case "mul_4d":
            return g.op("Mul", score, g.const([[[factor]]]))
        case "div":
            return g.op("Div", score, g.const(1 / factor))
        case "twice":
            return g.op("Mul", g.op("Mul", score, g.const(2.0)), g.const(0.5))
        case "runtime":
            return g.op("Mul", score, g.input("factor", [1]))
        case "heads":
            shape = (s.B * s.Hq, 1, 1) if s.kt == "bmm" and s.mask == "none" else (s.Hq, 1, 1)
            return g.op("Mul", g.const(np.linspace(0.2, 1, shape[0]).reshape(shape)), score)
    return score


def _masked(g: Graph, s: Spelling, score: str) -> str:
    fill, zero = g.const(s.fill), g.const(0.0)
    full: list[int | str] = [s.B, 1, s.Sq, s.Skv]
    i, j = np.arange(s.Sq)[:, None], np.arange(s.Skv)[None, :]
    match s.mask:
        case "add":
            return g.op("Add", score, g.input("mask", full))
        case "add_left":
            return g.op("Add", g.input("mask", [s.Sq, s.Skv]), score)
        case "sub":
            return g.op("Sub", score, g.input("mask", [s.B, 1, 1, s.Skv]))
        case "where":
            return g.op("Where", g.input("mask", full, T.BOOL), score, fill)
        case "where_swapped":
            return g.op("Where", g.input("mask", full, T.BOOL), fill, score)
        case "bool_add":
            return g.op("Add", score, g.op("Where", g.input("mask", [s.B, 1, 1, s.Skv], T.BOOL), zero, fill))
        case "and":
            keep = g.op("And", g.const((j <= i)[None, None], bool), g.input("mask", [s.B, 1, 1, s.Skv], T.BOOL))
            return g.op("Where", keep, score, fill)
        case "const_causal":
            return g.op("Add", score, g.const(np.where(j <= i, 0, s.fill)))
        case "const_window":
            return g.op("Where", g.const((j - i <= 1) & (j - i >= -2), bool), score, fill)
        case "range_causal":
            rows = g.op("Range", g.const(0, np.int64), g.const(s.Sq, np.int64), g.const(1, np.int64))
            cols = g.op("Range", g.const(0, np.int64), g.const(s.Skv, np.int64), g.const(1, np.int64))
            drop = g.op(
                "Greater",
                g.op("Unsqueeze", cols, g.const([0], np.int64)),
                g.op("Unsqueeze", rows, g.const([1], np.int64)),
            )
            return g.op("Where", drop, fill, score)
    return score


def _softmax_times_v(g: Graph, s: Spelling, score: str, v: str) -> str:
    if s.softmax == "deferred":
        e, _ = _exponentials(g, score)
        return g.op("Div", g.op("MatMul", e, v), _reduced(g, "ReduceSum", e))
    p = _softmax(g, s, score)
    match s.guard:
        case "isnan":
            p = g.op("Where", g.op("IsNaN", p), g.const(0.0), p)
        case "not_nan":
            p = g.op("Where", g.op("Not", g.op("IsNaN", p)), p, g.const(0.0))
        case "zeros_like":
            zeros = g.op("ConstantOfShape", g.op("Shape", p))
            p = g.op("Where", g.op("IsNaN", p), zeros, p)
        case "lost_rows":
            lost = g.op("Equal", _reduced(g, "ReduceMax", score), g.const(-np.inf))
            p = g.op("Where", lost, g.const(0.0), p)
        case "row_factor":
            p = g.op("Mul", p, g.const(np.linspace(-1, 1, s.Sq)[:, None]))
        case "key_factor":
            p = g.op("Mul", g.const(np.linspace(-1, 1, s.Skv)), p)
        case "dropout":
            p = g.op("Dropout", p)
        case "identity":
            p = g.op("Identity", p)
    return _times_v(g, s, p, v)


def _times_v(g: Graph, s: Spelling, p: str, v: str) -> str:
    swap = [0, 1, 3, 2]
    match s.pv:
        case "left":
            left, right = g.op("Transpose", v, perm=swap), g.op("Transpose", p, perm=swap)
            return g.op("Transpose", g.op("MatMul", left, right), perm=swap)
        case "einsum":
            return g.op("Transpose", g.op("Einsum", p, v, equation="bhij,bhje->bihe"), perm=[0, 2, 1, 3])
        case "folded":
            p = g.op("Reshape", p, g.const([-1, s.Sq, s.Skv], np.int64))
            v = g.op("Reshape", v, g.const([-1, s.Skv, s.Dv], np.int64))
            return g.op("Reshape", g.op("MatMul", p, v), g.const([s.B, s.Hq, s.Sq, s.Dv], np.int64))
        case "fused":
            return g.op("FusedMatMul", p, v, alpha=2.0, domain="com.microsoft")
    return g.op("MatMul", p, v)


def _reduced(g: Graph, kind: str, x: str, keep: bool = True) -> str:
    """A reduction over the last axis, spelled as the opset wants it; with `keep` false the axis is put back by Unsqueeze."""
    last = g.const([-1], np.int64)
    by_input = g.opset >= 18 or kind == "ReduceSum"
    attrs: dict[str, Any] = {} if by_input else {"axes": [-1]}
    y = g.op(kind, x, *([last] if by_input else []), keepdims=int(keep), **attrs)
    return y if keep else g.op("Unsqueeze", y, last)


def _exponentials(g: Graph, score: str, keep: bool = True) -> tuple[str, str]:
    top = _reduced(g, "ReduceMax", score, keep)
    return g.op("Exp", g.op("Sub", score, top)), top


def _softmax(g: Graph, s: Spelling, score: str) -> str:
    if s.softmax in WEIGHTS:
        return WEIGHTS[s.softmax](g, score)
    rank = 3 if s.kt == "bmm" else 4
    match s.softmax:
        case "explicit":
            e, _ = _exponentials(g, score)
            return g.op("Div", e, _reduced(g, "ReduceSum", e))
        case "unsqueezed":
            e, _ = _exponentials(g, score, keep=False)
            return g.op("Mul", e, g.op("Reciprocal", _reduced(g, "ReduceSum", e, keep=False)))
        case "cast":
            return g.op("Cast", g.op("Softmax", g.op("Cast", score, to=T.FLOAT), axis=-1), to=T.FLOAT)
        case "log":
            return g.op("Exp", g.op("LogSoftmax", score, axis=-1))
        case "log_sum_exp":
            shifted = g.op("Sub", score, _reduced(g, "ReduceMax", score))
            return g.op("Exp", g.op("Sub", shifted, g.op("Log", _reduced(g, "ReduceSum", g.op("Exp", shifted)))))
        case "shifted":
            return g.op("Softmax", g.op("Sub", score, _reduced(g, "ReduceMax", score)), axis=-1)
        case "plus_one":
            top = g.op("Max", _reduced(g, "ReduceMax", score), g.const(0.0))
            e = g.op("Exp", g.op("Sub", score, top))
            return g.op("Div", e, g.op("Add", _reduced(g, "ReduceSum", e), g.op("Exp", g.op("Neg", top))))
        case "column":
            lead = [s.B * s.Hq] if s.kt == "bmm" else [s.B, s.Hq]
            both = g.op("Concat", score, g.const(np.full((*lead, s.Sq, 1), 0.3)), axis=-1)
            ends = (g.const([x], np.int64) for x in (0, -1, -1))
            return g.op("Slice", g.op("Softmax", both, axis=-1), *ends)
    return g.op("Softmax", score, axis=rank - 1 if s.softmax == "positive_axis" else -1)


def feeds(
    model: onnx.ModelProto, seed: int = 0, *, large: bool = False, empty_rows: bool = False
) -> dict[str, np.ndarray]:
    """Inputs for a spelling: normal floats (scores of +-1000 if `large`), masks that keep most keys, and in some rows none."""
    rng = np.random.default_rng(seed)
    result: dict[str, np.ndarray] = {}
    for i in model.graph.input:
        shape = [d.dim_value for d in i.type.tensor_type.shape.dim]
        if i.type.tensor_type.elem_type == T.BOOL:
            mask = rng.random(shape) < 0.7
            mask[..., 0] = True
            if empty_rows:
                mask[0] = False
            result[i.name] = mask
        else:
            x = np.asarray(rng.standard_normal(shape), np.float32)
            if i.name == "mask":
                x = np.where(rng.random(shape) < 0.3, -np.inf, x).astype(np.float32)
                x[..., 0] = 0
                if empty_rows:
                    x[0] = -np.inf
            elif large and i.name in "qk":
                x *= 30
            result[i.name] = x
    return result
