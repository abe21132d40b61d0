"""Graphs that ask the scores or the probabilities for their shape or type: a mask, a zero or a reshape is made of the answer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h

from tests.support.spellings_layout import B, D, Dynamic, E, H, Layout, N, S, feeds, qkv

__all__ = ["MATCH", "REFUSE", "feeds"]

MATCH: dict[str, Callable[[], onnx.ModelProto]] = {}
REFUSE: dict[str, Callable[[], onnx.ModelProto]] = {}


def match(build: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    MATCH[build.__name__] = build
    return build


def refuse(build: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    REFUSE[build.__name__] = build
    return build


def scores(g: Layout, dynamic: bool = True) -> tuple[str, str]:
    """The scores and V."""
    b, s, t = ("b", "s", "t") if dynamic else (B, S, N)
    q, k, v = qkv(g, (b, H, s, D), (b, H, t, D), (b, H, t, E))
    return g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2))), v


def length(g: Layout, x: str, axis: int) -> str:
    """A dim of `x` as a number of rank 0."""
    return g.op("Gather", g.op("Shape", x), g.const(axis, np.int64))


def causal(g: Layout, score: str) -> str:
    """The causal mask of scores, made of their own shape."""
    zero, one = g.const(0, np.int64), g.const(1, np.int64)
    rows, keys = (g.op("Range", zero, length(g, score, axis), one) for axis in (2, 3))
    keep = g.op("GreaterOrEqual", g.unsqueeze(rows, 1), g.unsqueeze(keys, 0))
    return g.op("Where", keep, score, g.const(-1e30))


@match
def a_mask_of_the_shape_of_the_scores() -> onnx.ModelProto:
    g = Dynamic(17)
    score, v = scores(g)
    return g.done(g.op("MatMul", g.softmax(causal(g, score)), v), "b", H, "s", E)


@match
def a_mask_of_the_known_shape_of_the_scores() -> onnx.ModelProto:
    g = Layout(17)
    score, v = scores(g, dynamic=False)
    return g.done(g.op("MatMul", g.softmax(causal(g, score)), v), B, H, S, E)


@match
def an_output_reshaped_as_the_probabilities_say() -> onnx.ModelProto:
    g = Dynamic(17)
    score, v = scores(g)
    p = g.softmax(score)
    dims = g.op("Slice", g.op("Shape", p), g.const([0], np.int64), g.const([1], np.int64), g.const([0], np.int64))
    out = g.op("Reshape", g.op("MatMul", p, v), g.op("Concat", dims, g.const([H, -1, E], np.int64), axis=0))
    return g.done(out, "b", H, "s", E)


@match
def a_zero_of_the_type_of_the_probabilities() -> onnx.ModelProto:
    g = Layout(19)
    score, v = scores(g, dynamic=False)
    p = g.softmax(g.op("Add", score, g.input("mask", [S, N])))
    zero = g.op("CastLike", g.const(0, np.int64), p)
    guarded = g.op("Where", g.op("IsNaN", p), zero, p)
    return g.done(g.op("MatMul", guarded, v), B, H, S, E)


@match
def a_scale_by_the_number_of_probabilities() -> onnx.ModelProto:
    g = Dynamic(17)
    score, v = scores(g)
    p = g.softmax(score)
    count = g.op("Cast", g.op("Size", p), to=T.FLOAT)
    return g.done(g.op("Div", g.op("MatMul", p, v), count), "b", H, "s", E)


@refuse
def a_subgraph_that_asks_for_the_shape_of_the_scores() -> onnx.ModelProto:
    g = Dynamic(17)
    score, v = scores(g)
    shape = h.make_node("Shape", [score], ["inner_shape"])
    other = h.make_node("Constant", [], ["inner_const"], value=h.make_tensor("", T.INT64, [4], [0, 0, 0, 0]))
    branches = [
        h.make_graph([node], name, [], [h.make_tensor_value_info(node.output[0], T.INT64, [4])])
        for name, node in (("yes", shape), ("no", other))
    ]
    asked = g.op("If", g.input("c", [], T.BOOL), then_branch=branches[0], else_branch=branches[1])
    out = g.op("MatMul", g.softmax(score), v)
    g.nodes.append(h.make_node("Identity", [asked], ["shape"], name="asked"))
    g.nodes.append(h.make_node("Identity", [out], ["o"], name="out"))
    return g.model({"o": (["b", H, "s", E], T.FLOAT), "shape": ([4], T.INT64)})
