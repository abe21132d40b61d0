"""Softmaxes over several axes: queries and keys that are the rows and columns of images, as Keras's attention_axes make them.

Q is (B, I, J, D), with heads (B, I, J, H, D); K and V have K rows of L columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T

from tests.support import spellings
from tests.support.spellings_layout import Dynamic, Layout, qkv

__all__ = ["MATCH", "REFUSE", "feeds"]

Builder = Callable[[], onnx.ModelProto]
MATCH: dict[str, Builder] = {}
REFUSE: dict[str, tuple[Builder, str]] = {}
"""The builder, and a part of the reason that must be given."""
B, H, I, J, K, L, D, E = 2, 3, 2, 5, 4, 3, 8, 6  # noqa: E741
SIZES = {"b": B, "i": I, "j": J, "k": K, "l": L}
BOTH = (-2, -1)


def feeds(model: onnx.ModelProto, seed: int = 0, **kind: Any) -> dict[str, Any]:
    """`spellings.feeds` with a size for every symbol."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_value = SIZES[dim.dim_param] if dim.dim_param else dim.dim_value
    return spellings.feeds(fixed, seed, **kind)


def match(build: Builder) -> Builder:
    MATCH[build.__name__] = build
    return build


def refuse(reason: str) -> Callable[[Builder], Builder]:
    def register(build: Builder) -> Builder:
        REFUSE[build.__name__] = build, reason
        return build

    return register


class Images(Layout):
    """A graph with Q, K and V of images, without heads or with some."""

    def __init__(self, opset: int = 18, heads: tuple[int, ...] = ()) -> None:
        super().__init__(opset)
        self.q, self.k, self.v = qkv(self, (B, I, J, *heads, D), (B, K, L, *heads, D), (B, K, L, *heads, E))

    def scores(self) -> str:
        return self.scaled(self.einsum("bijd,bkld->bijkl", self.q, self.k))

    def times_v(self, p: str) -> onnx.ModelProto:
        return self.done(self.einsum("bijkl,bkle->bije", p, self.v), B, I, J, E)

    def reduced(self, kind: str, x: str, axes: tuple[int, ...] = BOTH, keep: int = 1) -> str:
        if self.opset >= 18 or (kind == "ReduceSum" and self.opset >= 13):
            return self.op(kind, x, self.const(axes, np.int64), keepdims=keep)
        return self.op(kind, x, axes=list(axes), keepdims=keep)

    def by_log(self, x: str, axes: tuple[int, ...] = BOTH) -> str:
        return self.op("Exp", self.op("Sub", x, self.reduced("ReduceLogSumExp", x, axes)))

    def spelled_out(self, x: str, top: tuple[int, ...] = BOTH, total: tuple[int, ...] = BOTH) -> str:
        e = self.op("Exp", self.op("Sub", x, self.reduced("ReduceMax", x, top)))
        return self.op("Div", e, self.reduced("ReduceSum", e, total))

    def keep(self, *shape: int) -> str:
        return self.input("mask", list(shape), T.BOOL)

    def masked(self, keep: str) -> str:
        return self.op("Where", keep, self.scores(), self.const(-np.inf))


@match
def log_sum_exp() -> onnx.ModelProto:
    """jnp.exp(s - jax.nn.logsumexp(s, axis=(-2, -1)))."""
    g = Images()
    return g.times_v(g.by_log(g.scores()))


@match
def axes_from_the_front() -> onnx.ModelProto:
    g = Images(17)
    return g.times_v(g.by_log(g.scores(), (4, 3)))


def of_heads(mask: str = "", opset: int = 18) -> Builder:
    """Keras's MultiHeadAttention with two attention axes."""

    def build() -> onnx.ModelProto:
        g = Images(opset, heads=(H,))
        score = g.einsum("afgde,abcde->adbcfg", g.k, g.scaled(g.q))
        if mask == "all":
            score = g.op("Where", g.keep(B, 1, I, J, K, L), score, g.const(-np.inf))
        elif mask == "bias":
            score = g.op("Add", score, g.input("mask", [H, I, J, K, L]))
        elif mask == "keys":
            score = g.op("Where", g.keep(B, 1, 1, 1, K, L), score, g.const(-3.4028235e38))
        p = g.spelled_out(score) if mask else g.by_log(score)
        return g.done(g.einsum("adbcfg,afgde->abcde", p, g.v), B, I, J, H, E)

    return build


MATCH |= {f"heads_{mask or 'plain'}": of_heads(mask) for mask in ("", "all", "bias", "keys")}


@match
def spelled_out() -> onnx.ModelProto:
    g = Images()
    return g.times_v(g.spelled_out(g.scores()))


@match
def spelled_out_in_opset_13() -> onnx.ModelProto:
    g = Images(13)
    return g.times_v(g.spelled_out(g.scores()))


@match
def axes_put_back_by_unsqueeze() -> onnx.ModelProto:
    g = Images()
    score = g.scores()
    e = g.op("Exp", g.op("Sub", score, g.unsqueeze(g.reduced("ReduceMax", score, BOTH, 0), 3, 4)))
    return g.times_v(g.op("Div", e, g.unsqueeze(g.reduced("ReduceSum", e, BOTH, 0), 3, 4)))


@match
def softmax_of_merged_axes() -> onnx.ModelProto:
    """torch.softmax(s.flatten(-2), -1).view_as(s)."""
    g = Images()
    p = g.softmax(g.reshape(g.scores(), B, I, J, K * L))
    return g.times_v(g.reshape(p, B, I, J, K, L))


@match
def softmax_of_opset_12() -> onnx.ModelProto:
    """There it is over all axes from the one named on."""
    g = Images(12)
    return g.times_v(g.op("Softmax", g.scores(), axis=3))


def log_sum_exp_of_tensorflow(zero: str, dropped: str = "infinite") -> Builder:
    """tf.reduce_logsumexp takes the maximum out only where it is finite."""

    def build() -> onnx.ModelProto:
        g = Images()
        score = g.scores()
        top = g.reduced("ReduceMax", score)
        odd = g.op("Less", top, g.const(2.0))
        if dropped == "infinite":
            odd = g.op("Or", g.op("IsInf", top), g.op("IsNaN", top))
        if zero == "where":
            top = g.op("Where", g.op("Not", odd), top, g.const(0.0))
        elif zero == "abs":
            top = g.op("Where", g.op("Equal", g.op("Abs", top), g.const(np.inf)), g.const(0.0), top)
        else:
            kept = g.op("Mul", g.op("Cast", g.op("Not", odd), to=T.FLOAT), top)
            top = g.op("Add", kept, g.op("Mul", g.const(0.0), g.op("Cast", odd, to=T.FLOAT)))
        log = g.op("Log", g.reduced("ReduceSum", g.op("Exp", g.op("Sub", score, top))))
        return g.times_v(g.op("Exp", g.op("Sub", score, g.op("Add", log, top))))

    return build


MATCH |= {f"maximum_or_zero_by_{x}": log_sum_exp_of_tensorflow(x) for x in ("where", "abs", "sums")}
REFUSE["maximum_or_zero_where_it_is_small"] = (
    log_sum_exp_of_tensorflow("where", "small"),
    "is in no known spelling, or not that of the rows",
)


@match
def keys_masked() -> onnx.ModelProto:
    g = Images()
    return g.times_v(g.spelled_out(g.masked(g.keep(B, 1, 1, K, L))))


@match
def columns_masked() -> onnx.ModelProto:
    """A mask of one of the two axes."""
    g = Images()
    return g.times_v(g.spelled_out(g.masked(g.keep(B, 1, 1, 1, L))))


@match
def rows_guarded() -> onnx.ModelProto:
    g = Images()
    p = g.spelled_out(g.masked(g.keep(B, I, J, K, L)))
    return g.times_v(g.op("Where", g.op("IsNaN", p), g.const(0.0), p))


@match
def rows_guarded_by_their_maximum() -> onnx.ModelProto:
    g = Images()
    score = g.masked(g.keep(B, I, J, K, L))
    empty = g.op("Equal", g.reduced("ReduceMax", score), g.const(-np.inf))
    return g.times_v(g.op("Where", empty, g.const(0.0), g.spelled_out(score)))


@match
def values_per_key() -> onnx.ModelProto:
    g = Images()
    return g.times_v(g.op("Mul", g.by_log(g.scores()), g.input("factor", [K, L])))


@match
def one_axis_of_queries() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, H, J, D), (B, H, K, L, D), (B, H, K, L, E))
    score = g.scaled(g.einsum("bhqd,bhkld->bhqkl", q, k))
    p = g.op("Exp", g.op("Sub", score, g.op("ReduceLogSumExp", score, g.const(BOTH, np.int64))))
    return g.done(g.einsum("bhqkl,bhkle->bhqe", p, v), B, H, J, E)


@match
def keys_before_queries() -> onnx.ModelProto:
    g = Images()
    score = g.scaled(g.einsum("bijd,bkld->bklij", g.q, g.k))
    return g.done(g.einsum("bklij,bkle->bije", g.by_log(score, (1, 2)), g.v), B, I, J, E)


@match
def axes_apart_and_in_another_order() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, I, J, D), (B, K, L, D), (B, L, K, E))
    score = g.op("Add", g.scaled(g.einsum("bijd,bkld->bkilj", q, k)), g.input("mask_bias", [K, 1, L, J]))
    e, axes = g.op("Exp", score), g.const([1, 3], np.int64)
    return g.done(g.einsum("bkilj,blke->bjie", g.op("Div", e, g.op("ReduceSum", e, axes)), v), B, J, I, E)


@match
def three_axes() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, I, J, 2, D), (B, K, L, 3, D), (B, K, L, 3, E))
    score = g.scaled(g.einsum("bijnd,bklmd->bijnklm", q, k))
    p = g.op("Exp", g.op("Sub", score, g.op("ReduceLogSumExp", score, g.const([4, 5, 6], np.int64))))
    return g.done(g.einsum("bijnklm,bklme->bijne", p, v), B, I, J, 2, E)


@match
def one_row_of_keys() -> onnx.ModelProto:
    g = Layout(18)
    q, k, v = qkv(g, (B, I, J, D), (B, 1, L, D), (B, 1, L, E))
    score = g.scaled(g.einsum("bijd,bkld->bijkl", q, k))
    p = g.op("Exp", g.op("Sub", score, g.op("ReduceLogSumExp", score, g.const(BOTH, np.int64))))
    return g.done(g.einsum("bijkl,bkle->bije", p, v), B, I, J, E)


@match
def log_sum_exp_is_read() -> onnx.ModelProto:
    g = Images()
    score = g.scores()
    log = g.reduced("ReduceLogSumExp", score)
    out = g.einsum("bijkl,bkle->bije", g.op("Exp", g.op("Sub", score, log)), g.v)
    return g.done(g.op("Add", out, g.squeeze(log, 4)), B, I, J, E)


@match
def known_at_run_time() -> onnx.ModelProto:
    g = Dynamic(18)
    q, k, v = qkv(g, ("b", "i", "j", H, D), ("b", "k", "l", H, D), ("b", "k", "l", H, E))
    score = g.scaled(g.einsum("bijhd,bklhd->bhijkl", q, k))
    score = g.op("Add", score, g.input("mask", ["b", 1, 1, 1, "k", "l"]))
    e = g.op("Exp", g.op("Sub", score, g.op("ReduceMax", score, g.const(BOTH, np.int64))))
    p = g.op("Div", e, g.op("ReduceSum", e, g.const(BOTH, np.int64)))
    return g.done(g.einsum("bhijkl,bklhe->bijhe", p, v), "b", "i", "j", H, E)


@refuse("the softmax is over more axes than the product with V sums over")
def product_over_one_axis() -> onnx.ModelProto:
    g = Images()
    p = g.by_log(g.scores())
    return g.done(g.einsum("bijkl,bkle->bijke", p, g.v), B, I, J, K, E)


@refuse("sums over another axis than the keys")
def softmax_over_one_axis() -> onnx.ModelProto:
    g = Images()
    return g.times_v(g.by_log(g.scores(), (-1,)))


@refuse("over keys and over another axis too")
def softmax_over_queries_and_keys() -> onnx.ModelProto:
    g = Images()
    return g.times_v(g.by_log(g.scores(), (2, 3)))


@refuse("over keys and over another axis too")
def softmax_of_opset_12_over_queries_too() -> onnx.ModelProto:
    g = Images(12)
    return g.times_v(g.op("Softmax", g.scores(), axis=2))


@refuse("computed from the scores")
def maximum_over_one_axis() -> onnx.ModelProto:
    """exp(s - max(s, -1)) / sum(..., (-2, -1)): each row of keys loses another maximum."""
    g = Images()
    return g.times_v(g.spelled_out(g.scores(), top=(-1,)))


@refuse("sums over another axis than the keys")
def sum_over_one_axis() -> onnx.ModelProto:
    g = Images()
    return g.times_v(g.spelled_out(g.scores(), total=(-1,)))
