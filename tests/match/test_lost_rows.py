"""Rows of which a spelling of the softmax loses something: what the exponentials of a log-sum-exp or a NaN become behind it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from onnx_fa.forms.rewrite import rewrite
from tests.match.test_soundness import B, D, H, L, S, Site, assert_equal, assert_refused
from tests.support.ort_run import run


def _by_log_sum_exp(g: Site, score: str) -> str:
    return g.op("Exp", g.op("Sub", score, g.op("ReduceLogSumExp", score, g.i([-1]))))


@pytest.mark.parametrize("way", ["where", "added", "product", "input"])
def test_a_row_that_a_number_masks_throughout_has_lost_its_log_sum_exp(way: str) -> None:
    """Each of its probabilities is exp(-1e38 - -1e38), so that the model sums up V where a softmax takes the mean."""
    g = Site()
    keep, score = g.input("m", [B, 1, S, L], T.BOOL), g.score()
    if way == "where":
        score = g.keep(keep, score, -1e38)
    elif way == "added":
        score = g.op("Add", score, g.op("Where", keep, g.const(0.0), g.const(-1e9)))
    elif way == "product":
        score = g.op("Sub", score, g.op("Mul", g.op("Cast", keep, to=T.FLOAT), g.const(1e4)))
    else:
        score = g.op("Add", score, g.input("bias", [1, H, S, L]))
    model = g.finish(_by_log_sum_exp(g, score))
    assert_refused(model, "probabilities by a log-sum-exp")
    if way == "where":
        feeds = {
            "m": np.zeros((B, 1, S, L), bool),
            **{n: np.ones((B, H, S if n == "q" else L, D), np.float32) for n in "qkv"},
        }
        np.testing.assert_array_equal(run(model, feeds)[0], L)


@pytest.mark.parametrize(
    ("kind", "fill", "lost"), [(T.BFLOAT16, -9984, True), (T.FLOAT16, -1000, True), (T.FLOAT16, -30, False)]
)
def test_a_log_sum_exp_of_few_digits_is_lost_sooner(kind: int, fill: float, lost: bool) -> None:
    """Of -9984 in bf16 the next numbers are 64 away, of -1000 in f16 a half, and log(Skv) is less."""
    values = h.make_tensor("fill", kind, [], [fill])
    nodes = [
        h.make_node("MatMul", ["q", "k"], ["s"]),
        h.make_node("Where", ["m", "s", "fill"], ["masked"]),
        h.make_node("ReduceLogSumExp", ["masked"], ["l"], axes=[-1], keepdims=1),
        h.make_node("Sub", ["masked", "l"], ["less"]),
        h.make_node("Exp", ["less"], ["p"]),
        h.make_node("MatMul", ["p", "v"], ["o"]),
    ]
    shapes = {"q": [B, H, S, D], "k": [B, H, D, L], "v": [B, H, L, D], "o": [B, H, S, D]}
    infos = [h.make_tensor_value_info(n, kind, shape) for n, shape in shapes.items()]
    keep = h.make_tensor_value_info("m", T.BOOL, [S, L])
    graph = h.make_graph(nodes, "g", [*infos[:3], keep], infos[3:], [values])
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=10)
    if lost:
        assert_refused(model, "probabilities by a log-sum-exp")
    else:
        assert rewrite(model, "decomposed")[1].sites


@pytest.mark.parametrize("way", ["infinite", "causal", "bias"])
def test_by_a_log_sum_exp_that_is_kept(way: str) -> None:
    g = Site()
    score = g.score()
    if way == "infinite":
        score = g.keep(g.input("m", [B, 1, S, L], T.BOOL), score)
    elif way == "causal":
        score = g.keep(g.op("LessOrEqual", g.positions(L, 0), g.positions(S, 1)), score, -1e9)
    else:
        score = g.op("Add", score, g.const(np.random.default_rng(0).standard_normal((H, S, L))))
    assert_equal(g.finish(_by_log_sum_exp(g, score)))


def _renormalised(g: Site) -> str:
    masked = g.op("Mul", g.op("Softmax", g.score(), axis=-1), g.op("Cast", g.input("m", [S, L], T.BOOL), to=T.FLOAT))
    return g.op("Div", masked, g.op("ReduceSum", masked, g.i([-1])))


def _without_maximum(g: Site) -> str:
    e = g.op("Exp", g.score())
    return g.op("Div", e, g.op("ReduceSum", e, g.i([-1])))


def _guarded(g: Site, x: str) -> str:
    return g.op("Where", g.op("IsNaN", x), g.const(0.0), x)


def _quantised(g: Site, x: str) -> str:
    grid = g.const(1 / 255), g.const(0, np.uint8)
    return g.op("DequantizeLinear", g.op("QuantizeLinear", x, *grid), *grid)


def _as_integers(g: Site, x: str) -> str:
    return g.op("Cast", g.op("Cast", x, to=T.INT32), to=T.FLOAT)


def _compared(g: Site, x: str) -> str:
    return g.op("Cast", g.op("Less", x, g.const(0.5)), to=T.FLOAT)


@pytest.mark.parametrize("probabilities", [_renormalised, _without_maximum])
@pytest.mark.parametrize("asks", [_guarded, _quantised, _as_integers, _compared])
@pytest.mark.parametrize("behind", [False, True])
def test_a_nan_of_the_spelling_that_the_model_asks_for(probabilities: object, asks: object, behind: bool) -> None:
    """Where all visible keys underflow the model has 0 / 0, and then a number of its own."""
    g = Site()
    assert callable(probabilities) and callable(asks)
    p = probabilities(g)
    if not behind:
        assert_refused(g.finish(asks(g, p)), "")
        return
    out = g.op("Mul", g.op("MatMul", p, g.v), g.const(3.0))
    g.nodes.append(h.make_node("Identity", [asks(g, out)], ["o"]))
    assert_refused(g.model({"o": ([B, H, S, D], T.FLOAT)}), "behind the attention tells the NaN of that from a number")


@pytest.mark.parametrize("asks", [_guarded, _compared])
def test_a_guard_of_a_plain_softmax(asks: object) -> None:
    g = Site()
    assert callable(asks)
    keep = g.input("m", [B, 1, S, L], T.BOOL)
    out = g.op("MatMul", g.op("Softmax", g.keep(keep, g.score()), axis=-1), g.v)
    g.nodes.append(h.make_node("Identity", [asks(g, out)], ["o"]))
    assert_equal(g.model({"o": ([B, H, S, D], T.FLOAT)}))


def test_rows_of_nan_are_rounded_alike() -> None:
    """A score of infinity makes a row NaN, of which QuantizeLinear makes the integer 0, with a zero point of 128 as without one."""
    g = Site()
    p = g.op("Softmax", g.op("Add", g.score(), g.input("bias", [S, L])), axis=-1)
    grid = g.const(0.05), g.const(128, np.uint8)
    model = g.finish(g.op("DequantizeLinear", g.op("QuantizeLinear", p, *grid), *grid))
    rng = np.random.default_rng(0)
    feeds = {n: np.float32(rng.standard_normal((B, H, S if n == "q" else L, D))) for n in "qkv"}
    feeds["bias"] = np.zeros((S, L), np.float32)
    feeds["bias"][1, 2] = np.inf
    want = run(model, feeds)[0]
    np.testing.assert_allclose(want[:, :, 1], -6.4 * feeds["v"].sum(-2), rtol=1e-4)
    for form in ("decomposed", "blocked"):
        new, report = rewrite(model, form)
        assert report.sites
        np.testing.assert_allclose(run(new, feeds)[0][:, :, 1], want[:, :, 1], rtol=1e-4)


def _double(factor: float) -> onnx.ModelProto:
    nodes = [
        h.make_node("Mul", ["q", "scale"], ["scaled"]),
        h.make_node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        h.make_node("MatMul", ["scaled", "kt"], ["s"]),
        h.make_node("Softmax", ["s"], ["p"], axis=-1),
        h.make_node("MatMul", ["p", "v"], ["o"]),
    ]
    infos = [h.make_tensor_value_info(n, T.DOUBLE, [B, H, S if n in "qo" else L, D]) for n in "qkvo"]
    scale = h.make_tensor("scale", T.DOUBLE, [1], [factor])
    graph = h.make_graph(nodes, "g", infos[:3], infos[3:], [scale])
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 23)], ir_version=10)


@pytest.mark.parametrize("form", ["decomposed", "blocked", "attention"])
@pytest.mark.parametrize("optimise", [False, True])
def test_a_scale_of_float64_stays_one(form: str, optimise: bool) -> None:
    """Neither an attribute of the op nor onnxruntime's optimiser makes a float32 of it."""
    model = _double(0.3)
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal((B, H, S if n == "q" else L, D)) for n in "qkv"}
    want = run(model, feeds, optimise=False)[0]
    new, report = rewrite(model, form)  # type: ignore[call-overload]
    assert report.sites
    np.testing.assert_allclose(run(new, feeds, optimise=optimise)[0], want, rtol=1e-12, atol=1e-13)


def test_causal_is_yes_or_no() -> None:
    infos = [h.make_tensor_value_info(n, T.FLOAT, [B, H, S if n in "qo" else L, D]) for n in "qkvo"]
    node = h.make_node("Attention", ["q", "k", "v"], ["o"], is_causal=2)
    graph = h.make_graph([node], "g", infos[:3], infos[3:])
    assert_refused(h.make_model(graph, opset_imports=[h.make_opsetid("", 23)], ir_version=10), "is_causal 2")
