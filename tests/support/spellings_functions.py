"""Pieces of the function body that onnx gives for its Attention op, as a local function or inlined."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h

from tests.support.spellings_asked import scores
from tests.support.spellings_layout import B, Dynamic, E, H, Layout, N, S, feeds

__all__ = ["MATCH", "REFUSE", "feeds"]

MATCH: dict[str, Callable[[], onnx.ModelProto]] = {}
REFUSE: dict[str, Callable[[], onnx.ModelProto]] = {}
WHOLE: list[int | str] = [B, H, S, N]


def match(build: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    MATCH[build.__name__] = build
    return build


def refuse(build: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    REFUSE[build.__name__] = build
    return build


def guarded(g: Layout, p: str, bias: str) -> str:
    """Rows whose bias is -inf throughout become zero."""
    top = g.op("ReduceMax", bias, g.const([-1], np.int64))
    empty = g.op("Equal", top, g.op("CastLike", g.const([-np.inf]), bias))
    return g.op("Where", empty, g.op("CastLike", g.const([0.0]), p), p)


def showing(g: Layout, out: str, shown: str, dims: list[int | str] = WHOLE, kind: int = T.FLOAT) -> onnx.ModelProto:
    g.nodes.append(h.make_node("Identity", [out], ["o"], name="out"))
    g.nodes.append(h.make_node("Identity", [shown], ["shown"], name="shown"))
    return g.model({"o": ([B, H, S, E], T.FLOAT), "shown": (dims, kind)})


@match
def causal_bias_that_casts_like_itself() -> onnx.ModelProto:
    g = Dynamic(18)
    score, v = scores(g)
    length = g.op("Concat", *(g.op("Shape", x, start=2, end=3) for x in "qk"), axis=0)
    rows, keys = (
        g.op("Range", g.const(0, np.int64), g.op("Gather", length, g.const(i, np.int64)), g.const(1, np.int64))
        for i in (0, 1)
    )
    ahead = g.op("Less", g.unsqueeze(rows, 1), g.unsqueeze(keys, 0))
    bias = g.op("ConstantOfShape", length)
    bias = g.op("Add", bias, g.op("CastLike", g.op("Where", ahead, g.const([-np.inf]), g.const([0.0])), bias))
    p = guarded(g, g.softmax(g.op("Add", score, bias)), bias)
    return g.done(g.op("MatMul", p, v), "b", H, "s", E)


@match
def scores_before_the_mask_shown() -> onnx.ModelProto:
    g = Layout(18)
    score, v = scores(g, dynamic=False)
    p = g.softmax(g.op("Add", score, g.input("mask", [S, N])))
    return showing(g, g.op("MatMul", p, v), score)


@match
def scores_behind_the_mask_shown_in_f16() -> onnx.ModelProto:
    g = Layout(18)
    score, v = scores(g, dynamic=False)
    masked = g.op("Add", score, g.input("mask", [S, N]))
    p = guarded(g, g.softmax(masked), "mask")
    return showing(g, g.op("MatMul", p, v), g.op("Cast", masked, to=T.FLOAT16), kind=T.FLOAT16)


@match
def capped_scores_of_one_head_shown() -> onnx.ModelProto:
    g = Layout(18)
    score, v = scores(g, dynamic=False)
    capped = g.op("Mul", g.op("Tanh", g.op("Div", score, g.const(5.0))), g.const(5.0))
    p = g.softmax(g.op("Add", capped, g.input("mask", [S, N])))
    return showing(g, g.op("MatMul", p, v), g.op("Gather", capped, g.const(1, np.int64), axis=1), [B, S, N])


@match
def probabilities_behind_the_guard_shown() -> onnx.ModelProto:
    g = Layout(18)
    score, v = scores(g, dynamic=False)
    p = guarded(g, g.softmax(g.op("Add", score, g.input("mask", [S, N]))), "mask")
    return showing(g, g.op("MatMul", p, v), p)


@match
def probabilities_before_and_behind_the_guard_shown() -> onnx.ModelProto:
    g = Layout(18)
    score, v = scores(g, dynamic=False)
    p = g.softmax(g.op("Add", score, g.input("mask", [S, N])))
    rows = guarded(g, p, "mask")
    return showing(g, g.op("MatMul", rows, v), g.op("Concat", p, rows, axis=1), [B, 2 * H, S, N])


@match
def probabilities_times_a_number_per_row_shown() -> onnx.ModelProto:
    g = Layout(18)
    score, v = scores(g, dynamic=False)
    p = g.op("Mul", g.softmax(score), g.input("gate", [B, H, S, 1]))
    return showing(g, g.op("MatMul", p, v), p)


@refuse
def scores_shown_and_computed_with() -> onnx.ModelProto:
    g = Layout(18)
    score, v = scores(g, dynamic=False)
    g.nodes.append(h.make_node("Identity", [score], ["scores"], name="scores"))
    out, positive = g.op("MatMul", g.softmax(score), v), g.op("Relu", score)
    g.nodes += [h.make_node("Identity", [out], ["o"]), h.make_node("Identity", [positive], ["shown"])]
    outs: dict[str, tuple[list[int | str], int]] = {"o": ([B, H, S, E], T.FLOAT)}
    return g.model(outs | {"scores": (WHOLE, T.FLOAT), "shown": (WHOLE, T.FLOAT)})


def _scores_of_an_if(choose: Callable[[Layout, str], str]) -> onnx.ModelProto:
    g = Layout(18)
    score, v = scores(g, dynamic=False)
    condition = choose(g, v)
    branches = [
        h.make_graph([h.make_node(op, [score], [op])], op, [], [h.make_tensor_value_info(op, T.FLOAT, WHOLE)])
        for op in ("Neg", "Abs")
    ]
    made = g.op("If", condition, then_branch=branches[0], else_branch=branches[1])
    return g.done(g.op("MatMul", g.softmax(made), v), B, H, S, E)


@refuse
def scores_that_an_input_chooses() -> onnx.ModelProto:
    return _scores_of_an_if(lambda g, v: g.input("c", [], T.BOOL))


@match
def scores_that_a_guard_against_empty_arrays_chooses() -> onnx.ModelProto:
    return _scores_of_an_if(lambda g, v: g.op("Equal", g.op("Size", v), g.const(0, np.int64)))


@refuse
def scores_that_values_choose() -> onnx.ModelProto:
    return _scores_of_an_if(lambda g, v: g.op("Greater", g.op("ReduceMax", v, keepdims=0), g.const(0.0)))


@refuse
def largest_shown_score_of_a_key() -> onnx.ModelProto:
    g = Layout(18)
    score, v = scores(g, dynamic=False)
    top = g.op("ReduceMax", score, g.const([2], np.int64), keepdims=0)
    return showing(g, g.op("MatMul", g.softmax(score), v), top, [B, H, N])


@refuse
def probabilities_times_a_number_per_key_shown() -> onnx.ModelProto:
    g = Layout(18)
    score, v = scores(g, dynamic=False)
    p = g.op("Mul", g.softmax(score), g.input("gate", [N]))
    return showing(g, g.op("MatMul", p, v), p)


@refuse
def probabilities_whose_rows_and_keys_are_set_to_zero_shown() -> onnx.ModelProto:
    g = Layout(18)
    score, v = scores(g, dynamic=False)
    keep = g.input("keep", [B, 1, S, N], T.BOOL)
    p = g.softmax(g.op("Where", keep, score, g.const(-np.inf)))
    p = g.op("Where", keep, p, g.const(0.0))
    p = g.op("Mul", p, g.input("gate", [B, H, S, 1]))
    return showing(g, g.op("MatMul", p, v), p)
