"""Attention in layouts that fit no axis of `spellings.Spelling`: ranks, einsum letters, folded heads, repeats, caches.

`MATCH` and `REFUSE`: name -> a function that builds the graph, with inputs q, k, v (and mask) and output o.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h

from tests.support import spellings
from tests.support.spellings import Graph

Builder = Callable[[], onnx.ModelProto]
MATCH: dict[str, Builder] = {}
REFUSE: dict[str, Builder] = {}
B, H, S, N, D, E = 2, 4, 5, 7, 8, 6
"""Batch, heads, queries, keys, head dim, V's head dim."""


class Layout(Graph):
    """A graph with short names for the ops that move axes."""

    def reshape(self, x: str, *dims: int) -> str:
        return self.op("Reshape", x, self.const(dims, np.int64))

    def transpose(self, x: str, *perm: int) -> str:
        return self.op("Transpose", x, perm=list(perm))

    def unsqueeze(self, x: str, *axes: int) -> str:
        return self.op("Unsqueeze", x, self.const(axes, np.int64))

    def squeeze(self, x: str, *axes: int) -> str:
        return self.op("Squeeze", x, self.const(axes, np.int64))

    def expand(self, x: str, *dims: int) -> str:
        return self.op("Expand", x, self.const(dims, np.int64))

    def softmax(self, x: str) -> str:
        return self.op("Softmax", x, axis=-1)

    def scaled(self, x: str) -> str:
        return self.op("Mul", x, self.const(D**-0.5))

    def einsum(self, equation: str, a: str, b: str) -> str:
        return self.op("Einsum", a, b, equation=equation)

    def done(self, x: str, *dims: int | str) -> onnx.ModelProto:
        self.nodes.append(h.make_node("Identity", [x], ["o"], name="out"))
        return self.model({"o": (list(dims), T.FLOAT)})

    def model(self, outputs: dict[str, tuple[list[int | str], int]]) -> onnx.ModelProto:
        infos = [h.make_tensor_value_info(n, t, s) for n, (s, t) in outputs.items()]
        graph = h.make_graph(self.nodes, "g", self.inputs, infos, self.inits)
        opsets = [h.make_opsetid("", self.opset), h.make_opsetid("com.microsoft", 1)]
        model = h.make_model(graph, opset_imports=opsets, ir_version=10)
        onnx.checker.check_model(model)
        return model


def match(build: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    MATCH[build.__name__] = build
    return build


def refuse(build: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    REFUSE[build.__name__] = build
    return build


def qkv(g: Layout, q: tuple[Any, ...], k: tuple[Any, ...], v: tuple[Any, ...]) -> tuple[str, str, str]:
    return g.input("q", list(q)), g.input("k", list(k)), g.input("v", list(v))


# Ranks


@match
def rank_2() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (S, D), (N, D), (N, E))
    p = g.softmax(g.scaled(g.op("MatMul", q, g.transpose(k, 1, 0))))
    return g.done(g.op("MatMul", p, v), S, E)


@match
def rank_2_gemm() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (S, D), (N, D), (N, E))
    score = g.op("Gemm", q, k, transB=1, alpha=0.25)
    return g.done(g.op("Gemm", g.softmax(score), v, alpha=2.0), S, E)


@match
def rank_2_gemm_with_a_zero_c() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (D, S), (N, D), (E, N))
    score = g.op("Gemm", q, k, g.const(0.0), transA=1, transB=1)
    return g.done(g.op("Gemm", g.softmax(score), v, g.const(np.ones(E)), transB=1, beta=0.0), S, E)


@match
def rank_3() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, S, D), (B, N, D), (B, N, E))
    p = g.softmax(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 2, 1))))
    return g.done(g.op("MatMul", p, v), B, S, E)


@match
def rank_5_with_mask() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, 3, H, S, D), (B, 3, H, N, D), (B, 3, H, N, E))
    score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 2, 4, 3)))
    score = g.op("Add", score, g.input("mask", [3, 1, S, N]))
    return g.done(g.op("MatMul", g.softmax(score), v), B, 3, H, S, E)


@match
def batch_from_a_wider_mask_of_ones() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (1, H, S, D), (B, H, N, D), (B, H, N, E))
    p = g.softmax(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2))))
    return g.done(g.op("MatMul", p, v), B, H, S, E)


@match
def queries_shared_by_the_batch() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (S, D), (B, N, D), (B, N, E))
    p = g.softmax(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 2, 1))))
    return g.done(g.op("MatMul", p, v), B, S, E)


@match
def keys_shared_by_the_batch() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (N, D), (N, E))
    p = g.softmax(g.scaled(g.op("MatMul", q, g.transpose(k, 1, 0))))
    return g.done(g.op("MatMul", p, v), B, H, S, E)


@match
def keys_shared_and_values_not() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, 1, N, D), (B, H, N, E))
    p = g.softmax(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2))))
    return g.done(g.op("MatMul", p, v), B, H, S, E)


@match
def values_of_a_batch_that_shares_probabilities() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (1, H, S, D), (1, H, N, D), (B, H, N, E))
    p = g.softmax(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2))))
    return g.done(g.op("MatMul", p, v), B, H, S, E)


# Einsum


def einsum(
    qk: str, q: str, k: str, pv: str, v: str, mask: str = "", before: str = "", opset: int = 18
) -> Callable[[], onnx.ModelProto]:
    """Two Einsums; the letters of q, k, v, the mask and the output give their shapes."""

    def build() -> onnx.ModelProto:
        g = Layout(opset)
        size = {"b": B, "h": 2, "g": 2, "i": S, "q": S, "j": N, "k": N, "d": D, "e": E, "n": 3}
        shapes = [[size[x] for x in t] for t in (q, k, v)]
        a, b, c = qkv(g, *(tuple(s) for s in shapes))
        score = g.scaled(g.einsum(qk, a, b))
        if mask:
            score = g.op("Add", score, g.input("mask", [size[x] if x != "1" else 1 for x in mask]))
        if before:
            score = g.transpose(score, *(int(x) for x in before))
        out = pv.split("->")[1]
        if pv.startswith(v):
            return g.done(g.einsum(pv, c, g.softmax(score)), *(size[x] for x in out))
        return g.done(g.einsum(pv, g.softmax(score), c), *(size[x] for x in out.replace("...", "bh")))

    return build


MATCH |= {
    "einsum": einsum("bhid,bhjd->bhij", "bhid", "bhjd", "bhij,bhje->bhie", "bhje"),
    "einsum_bshd": einsum("bqhd,bkhd->bhqk", "bqhd", "bkhd", "bhqk,bkhe->bqhe", "bkhe", mask="b11k"),
    "einsum_heads_behind_rows": einsum("bqhd,bkhd->bqhk", "bqhd", "bkhd", "bqhk,bkhe->bqhe", "bkhe", mask="bq1k"),
    "einsum_ellipsis": einsum("...id,...jd->...ij", "bhid", "bhjd", "...ij,...je->...ie", "bhje", mask="h1j"),
    "einsum_spaces": einsum("b h i d, b h j d -> b h i j", "bhid", "bhjd", "b h i j, b h j e->bhie", "bhje"),
    "einsum_grouped": einsum("bghid,bhjd->bghij", "bghid", "bhjd", "bghij,bhje->bghie", "bhje", mask="b11ij"),
    "einsum_grouped_heads_first": einsum("bhgid,bhjd->bhgij", "bhgid", "bhjd", "bhgij,bhje->bhgie", "bhje"),
    "einsum_grouped_to_bshd": einsum("bihgd,bjhd->bhgij", "bihgd", "bjhd", "bhgij,bjhe->bihge", "bjhe", mask="bhgij"),
    "einsum_mqa": einsum("bhid,bjd->bhij", "bhid", "bjd", "bhij,bje->bhie", "bje", mask="b1ij"),
    "einsum_keys_first": einsum("bhjd,bhid->bhij", "bhjd", "bhid", "bhij,bhje->bhie", "bhje", mask="b1ij"),
    "einsum_keys_first_and_transposed": einsum(
        "bhjd,bhid->bhji", "bhjd", "bhid", "bhij,bhje->bhie", "bhje", before="0132"
    ),
    "einsum_sum_over_heads_too": einsum("bhid,bhjd->bij", "bhid", "bhjd", "bij,bje->bie", "bje"),
    "einsum_transposed_output": einsum("bhid,bhjd->bhij", "bhid", "bhjd", "bhij,bhje->bhei", "bhje"),
    "einsum_two_head_dims": einsum("bhidn,bhjdn->bhij", "bhidn", "bhjdn", "bhij,bhjen->bhien", "bhjen"),
    "einsum_values_first": einsum("bhid,bhjd->bhij", "bhid", "bhjd", "bhje,bhij->bhie", "bhje", mask="hij"),
    "einsum_no_heads": einsum("bid,bjd->bij", "bid", "bjd", "bij,bje->bie", "bje", mask="bij"),
    "einsum_rank_2": einsum("id,jd->ij", "id", "jd", "ij,je->ie", "je", mask="ij"),
    "einsum_windows": einsum("bnqhd,bnkhd->bnhqk", "bnqhd", "bnkhd", "bnhqk,bnkhe->bnqhe", "bnkhe", mask="n1qk"),
    "einsum_batch_last": einsum("idb,jdb->bij", "idb", "jdb", "bij,jeb->ieb", "jeb", mask="bij"),
}
REFUSE |= {
    "einsum_over_rows": einsum("bhid,bhjd->bhij", "bhid", "bhjd", "bhij,bhie->bhje", "bhie"),
    "einsum_sum_over_keys_of_k": einsum("bhid,bhjd->bhi", "bhid", "bhjd", "bhi,bhje->bhie", "bhje"),
    "einsum_softmax_over_rows": einsum("bhid,bhjd->bhji", "bhid", "bhjd", "bhji,bhje->bhie", "bhje"),
}


@refuse
def einsum_that_broadcasts_the_summed_dim() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, H, 1, D), (B, H, N, E))
    score = g.op("Einsum", q, k, equation="bhid,bhjd->bhij")
    return g.done(g.einsum("bhij,bhje->bhie", g.softmax(score), v), B, H, S, E)


@refuse
def einsum_diagonal() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, S), (B, H, S, S), (B, H, S, E))
    score = g.einsum("bhii,bhji->bhij", q, k)
    return g.done(g.op("MatMul", g.softmax(score), v), B, H, S, E)


# Fused and swapped products


def fused(op: str) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        g = Layout(18)
        q, k, v = qkv(g, (B, H, S, D), (B, H, N, D), (B, H, N, E))
        kind: dict[str, Any] = {"domain": "com.microsoft"}
        score = g.op(op, q, k, transB=1, alpha=0.35, **kind)
        score = g.op("Add", score, g.input("mask", [B, 1, 1, N]))
        return g.done(g.op(op, g.softmax(score), v, alpha=1.5, **kind), B, H, S, E)

    return build


MATCH["fused_matmul"] = fused("FusedMatMul")
MATCH["transpose_matmul"] = fused("TransposeMatMul")


@match
def fused_matmul_of_transposed_q() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, H, D, S), (B, H, D, N), (B, H, E, N))
    kind: dict[str, Any] = {"domain": "com.microsoft"}
    score = g.op("FusedMatMul", q, k, transA=1, alpha=0.35, **kind)
    return g.done(g.op("FusedMatMul", g.softmax(score), v, transB=1, **kind), B, H, S, E)


@refuse
def fused_matmul_over_rows() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, H, N, D), (B, H, S, E))
    kind: dict[str, Any] = {"domain": "com.microsoft"}
    score = g.op("FusedMatMul", q, k, transB=1, **kind)
    return g.done(g.op("FusedMatMul", g.softmax(score), v, transA=1, **kind), B, H, N, E)


@refuse
def gemm_with_c() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (S, D), (N, D), (N, E))
    score = g.op("Gemm", q, k, transB=1)
    return g.done(g.op("Gemm", g.softmax(score), v, g.const(np.ones(E))), S, E)


@match
def values_on_the_left() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, H, N, D), (B, H, E, N))
    p = g.softmax(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2))))
    return g.done(g.op("MatMul", v, g.transpose(p, 0, 1, 3, 2)), B, H, E, S)


@match
def values_on_the_left_and_transposed_back() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, H, N, D), (B, H, N, E))
    p = g.softmax(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2))))
    out = g.op("MatMul", g.transpose(v, 0, 1, 3, 2), g.transpose(p, 0, 1, 3, 2))
    return g.done(g.transpose(out, 0, 1, 3, 2), B, H, S, E)


@match
def keys_times_queries() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, H, N, D), (B, H, N, E))
    score = g.op("Add", g.op("MatMul", k, g.transpose(q, 0, 1, 3, 2)), g.input("mask", [B, 1, N, 1]))
    p = g.softmax(g.transpose(g.scaled(score), 0, 1, 3, 2))
    return g.done(g.op("MatMul", p, v), B, H, S, E)


@refuse
def softmax_of_keys_times_queries() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, H, N, D), (B, H, N, D), (B, H, N, E))
    p = g.softmax(g.scaled(g.op("MatMul", k, g.transpose(q, 0, 1, 3, 2))))
    return g.done(g.op("MatMul", g.transpose(p, 0, 1, 3, 2), v), B, H, N, E)


@refuse
def probabilities_on_the_wrong_side() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, H, S, D), (B, H, S, S))
    p = g.softmax(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2))))
    return g.done(g.op("MatMul", v, p), B, H, S, S)


# Scores transposed: K times Q^T, and a softmax over the keys where they are not the last axis


def upright(how: str = "", axis: int = -2, opset: int = 18) -> Builder:
    """K Q^T, everything on scores of (keys, queries), and V^T P."""

    def build() -> onnx.ModelProto:
        g = Layout(opset)
        q, k, v = qkv(g, (B, H, S, D), (B, H, N, D), (B, H, N, E))
        score = g.scaled(g.op("MatMul", k, g.transpose(q, 0, 1, 3, 2)))
        match how:
            case "masked":
                score = g.op("Where", g.input("mask", [B, 1, N, 1], T.BOOL), score, g.const(-np.inf))
            case "causal":
                keep = np.arange(N)[:, None] <= np.arange(S)
                score = g.op("Where", g.const(keep, bool), score, g.const(-3.4028235e38))
            case "biased":
                score = g.op("Add", score, g.input("mask_bias", [H, N, S]))
            case "scaled_per_query":
                score = g.op("Mul", g.op("Add", score, g.const(0.5)), g.input("factor", [S]))
            case "scaled_per_key":
                score = g.op("Mul", score, g.input("factor", [N, 1]))
        p = _over_keys(g, how, score, axis)
        match how:
            case "guarded":
                p = g.op("Where", g.op("IsNaN", p), g.const(0.0), p)
            case "row_factor":
                p = g.op("Mul", p, g.const(np.linspace(-1, 1, S)))
            case "key_factor":
                p = g.op("Mul", g.const(np.linspace(-1, 1, N)[:, None]), p)
            case "p_transposed":
                return g.done(g.op("MatMul", g.transpose(p, 0, 1, 3, 2), v), B, H, S, E)
            case "einsum":
                return g.done(g.einsum("bhji,bhje->bhie", p, v), B, H, S, E)
            case "fused":
                out = g.op("FusedMatMul", p, v, transA=1, alpha=1.5, domain="com.microsoft")
                return g.done(out, B, H, S, E)
        out = g.op("MatMul", g.transpose(v, 0, 1, 3, 2), p)
        if how == "deferred":
            out = g.op("Div", out, g.op("ReduceSum", p, g.const([-2], np.int64)))
        return g.done(out, B, H, E, S)

    return build


def _over_keys(g: Layout, how: str, score: str, axis: int) -> str:
    """The softmax over the keys, which are axis -2, or its exponentials where the division comes last."""
    if how == "log":
        return g.op("Exp", g.op("LogSoftmax", score, axis=axis))
    if how == "log_sum_exp":
        return g.op("Exp", g.op("Sub", score, g.op("ReduceLogSumExp", score, g.const([axis], np.int64))))
    if how not in ("explicit", "deferred", "unsqueezed"):
        return g.op("Softmax", score, axis=axis)
    at = g.const([axis], np.int64)
    keep = int(how != "unsqueezed")
    top, total = (g.op("ReduceMax", score, at, keepdims=keep), "")
    e = g.op("Exp", g.op("Sub", score, top if keep else g.op("Unsqueeze", top, at)))
    if how == "deferred":
        return e
    total = g.op("ReduceSum", e, at, keepdims=keep)
    return g.op("Div", e, total if keep else g.op("Unsqueeze", total, at))


UPRIGHT = (
    *("masked", "causal", "biased", "scaled_per_query", "scaled_per_key"),
    *("guarded", "row_factor", "key_factor", "p_transposed", "einsum", "fused"),
    *("log", "log_sum_exp", "explicit", "deferred", "unsqueezed"),
)
MATCH |= {"upright": upright(), "upright_axis_2": upright(axis=2)} | {f"upright_{x}": upright(x) for x in UPRIGHT}


@match
def upright_gemm() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (S, D), (N, D), (N, E))
    p = g.op("Softmax", g.op("Gemm", k, q, transB=1, alpha=0.25), axis=0)
    return g.done(g.op("Gemm", p, v, transA=1), S, E)


@match
def upright_einsum_keys_first() -> onnx.ModelProto:
    """Keys are the axis before the heads."""
    g = Layout(18)
    q, k, v = qkv(g, (B, S, H, D), (B, N, H, D), (B, N, H, E))
    score = g.op("Add", g.einsum("bihd,bjhd->bjhi", q, k), g.input("mask_bias", [N, 1, S]))
    return g.done(g.einsum("bjhi,bjhe->bihe", g.op("Softmax", score, axis=1), v), B, S, H, E)


@match
def upright_between_transposes() -> onnx.ModelProto:
    """The score is turned before the softmax, the probabilities are not turned back."""
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, H, N, D), (B, H, N, E))
    score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
    p = g.op("Softmax", g.transpose(score, 0, 1, 3, 2), axis=-2)
    return g.done(g.op("MatMul", g.transpose(v, 0, 1, 3, 2), p), B, H, E, S)


@match
def upright_in_groups() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, 2, N, D), (B, 2, N, E))
    k, v = (_repeat(g, x, "expand", 2, w) for x, w in ((k, D), (v, E)))
    score = g.op("Add", g.op("MatMul", k, g.transpose(q, 0, 1, 3, 2)), g.input("mask", [B, 1, N, 1]))
    p = g.op("Softmax", g.scaled(score), axis=-2)
    return g.done(g.op("MatMul", g.transpose(p, 0, 1, 3, 2), v), B, H, S, E)


@refuse
def upright_softmax_over_queries() -> onnx.ModelProto:
    """K Q^T, but the softmax is over the queries, and the product over the keys."""
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, H, N, D), (B, H, N, E))
    p = g.op("Softmax", g.scaled(g.op("MatMul", k, g.transpose(q, 0, 1, 3, 2))), axis=-1)
    return g.done(g.op("MatMul", g.transpose(v, 0, 1, 3, 2), p), B, H, E, S)


@refuse
def upright_sum_over_queries() -> onnx.ModelProto:
    """Exponentials of (keys, queries) divided by their sum over the queries, with the maximum over the keys."""
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, H, S, D), (B, H, S, E))
    score = g.scaled(g.op("MatMul", k, g.transpose(q, 0, 1, 3, 2)))
    e = g.op("Exp", g.op("Sub", score, g.op("ReduceMax", score, g.const([-2], np.int64))))
    p = g.op("Div", e, g.op("ReduceSum", e, g.const([-1], np.int64)))
    return g.done(g.op("MatMul", g.transpose(v, 0, 1, 3, 2), p), B, H, E, S)


@refuse
def upright_in_opset_11() -> onnx.ModelProto:
    """There the softmax is over all axes from the one named on."""
    g = Layout(11)
    q, k, v = qkv(g, (B, H, S, D), (B, H, N, D), (B, H, N, E))
    p = g.op("Softmax", g.op("MatMul", k, g.transpose(q, 0, 1, 3, 2)), axis=2)
    return g.done(g.op("MatMul", g.transpose(v, 0, 1, 3, 2), p), B, H, E, S)


# Heads folded into the batch


def folded(middle: str, mask: tuple[int, ...], back: bool = True, behind: bool = False) -> Builder:
    """bmm on (B*H, S, D), the score reshaped to (B, H, S, N) for the mask."""

    def build() -> onnx.ModelProto:
        g = Layout(18)
        q, k, v = qkv(g, (B, H, S, D), (B, H, N, D), (B, H, N, E))
        q, v = g.reshape(q, -1, S, D), g.reshape(v, B * H, N, E) if back or behind else v
        kt = g.transpose(g.reshape(k, -1, N, D), 0, 2, 1)
        score = g.op("MatMul", q, kt)
        if middle == "bias":
            score = g.op("Add", score, g.input("mask_bias", [B * H, 1, N]))
        score = g.scaled(g.reshape(score, B, H, S, N))
        score = g.op("Add", score, g.input("mask", list(mask)))
        p = g.softmax(g.reshape(score, -1, S, N) if back else score)
        p = g.reshape(p, B * H, S, N) if behind else p
        out = g.op("MatMul", p, v)
        return g.done(g.reshape(out, B, H, S, E), B, H, S, E)

    return build


MATCH |= {
    "folded": folded("", (B, 1, S, N)),
    "folded_full_mask": folded("", (B, H, S, N)),
    "folded_mask_of_rows": folded("", (S, N)),
    "folded_until_the_softmax": folded("", (B, 1, 1, N), back=False),
    "folded_again_behind_the_softmax": folded("", (B, 1, S, N), back=False, behind=True),
    "folded_with_a_bias_before": folded("bias", (B, 1, S, N), back=False, behind=True),
    "folded_with_a_bias": folded("bias", (1, H, 1, N)),
}


def windows(shift: bool, split: bool) -> Builder:
    """Swin: a bias per head, and a mask per window with the batch split off."""

    def build() -> onnx.ModelProto:
        g = Layout(18)
        q, k, v = qkv(g, (B * 3, H, S, D), (B * 3, H, S, D), (B * 3, H, S, E))
        score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
        score = g.op("Add", score, g.input("mask_bias", [1, H, S, S]))
        if shift:
            mask = g.unsqueeze(g.unsqueeze(g.input("mask", [3, S, S]), 1), 0)
            score = g.op("Add", g.reshape(score, B, 3, H, S, S), mask)
            score = g.reshape(score, -1, H, S, S) if not split else score
        p = g.softmax(score)
        p = g.reshape(p, -1, H, S, S) if split else p
        return g.done(g.op("MatMul", p, v), B * 3, H, S, E)

    return build


MATCH |= {
    "windows": windows(False, False),
    "shifted_windows": windows(True, False),
    "shifted_windows_softmax_in_rank_5": windows(True, True),
}


@match
def decomposed_positions() -> onnx.ModelProto:
    """Segment Anything: a bias per row and per column of the keys, in a score of rank 5."""
    g = Layout(18)
    q, k, v = qkv(g, (B * H, 6, D), (B * H, 6, D), (B * H, 6, E))
    score = g.reshape(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 2, 1))), B * H, 2, 3, 2, 3)
    score = g.op("Add", score, g.unsqueeze(g.input("mask_rows", [B * H, 2, 3, 2]), 4))
    score = g.op("Add", score, g.unsqueeze(g.input("mask_columns", [B * H, 2, 3, 3]), 3))
    p = g.softmax(g.reshape(score, B * H, 6, 6))
    return g.done(g.op("MatMul", p, v), B * H, 6, E)


@match
def mask_in_a_higher_rank() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, S, D), (B, N, D), (B, N, E))
    score = g.unsqueeze(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 2, 1))), 1)
    score = g.squeeze(g.op("Where", g.input("mask", [B, 1, S, N], T.BOOL), score, g.const(-np.inf)), 1)
    return g.done(g.op("MatMul", g.softmax(score), v), B, S, E)


@match
def score_with_rows_first() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, H, N, D), (B, H, N, E))
    score = g.transpose(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2))), 0, 2, 1, 3)
    score = g.op("Add", score, g.input("mask", [B, S, 1, N]))
    p = g.transpose(g.softmax(score), 0, 2, 1, 3)
    return g.done(g.op("MatMul", p, v), B, H, S, E)


@refuse
def score_reshaped_across_its_axes() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, H, N, D), (B, H, S, E))
    score = g.reshape(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2))), B, H, N, S)
    return g.done(g.op("MatMul", g.softmax(score), v), B, H, N, E)


@refuse
def softmax_over_rows_and_keys() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, H, N, D), (B, H, N, E))
    score = g.reshape(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)), B, H, S * N)
    p = g.reshape(g.softmax(score), B, H, S, N)
    return g.done(g.op("MatMul", p, v), B, H, S, E)


@refuse
def softmax_over_heads() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, H, N, D), (B, H, N, E))
    score = g.transpose(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)), 0, 2, 3, 1)
    p = g.transpose(g.softmax(score), 0, 3, 1, 2)
    return g.done(g.op("MatMul", p, v), B, H, S, E)


@match
def operands_reshaped_across_their_axes() -> onnx.ModelProto:
    """(B, S, H, D) -> (B, H, S, D) by Reshape moves data between heads: right only when read behind it."""
    g = Layout(18)
    q, k, v = qkv(g, (B, S, H, D), (B, N, H, D), (B, N, H, E))
    q, k, v = g.reshape(q, B, H, S, D), g.reshape(k, B, H, N, D), g.reshape(v, B, H, N, E)
    p = g.softmax(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2))))
    return g.done(g.op("MatMul", p, v), B, H, S, E)


# Repeats of K/V heads


def repeated(how: str, opset: int = 18) -> Builder:
    def build() -> onnx.ModelProto:
        g = Layout(opset)
        kv = 1 if how.endswith("_mqa") else 2
        q, k, v = qkv(g, (B, H, S, D), (B, kv, N, D), (B, kv, N, E))
        k, v = (_repeat(g, x, how, kv, w) for x, w in ((k, D), (v, E)))
        score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
        score = g.op("Add", score, g.input("mask", [B, H, S, N]))
        return g.done(g.op("MatMul", g.softmax(score), v), B, H, S, E)

    return build


def _repeat(g: Layout, x: str, how: str, kv: int, width: int) -> str:
    times = H // kv
    match how.removesuffix("_mqa"):
        case "expand":
            return g.reshape(g.expand(g.unsqueeze(x, 2), B, kv, times, N, width), B, H, N, width)
        case "tile":
            return g.reshape(g.op("Tile", g.unsqueeze(x, 2), g.const([1, 1, times, 1, 1], np.int64)), B, H, N, width)
        case "concat":
            five = g.unsqueeze(x, 2)
            return g.reshape(g.op("Concat", *[five] * times, axis=2), B, H, N, width)
        case "gather":
            return g.op("Gather", x, g.const(np.repeat(np.arange(kv), times), np.int64), axis=1)
        case "tiled":
            return g.op("Tile", x, g.const([1, times, 1, 1], np.int64))
        case "concat_tiled":
            return g.op("Concat", *[x] * times, axis=1)
        case "expand_tiled":
            return g.reshape(g.expand(g.unsqueeze(x, 1), B, times, kv, N, width), B, H, N, width)
        case "gather_tiled":
            return g.op("Gather", x, g.const(np.tile(np.arange(kv), times), np.int64), axis=1)
        case "broadcast":
            return x
    raise AssertionError(how)


REPEATS = ("expand", "tile", "concat", "gather", "expand_mqa", "tile_mqa", "concat_mqa", "gather_mqa", "broadcast_mqa")
"""Repeats that are heads in groups."""
TILED = ("tiled", "concat_tiled", "expand_tiled", "gather_tiled")
"""Repeats in another order, which must stay."""
for _how in (*REPEATS, *TILED, "tiled_mqa", "concat_tiled_mqa", "gather_tiled_mqa"):
    MATCH[f"repeat_{_how}"] = repeated(_how)


@match
def grouped_in_rank_5() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, 2, N, D), (B, 2, N, E))
    q = g.reshape(q, B, 2, 2, S, D)
    score = g.scaled(g.op("MatMul", q, g.unsqueeze(g.transpose(k, 0, 1, 3, 2), 2)))
    score = g.op("Add", score, g.input("mask", [B, 1, 1, S, N]))
    out = g.op("MatMul", g.softmax(score), g.unsqueeze(v, 2))
    return g.done(g.reshape(out, B, H, S, E), B, H, S, E)


@match
def grouped_rows() -> onnx.ModelProto:
    """The heads of a group as further rows of one K/V head."""
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, 2, N, D), (B, 2, N, E))
    q = g.reshape(q, B, 2, 2 * S, D)
    score = g.reshape(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2))), B, H, S, N)
    score = g.op("Add", score, g.input("mask", [B, 1, S, N]))
    out = g.op("MatMul", g.reshape(g.softmax(score), B, 2, 2 * S, N), v)
    return g.done(g.reshape(out, B, H, S, E), B, H, S, E)


@match
def multi_query_rows() -> onnx.ModelProto:
    """All heads as rows of the one K/V head, as in GPT-BigCode."""
    g = Layout(18)
    q, k, v = qkv(g, (B, S, H, D), (B, N, D), (B, N, E))
    q = g.reshape(q, B, S * H, D)
    score = g.reshape(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 2, 1))), B, S, H, N)
    score = g.op("Where", g.input("mask", [B, S, 1, N], T.BOOL), score, g.const(-np.inf))
    out = g.op("MatMul", g.reshape(g.softmax(score), B, S * H, N), v)
    return g.done(g.reshape(out, B, S, H, E), B, S, H, E)


# Packed projections


@match
def packed_by_split() -> onnx.ModelProto:
    g = Layout(18)
    x = g.input("q", [B, S, 3 * H * D])
    q = g.op("Split", x, g.const([H * D] * 3, np.int64), outs=3, axis=-1)
    parts = [g.transpose(g.reshape(p, B, S, H, D), 0, 2, 1, 3) for p in (q, f"{q}_1", f"{q}_2")]
    score = g.scaled(g.op("MatMul", parts[0], g.transpose(parts[1], 0, 1, 3, 2)))
    out = g.transpose(g.op("MatMul", g.softmax(score), parts[2]), 0, 2, 1, 3)
    return g.done(g.reshape(out, B, S, H * D), B, S, H * D)


@match
def packed_by_slice() -> onnx.ModelProto:
    g = Layout(18)
    x = g.input("q", [B, S, H, 3 * D])
    ends = [g.const([i * D], np.int64) for i in range(4)]
    parts = [g.op("Slice", x, ends[i], ends[i + 1], g.const([3], np.int64)) for i in range(3)]
    q, k, v = (g.transpose(p, 0, 2, 1, 3) for p in parts)
    out = g.op("MatMul", g.softmax(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))), v)
    return g.done(out, B, H, S, D)


@match
def packed_by_gather() -> onnx.ModelProto:
    g = Layout(18)
    x = g.transpose(g.reshape(g.input("q", [B, S, 3 * H * D]), B, S, 3, H, D), 2, 0, 3, 1, 4)
    q, k, v = (g.op("Gather", x, g.const(i, np.int64), axis=0) for i in range(3))
    out = g.op("MatMul", g.softmax(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))), v)
    return g.done(out, B, H, S, D)


@match
def keys_gathered_in_another_order() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, H, N, D), (B, H, N, E))
    k = g.op("Gather", k, g.const(np.arange(N)[::-1].copy(), np.int64), axis=2)
    out = g.op("MatMul", g.softmax(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))), v)
    return g.done(out, B, H, S, E)


# Caches


@match
def past_by_concat() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, H, 2, D), (B, 2, 2, D), (B, 2, 2, E))
    k = g.op("Concat", g.input("k_past", [B, 2, N, D]), k, axis=2)
    v = g.op("Concat", g.input("v_past", [B, 2, N, E]), v, axis=2)
    for name, x in (("present_k", k), ("present_v", v)):
        g.nodes.append(h.make_node("Identity", [x], [name], name=name))
    k, v = (_repeat_to(g, x, N + 2, w) for x, w in ((k, D), (v, E)))
    score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
    score = g.op("Add", score, g.input("mask", [B, 1, 2, N + 2]))
    g.nodes.append(h.make_node("MatMul", [g.softmax(score), v], ["o"], name="out"))
    return g.model(
        {
            "o": ([B, H, 2, E], T.FLOAT),
            "present_k": ([B, 2, N + 2, D], T.FLOAT),
            "present_v": ([B, 2, N + 2, E], T.FLOAT),
        }
    )


def _repeat_to(g: Layout, x: str, length: int, width: int) -> str:
    return g.reshape(g.expand(g.unsqueeze(x, 2), B, 2, H // 2, length, width), B, H, length, width)


def scattered(op: str) -> Builder:
    """A static cache of N keys into which one new key and value are written."""

    def build() -> onnx.ModelProto:
        g = Layout(24 if op == "TensorScatter" else 18)
        q, k, v = qkv(g, (B, H, 1, D), (B, H, 1, D), (B, H, 1, E))
        caches = [g.input("k_cache", [B, H, N, D]), g.input("v_cache", [B, H, N, E])]
        parts = []
        for cache, new, width in zip(caches, (k, v), (D, E), strict=True):
            if op == "ScatterElements":
                at = g.const(np.full((B, H, 1, width), 3), np.int64)
                parts.append(g.op(op, cache, at, new, axis=2))
            elif op == "ScatterND":
                at = g.const([[b, i, 3] for b in range(B) for i in range(H)], np.int64)
                parts.append(g.op(op, cache, at, g.reshape(new, B * H, width)))
            else:
                parts.append(g.op(op, cache, new, g.const([3] * B, np.int64), axis=2))
        score = g.scaled(g.op("MatMul", q, g.transpose(parts[0], 0, 1, 3, 2)))
        score = g.op("Where", g.const(np.arange(N) <= 3, bool), score, g.const(-np.inf))
        return g.done(g.op("MatMul", g.softmax(score), parts[1]), B, H, 1, E)

    return build


MATCH |= {"scatter_elements": scattered("ScatterElements"), "scatter_nd": scattered("ScatterND")}


def two_parts(cut: str, mask: bool = True, wrong: str = "", past: str = "bhnd", heads: int | str = H) -> Builder:
    """Scores of a cache and of new keys, concatenated; the probabilities split, multiplied by either V and summed. `past`: the axes
    of the cache, of which all heads share one, or that has one for all of them where it has no "h"."""

    def build() -> onnx.ModelProto:
        g = Layout(18)
        n = S if wrong else N
        q, k, v = qkv(g, (B, heads, S, D), (B, heads, 2, D), (B, heads, 2, E))
        sizes = {"b": B, "h": heads, "1": 1, "n": n, "d": D, "e": E}
        past_k, past_v = (
            g.input(f"{x}_past", [sizes[a] for a in past[:-1] + end]) for x, end in (("k", "d"), ("v", "e"))
        )
        if len(past) == 4:
            first = g.op("MatMul", q, g.transpose(past_k, 0, 1, 3, 2))
        else:
            first = g.op("Einsum", q, past_k, equation=f"bhmd,{past}->bhmn")
        scores = [g.scaled(first), g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))]
        if wrong == "scale":
            scores[1] = g.scaled(scores[1])
        if wrong == "queries":
            scores[1] = g.scaled(g.op("MatMul", g.input("q_other", [B, H, S, D]), g.transpose(k, 0, 1, 3, 2)))
        score = g.op("Concat", *scores, axis=-1)
        if mask:
            score = g.op("Add", score, g.input("mask", [B, 1, S, n + 2]))
        p = g.softmax(score)
        if cut == "split":
            first = g.op("Split", p, g.const([n, 2], np.int64), outs=2, axis=-1)
            halves = [first, f"{first}_1"]
        else:
            zero, at, end, axis = (g.const([i], np.int64) for i in (0, n, 1 << 40, 3))
            start = g.const([n - 1], np.int64) if wrong == "overlap" else at
            stop = g.const([n + 1], np.int64) if wrong == "overlap" else end
            halves = [g.op("Slice", p, zero, at, axis), g.op("Slice", p, start, stop, axis)]
        if len(past) == 4:
            seen = g.op("MatMul", halves[0], past_v)
        else:
            seen = g.op("Einsum", halves[0], past_v, equation=f"bhmn,{past[:-1]}e->bhme")
        return g.done(g.op("Add", seen, g.op("MatMul", halves[1], v)), B, heads, S, E)

    return build


MATCH |= {
    "parts_by_split": two_parts("split"),
    "parts_by_slice": two_parts("slice"),
    "parts_without_a_mask": two_parts("split", mask=False),
    "parts_of_keys_that_heads_share": two_parts("split", past="bnd"),
    "parts_of_keys_that_all_share": two_parts("slice", past="nd"),
    "parts_of_keys_that_some_heads_share": two_parts("slice", past="bnd", heads="u"),
    "parts_of_keys_for_one_head": two_parts("split", past="b1nd"),
}
REFUSE |= {
    "parts_scaled_differently": two_parts("split", wrong="scale"),
    "parts_of_different_queries": two_parts("split", wrong="queries"),
    "parts_that_overlap": two_parts("slice", wrong="overlap"),
}


FAR = (1 << 63) - 1
"""An end of a Slice beyond any length."""
Cuts = list[tuple[list[int], list[int], list[int]]]
CUTS: dict[str, Cuts] = {
    "to_the_end": [([0], [3], [-1]), ([3], [FAR], [-1])],
    "to_the_length": [([0], [3], [3]), ([3], [N], [3])],
    "from_the_end": [([0], [-4], [3]), ([-4], [FAR], [3])],
    "both_ways": [([-N], [3], [3]), ([-4], [FAR], [-1])],
    "of_every_axis": [([0] * 4, [FAR, FAR, S, 3], [0, 1, 2, 3]), ([0, 0, 0, 3], [FAR] * 4, [0, 1, 2, 3])],
    "in_another_order": [([5], [FAR], [3]), ([0], [3], [3]), ([3], [5], [3])],
}
"""Starts, ends and axes of the Slices that together are all probabilities."""
BAD_CUTS: dict[str, Cuts] = {
    "gap": [([0], [3], [3]), ([4], [FAR], [3])],
    "overlap": [([0], [4], [3]), ([3], [FAR], [3])],
    "end_missing": [([0], [3], [3]), ([3], [6], [3])],
    "rows_missing": [([0, 0], [3, S - 1], [3, 2]), ([3, 0], [FAR, S - 1], [3, 2])],
    "twice": [([0], [3], [3]), ([3], [FAR], [3]), ([3], [FAR], [3])],
}


def cut(cuts: Cuts) -> Builder:
    """Whole scores; the probabilities are cut by Slices, and every part has a V of its own."""

    def build() -> onnx.ModelProto:
        g = Layout(18)
        q, k = g.input("q", [B, H, S, D]), g.input("k", [B, H, N, D])
        p = g.softmax(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2))))
        rows, terms = S, []
        for i, (starts, ends, axes) in enumerate(cuts):
            shape = [B, H, S, N]
            for start, end, axis in zip(starts, ends, axes, strict=True):
                shape[axis] = len(range(shape[axis])[start:end])
            part = g.op("Slice", p, *(g.const(x, np.int64) for x in (starts, ends, axes)))
            terms.append(g.op("MatMul", part, g.input(f"value{i}", [B, H, shape[3], E])))
            rows = shape[2]
        total = terms[0] if len(terms) == 1 else g.op("Sum", *terms)
        return g.done(total, B, H, rows, E)

    return build


MATCH |= {f"cut_{name}": cut(cuts) for name, cuts in CUTS.items()}
REFUSE |= {f"cut_with_{name}": cut(cuts) for name, cuts in BAD_CUTS.items()}


def cut_by_split(how: str) -> Builder:
    """Three parts by Split, summed one after the other."""

    def build() -> onnx.ModelProto:
        g = Layout(18)
        q, k = g.input("q", [B, H, S, D]), g.input("k", [B, H, N, D])
        upright = how == "upright"
        score = g.op("MatMul", k, g.transpose(q, 0, 1, 3, 2)) if upright else None
        score = g.scaled(score or g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
        score = g.op("Add", score, g.input("mask", [B, 1, N, 1] if upright else [B, 1, 1, N]))
        p = g.op("Softmax", score, axis=-2 if upright else -1)
        first = g.op("Split", p, g.const([2, 1, 4], np.int64), outs=3, axis=2 if upright else -1)
        terms = []
        for i, (part, width) in enumerate(zip((first, f"{first}_1", f"{first}_2"), (2, 1, 4), strict=True)):
            v = g.input(f"value{i}", [B, H, width, E])
            if how == "query_weights" and i == 2:
                part = g.op("Mul", part, g.input("weights", [S, 1]))
            if how == "einsum":
                terms.append(g.einsum("bhij,bhje->bihe", g.op("Identity", part), v))
            elif upright:
                terms.append(g.op("MatMul", g.transpose(v, 0, 1, 3, 2), part))
            else:
                term = g.op("MatMul", part, v)
                terms.append(g.transpose(term, 0, 2, 1, 3) if how in ("transposed", "one_not") and i < 3 else term)
        if how == "one_missing":
            terms = terms[:2]
        if how == "one_twice":
            terms.append(terms[0])
        total = g.op("Add", terms[0], terms[1])
        for term in terms[2:]:
            total = g.op("Add", term, total)
        if how == "read_between":
            total = g.op("Mul", total, terms[0])
        shape = {"upright": (B, H, E, S), "einsum": (B, S, H, E), "transposed": (B, S, H, E)}.get(how, (B, H, S, E))
        return g.done(total, *shape)

    return build


MATCH |= {f"cut_in_three_{how}": cut_by_split(how) for how in ("plain", "einsum", "transposed", "upright")}
REFUSE |= {
    f"cut_in_three_{how}": cut_by_split(how) for how in ("query_weights", "one_missing", "one_twice", "read_between")
}


def cut_at_run_time(wrong: bool = False) -> Builder:
    """The parts are as long as the V that they are multiplied by; its length is read off its shape."""

    def build() -> onnx.ModelProto:
        g = Layout(18)
        q, k = g.input("q", [B, H, S, D]), g.input("k", [B, H, "p + s", D])
        values = [g.input("value0", [B, H, "p", E]), g.input("value1", [B, H, "s", E])]
        at = g.op("Shape", values[0], start=2, end=3)
        p = g.softmax(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2))))
        zero, far, axis = (g.const([i], np.int64) for i in (0, FAR, 3))
        start = g.op("Neg", g.op("Shape", values[1], start=2, end=3)) if wrong else at
        parts = [g.op("Slice", p, zero, at, axis), g.op("Slice", p, start, far, axis)]
        return g.done(g.op("Add", *(g.op("MatMul", x, v) for x, v in zip(parts, values, strict=True))), B, H, S, E)

    return build


MATCH["cut_at_run_time"] = cut_at_run_time()
REFUSE["cut_at_run_time_in_perhaps_two_places"] = cut_at_run_time(wrong=True)


@match
def cut_exponentials() -> onnx.ModelProto:
    """The division comes last, after the sum of the parts."""
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, H, N, D), (B, H, 3, E))
    score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
    e = g.op("Exp", g.op("Sub", score, g.op("ReduceMax", score, g.const([-1], np.int64))))
    first = g.op("Split", e, g.const([3, 4], np.int64), outs=2, axis=-1)
    total = g.op("Add", g.op("MatMul", f"{first}_1", g.input("value1", [B, H, 4, E])), g.op("MatMul", first, v))
    return g.done(g.op("Div", total, g.op("ReduceSum", e, g.const([-1], np.int64))), B, H, S, E)


@match
def scores_concatenated_along_rows() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, H, N, D), (B, H, N, E))
    kt = g.transpose(k, 0, 1, 3, 2)
    score = g.op("Concat", g.op("MatMul", q, kt), g.op("MatMul", g.input("q_more", [B, H, 2, D]), kt), axis=2)
    return g.done(g.op("MatMul", g.softmax(score), v), B, H, S + 2, E)


@match
def keys_concatenated_along_heads() -> onnx.ModelProto:
    """Not a cache, but still a value: K as the matmul gets it."""
    g = Layout(18)
    q, k, v = qkv(g, (B, H, S, D), (B, 2, N, D), (B, H, N, E))
    k = g.op("Concat", k, g.input("k_more", [B, 2, N, D]), axis=1)
    return g.done(g.op("MatMul", g.softmax(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2))), v), B, H, S, E)


# Lengths known only at run time


SIZES = {"b": 2, "c": 2, "s": 5, "t": 7, "p": 3, "u": 7, "w": 6, "m": 5, "n": 5, "bh": B * H}
"""What the symbols are in a test."""


def feeds(model: onnx.ModelProto, seed: int = 0, *, large: bool = False, empty_rows: bool = False) -> dict[str, Any]:
    """`spellings.feeds` with a size for every symbol."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for i in fixed.graph.input:
        for d in i.type.tensor_type.shape.dim:
            if d.dim_param:
                size = sum(SIZES[x] for x in d.dim_param.split(" + "))
                d.Clear()
                d.dim_value = size
    return spellings.feeds(fixed, seed, large=large, empty_rows=empty_rows)


class Dynamic(Layout):
    """Reshapes by Shape, Gather, Unsqueeze, Concat, as TorchScript writes them."""

    def dim(self, x: str, axis: int) -> str:
        return self.op("Gather", self.op("Shape", x), self.const(axis, np.int64), axis=0)

    def to(self, x: str, *dims: str | int) -> str:
        """x reshaped to sizes that are numbers or scalar values."""
        zero = self.const([0], np.int64)
        parts = [self.const([d], np.int64) if isinstance(d, int) else self.op("Unsqueeze", d, zero) for d in dims]
        return self.op("Reshape", x, self.op("Concat", *parts, axis=0))


@match
def dynamic_packed() -> onnx.ModelProto:
    g = Dynamic(17)
    x = g.input("q", ["b", "s", 3 * H * D])
    b, s = g.dim(x, 0), g.dim(x, 1)
    q = g.op("Split", x, g.const([H * D] * 3, np.int64), outs=3, axis=2)
    heads = [g.transpose(g.to(i, b, s, H, D), 0, 2, 1, 3) for i in (q, f"{q}_1", f"{q}_2")]
    score = g.scaled(g.op("MatMul", heads[0], g.transpose(heads[1], 0, 1, 3, 2)))
    score = g.op("Add", score, g.input("mask", ["b", 1, 1, "s"]))
    out = g.transpose(g.op("MatMul", g.softmax(score), heads[2]), 0, 2, 1, 3)
    return g.done(g.to(out, b, s, H * D), "b", "s", H * D)


@match
def dynamic_folded() -> onnx.ModelProto:
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", H, "s", D), ("b", H, "t", D), ("b", H, "t", E))
    b, s, t = g.dim(q, 0), g.dim(q, 2), g.dim(k, 2)
    bh = g.op("Mul", b, g.const(H, np.int64))
    q, k, v = g.to(q, bh, s, D), g.to(k, bh, t, D), g.to(v, bh, t, E)
    score = g.to(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 2, 1))), b, H, s, t)
    score = g.to(g.op("Add", score, g.input("mask", ["b", 1, "s", "t"])), bh, s, t)
    return g.done(g.to(g.op("MatMul", g.softmax(score), v), b, H, s, E), "b", H, "s", E)


@match
def dynamic_folded_by_minus_one() -> onnx.ModelProto:
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", H, "s", D), ("b", H, "t", D), ("b", H, "t", E))
    b, s, t = g.dim(q, 0), g.dim(q, 2), g.dim(k, 2)
    q, k, v = g.to(q, -1, s, D), g.to(k, -1, t, D), g.to(v, -1, t, E)
    score = g.to(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 2, 1))), b, H, s, t)
    score = g.op("Add", score, g.input("mask", ["b", 1, 1, "t"]))
    p = g.to(g.softmax(score), -1, s, t)
    return g.done(g.to(g.op("MatMul", p, v), b, H, s, E), "b", H, "s", E)


@match
def dynamic_repeat() -> onnx.ModelProto:
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", H, "s", D), ("b", 2, "t", D), ("b", 2, "t", E))
    b, t = g.dim(k, 0), g.dim(k, 2)
    zero = g.const([0], np.int64)

    def repeat(x: str, width: int) -> str:
        ends = [
            g.const([n], np.int64) if isinstance(n, int) else g.op("Unsqueeze", n, zero) for n in (b, 2, 2, t, width)
        ]
        return g.to(g.op("Expand", g.unsqueeze(x, 2), g.op("Concat", *ends, axis=0)), b, H, t, width)

    score = g.scaled(g.op("MatMul", q, g.transpose(repeat(k, D), 0, 1, 3, 2)))
    return g.done(g.op("MatMul", g.softmax(score), repeat(v, E)), "b", H, "s", E)


@match
def dynamic_past() -> onnx.ModelProto:
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", H, "s", D), ("b", H, "s", D), ("b", H, "s", E))
    k = g.op("Concat", g.input("k_past", ["b", H, "p", D]), k, axis=2)
    v = g.op("Concat", g.input("v_past", ["b", H, "p", E]), v, axis=2)
    score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
    score = g.op("Add", score, g.input("mask", ["b", 1, "s", "p + s"]))
    return g.done(g.op("MatMul", g.softmax(score), v), "b", H, "s", E)


@match
def dynamic_queries_shared_by_the_batch() -> onnx.ModelProto:
    g = Dynamic(17)
    q, k, v = qkv(g, (1, H, S, D), ("b", H, "t", D), ("b", H, "t", E))
    score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
    return g.done(g.op("MatMul", g.softmax(score), v), "b", H, S, E)


@match
def dynamic_keys_shared_by_the_batch() -> onnx.ModelProto:
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", H, "s", D), (1, H, "t", D), (1, H, "t", E))
    score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
    return g.done(g.op("MatMul", g.softmax(score), v), "b", H, "s", E)


@match
def dynamic_parts() -> onnx.ModelProto:
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", H, "s", D), ("b", H, "s", D), ("b", H, "s", E))
    past_k, past_v = g.input("k_past", ["b", H, "p", D]), g.input("v_past", ["b", H, "p", E])
    scores = [g.scaled(g.op("MatMul", q, g.transpose(x, 0, 1, 3, 2))) for x in (past_k, k)]
    p = g.softmax(g.op("Concat", *scores, axis=-1))
    at = g.op("Unsqueeze", g.dim(past_k, 2), g.const([0], np.int64))
    zero, end, axis = (g.const([i], np.int64) for i in (0, 1 << 40, 3))
    halves = [g.op("Slice", p, zero, at, axis), g.op("Slice", p, at, end, axis)]
    parts = [g.op("MatMul", x, y) for x, y in zip(halves, (past_v, v), strict=True)]
    return g.done(g.op("Add", *parts), "b", H, "s", E)


@match
def dynamic_windows() -> onnx.ModelProto:
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", 6, H, S, D), ("b", 6, H, S, D), ("b", 6, H, S, E))
    q, k, v = (g.reshape(x, -1, H, S, w) for x, w in ((q, D), (k, D), (v, E)))
    score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
    score = g.op("Add", g.reshape(score, -1, 6, H, S, S), g.input("mask", [6, 1, S, S]))
    out = g.op("MatMul", g.softmax(g.reshape(score, -1, H, S, S)), v)
    return g.done(g.reshape(out, -1, 6, H, S, E), "b", 6, H, S, E)


@match
def dynamic_einsum() -> onnx.ModelProto:
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", "s", H, D), ("b", "t", H, D), ("b", "t", H, E))
    score = g.op("Add", g.scaled(g.einsum("bqhd,bkhd->bhqk", q, k)), g.input("mask", ["s", "t"]))
    return g.done(g.einsum("bhqk,bkhe->bqhe", g.softmax(score), v), "b", "s", H, E)


@match
def dynamic_mask_of_another_length() -> onnx.ModelProto:
    """The mask's keys are named by another symbol, which can only be the same length or one."""
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", H, "s", D), ("b", H, "t", D), ("b", H, "t", E))
    score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
    score = g.op("Add", score, g.input("mask", ["b", 1, 1, "u"]))
    return g.done(g.op("MatMul", g.softmax(score), v), "b", H, "s", E)


@match
def dynamic_masks_of_other_rows() -> onnx.ModelProto:
    """One query and a mask of many would be many queries. Which of two masks has how many is not known."""
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", H, "s", D), ("b", H, "t", D), ("b", H, "t", E))
    score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
    score = g.op("Add", score, g.input("mask", ["b", 1, "m", "t"]))
    score = g.op("Add", score, g.input("mask2", ["b", 1, "n", "t"]))
    return g.done(g.op("MatMul", g.softmax(score), v), "b", H, "o", E)


@match
def dynamic_batches_that_may_differ() -> onnx.ModelProto:
    """A batch of one broadcasts."""
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", H, "s", D), ("c", H, "t", D), ("c", H, "t", E))
    score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
    return g.done(g.op("MatMul", g.softmax(score), v), "d", H, "s", E)


def folded(cut_first: bool, masked: bool) -> onnx.ModelProto:
    """Groups of heads and queries are one axis for the products, and are cut apart for the mask: as they were put together, or
    otherwise, so that a row of the mask meets other queries."""
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", 2, 3, "s", D), ("b", 2, "t", D), ("b", 2, "t", E))
    b, s, t = g.dim(q, 0), g.dim(q, 3), g.dim(k, 2)
    heads, rows = g.op("Mul", b, g.const(2, np.int64)), g.op("Mul", s, g.const(3, np.int64))
    score = g.op("MatMul", g.to(q, heads, rows, D), g.transpose(g.to(k, heads, t, D), 0, 2, 1))
    score = g.to(g.scaled(score), b, 2, *((3, s) if cut_first else (s, 3)), t)
    if masked:
        score = g.op("Add", score, g.input("mask", [*((1, "s") if cut_first else ("s", 1)), "t"]))
    p = g.to(g.softmax(score), heads, rows, t)
    return g.done(g.to(g.op("MatMul", p, g.to(v, heads, t, E)), b, 2, 3, s, E), "b", 2, 3, "s", E)


MATCH |= {
    "dynamic_groups_folded_into_queries": lambda: folded(True, True),
    "dynamic_groups_folded_and_cut_otherwise": lambda: folded(False, True),
    "dynamic_groups_folded_without_a_mask": lambda: folded(False, False),
}


@match
def dynamic_batches_beside_heads() -> onnx.ModelProto:
    """Of Q a batch and the heads are one axis, of K a batch."""
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", H, S, D), ("bh", "t", D), ("bh", "t", E))
    q = g.reshape(q, -1, S, D)
    p = g.softmax(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 2, 1))))
    return g.done(g.op("MatMul", p, v), "d", S, E)


@refuse
def dynamic_heads_of_a_mask() -> onnx.ModelProto:
    """A mask of many heads makes many of one head of Q, K and V."""
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", 1, "s", D), ("c", 1, "t", D), ("c", 1, "t", E))
    score = g.op("Add", g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)), g.input("mask", ["d", "h", "s", "t"]))
    return g.done(g.op("MatMul", g.softmax(score), v), "e", "oh", "s", E)


def one_tap(places: tuple[int, ...] = (2, 3), bias: bool = False, wide: bool = False, **attributes: Any) -> Builder:
    """Scores are a map of channels, convolved by one tap that has a query in each of its rows, with its places as one axis behind
    it; `wide`: by three taps."""

    def build() -> onnx.ModelProto:
        g = Layout(18)
        count = int(np.prod(places))
        groups = attributes.get("group", 1)
        taps = [3 if wide else 1] * len(places)
        q, k, v = qkv(g, (S * groups, D // groups, *taps), (B, D, *places), (B, count, E))
        if wide:
            attributes["pads"] = [1] * (2 * len(places))
        given = [g.const(np.arange(S * groups, dtype=np.float32))] if bias else []
        score = g.reshape(g.op("Conv", k, q, *given, **attributes), B, S * groups, -1)
        return g.done(g.op("MatMul", g.softmax(g.scaled(score)), v), B, S * groups, E)

    return build


MATCH |= {
    "queries_by_a_convolution_of_one_tap": one_tap(),
    "queries_by_a_convolution_of_a_row": one_tap((N,), auto_pad="SAME_UPPER", kernel_shape=[1]),
    "queries_by_a_convolution_of_a_volume": one_tap((2, 1, 3), dilations=[2, 1, 1], strides=[1, 1, 1]),
}
REFUSE |= {
    "a_convolution_of_three_taps": one_tap(wide=True),
    "a_convolution_of_one_tap_in_groups": one_tap(group=2),
    "a_convolution_of_one_tap_and_a_bias": one_tap(bias=True),
}
