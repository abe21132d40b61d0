"""Graphs near a spelling that is known, which it does not mean: they are refused, or their rewrite equals them all the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from onnx_fa.forms.replace import Form
from onnx_fa.forms.rewrite import explain, rewrite
from onnx_fa.spec.terms import Causal
from tests.support.ort_run import assert_same, run
from tests.support.spellings import Graph

B, H, S, L, D = 2, 3, 6, 8, 4
LOWEST = float(np.finfo(np.float32).min)
INF = float("inf")


class Site(Graph):
    """q (B, H, S, D), k and v (B, H, L, D)."""

    def __init__(self, opset: int = 18, batch: int = B) -> None:
        super().__init__(opset)
        self.q = self.input("q", [batch, H, S, D])
        self.k, self.v = (self.input(n, [batch, H, L, D]) for n in "kv")

    def score(self) -> str:
        return self.op("MatMul", self.q, self.op("Transpose", self.k, perm=[0, 1, 3, 2]))

    def i(self, x: object) -> str:
        return self.const(x, np.int64)

    def positions(self, length: int, axis: int, dtype: type = np.int64) -> str:
        ends = (self.const(x, dtype) for x in (0, length, 1))
        return self.op("Unsqueeze", self.op("Range", *ends), self.i([axis]))

    def keep(self, condition: str, score: str, fill: float = -INF) -> str:
        return self.op("Where", condition, score, self.const(fill))

    def finish(self, prob: str, batch: int = B) -> onnx.ModelProto:
        self.nodes.append(h.make_node("MatMul", [prob, self.v], ["o"], name="pv"))
        return self.model({"o": ([batch, H, S, D], T.FLOAT)})

    def softmax(self, score: str) -> onnx.ModelProto:
        return self.finish(self.op("Softmax", score, axis=3))


def _feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Some rows without keys, some scores far below the others, one query that is NaN."""
    rng = np.random.default_rng(0)
    feeds: dict[str, np.ndarray] = {}
    for i in model.graph.input:
        shape = [d.dim_value for d in i.type.tensor_type.shape.dim]
        if i.type.tensor_type.elem_type == T.BOOL:
            feeds[i.name] = rng.random(shape) < 0.6
            feeds[i.name][0, ..., 0, :] = False
        else:
            feeds[i.name] = np.asarray(rng.standard_normal(shape), np.float32)
    feeds["q"][0, 1] *= 30
    feeds["q"][-1, 0, 1] = np.nan
    return feeds


def assert_equal(model: onnx.ModelProto) -> None:
    """Both forms give the same numbers as the model, and NaN where it does."""
    assert explain(model).sites
    feeds = _feeds(model)
    want = run(model, feeds)[0]
    for form in ("decomposed", "blocked"):
        new, _ = rewrite(model, form)
        onnx.checker.check_model(new, full_check=True)
        have = run(new, feeds)[0]
        np.testing.assert_array_equal(np.isnan(want), np.isnan(have))
        a, b = np.nan_to_num(want), np.nan_to_num(have)
        assert np.linalg.norm(a - b) <= 2e-5 * np.linalg.norm(a)


def assert_refused(model: onnx.ModelProto, reason: str) -> None:
    report = explain(model)
    assert not report.sites and any(reason in m.reason for m in report.misses), report.misses


def test_documents_that_come_back_keep_their_number() -> None:
    ids = np.array([0, 1, 0, 2, 2, 1, 0, 1])[:S]
    g = Site()
    same = np.zeros((S, L), bool)
    same[:, :S] = ids[:, None] == ids[None, :]
    assert_equal(g.softmax(g.keep(g.const(same, bool), g.score())))
    square = Graph(18)
    q, k, v = (square.input(n, [B, H, S, D]) for n in "qkv")
    score = square.op("MatMul", q, square.op("Transpose", k, perm=[0, 1, 3, 2]))
    score = square.op("Where", square.const(ids[:, None] == ids[None, :], bool), score, square.const(-INF))
    square.nodes.append(h.make_node("MatMul", [square.op("Softmax", score, axis=-1), v], ["o"], name="pv"))
    assert_equal(square.model({"o": ([B, H, S, D], T.FLOAT)}))


def test_int32_wraps_around() -> None:
    g = Site()
    total = g.op("Add", g.positions(S, 1, np.int32), g.positions(L, 0, np.int32))
    product = g.op("Mul", total, g.const(2**29, np.int32))  # negative from 4 on
    assert_equal(g.softmax(g.keep(g.op("LessOrEqual", g.const(0, np.int32), product), g.score())))


def test_uint8_wraps_around() -> None:
    g = Site()
    lower = g.op("LessOrEqual", g.positions(L, 0), g.positions(S, 1))
    byte = g.op("Cast", g.op("Where", lower, g.i(-1), g.i(7)), to=T.UINT8)
    assert_equal(g.softmax(g.keep(g.op("Equal", g.op("Cast", byte, to=T.INT64), g.i(255)), g.score())))


@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_a_fill_that_a_factor_makes_infinite(factor: float) -> None:
    g = Site()
    masked = g.keep(g.input("mask", [B, 1, S, L], T.BOOL), g.score(), LOWEST)
    assert_equal(g.softmax(g.op("Mul", masked, g.const(factor))))


@pytest.mark.parametrize(("scale", "spelled"), [(1e38, float(np.float32(-1e38))), (8.0, -INF), (0.1, -INF)])
def test_a_causal_fill_is_infinite_where_scores_stay_above_it(scale: float, spelled: float) -> None:
    """Scores as large as the fill may be below it, and then the row is that of the keys which the mask hides."""
    g = Site()
    lower = g.op("LessOrEqual", g.positions(L, 0), g.positions(S, 1))
    model = g.softmax(g.keep(lower, g.op("Mul", g.score(), g.const(scale)), -1e38))
    (mask,) = explain(model).sites[0].spec.masks
    assert isinstance(mask, Causal) and mask.fill == spelled
    rng = np.random.default_rng(0)
    feeds = {
        i.name: np.float32(rng.uniform(-0.5, 0.5, (B, H, S if i.name == "q" else L, D))) for i in model.graph.input
    }
    want = run(model, feeds)
    for form in ("decomposed", "blocked"):
        assert_same(want, run(rewrite(model, form)[0], feeds), 2e-5)


@pytest.mark.parametrize("kind", ["Add", "Max"])
def test_a_small_number_matters_beside_a_sum_below_the_overall_maximum(kind: str) -> None:
    g = Site()
    score = g.score()
    e = g.op("Exp", g.op("Sub", score, g.op("ReduceMax", score, g.i([0, 1, 2, 3]))))
    total = g.op(kind, g.op("ReduceSum", e, g.i([-1])), g.const(1e-8))
    assert_refused(g.finish(g.op("Div", e, total)), "computed from the scores")


def test_one_more_logit_beside_scores_less_their_maximum_is_not_one_beside_the_scores() -> None:
    """exp(0) in the sum is as large as the largest exponential of such scores, whatever the scores are."""
    g = Site()
    score = g.score()
    below = g.op("Sub", score, g.op("ReduceMax", score, g.i([-1])))
    top = g.op("ReduceMax", below, g.i([-1]))
    e = g.op("Exp", g.op("Sub", below, top))
    total = g.op("Add", g.op("ReduceSum", e, g.i([-1])), g.op("Exp", g.op("Neg", top)))
    assert_refused(g.finish(g.op("Div", e, total)), "computed from the scores")


@pytest.mark.parametrize("test", ["IsNaN", "IsInf"])
def test_a_guard_that_broadcasts_the_probabilities(test: str) -> None:
    g = Site(batch=1)
    p = g.op("Softmax", g.score(), axis=-1)
    p = g.op("Where", g.op(test, p), g.const(np.zeros((2, 1, 1, 1))), p)
    assert_refused(g.finish(p, batch=2), "read by several nodes")


@pytest.mark.parametrize("order", ["guard first", "mask first"])
def test_a_guard_for_nan_beside_a_mask_on_the_probabilities(order: str) -> None:
    g = Site()
    mask, zero = g.input("mask", [B, 1, S, L], T.BOOL), g.const(0.0)
    layers: list[Callable[[str], str]] = [
        lambda p: g.op("Where", g.op("IsNaN", p), zero, p),
        lambda p: g.op("Where", mask, p, zero),
    ]
    p = g.op("Softmax", g.keep(mask, g.score()), axis=-1)
    for layer in layers if order == "guard first" else layers[::-1]:
        p = layer(p)
    assert_equal(g.finish(p))


OLD: dict[str, Callable[[Site], str]] = {
    "plain": lambda g: g.score(),
    "causal": lambda g: g.op("Add", g.score(), g.const(np.where(np.tri(S, L), 0, -INF))),
    "slopes": lambda g: g.op("Add", g.score(), g.const(np.arange(L)[None] * 0.5 - np.arange(S)[:, None] * 0.5)),
    "leaky": lambda g: g.op("LeakyRelu", g.score(), alpha=0.2),
    "clip": lambda g: g.op("Clip", g.score(), min=-1.0, max=1.0),
}


@pytest.mark.parametrize("opset", [7, 8, 9, 10])
@pytest.mark.parametrize("name", OLD)
def test_a_form_that_an_old_opset_has_no_ops_for_is_refused(name: str, opset: int) -> None:
    g = Site(opset)
    model = g.softmax(OLD[name](g))
    assert_equal(model)
    _, report = rewrite(model, "blocked")
    (miss,) = report.misses
    assert f"a model of opset {opset} has no " in miss.reason and not report.sites


@pytest.mark.parametrize("opset", [9, 10, 11])
def test_zero_for_rows_without_keys_needs_equal_of_floats(opset: int) -> None:
    g = Site(opset)
    mask = g.input("mask", [B, 1, S, L], T.BOOL)
    p = g.op("Softmax", g.keep(mask, g.score()), axis=3)
    model = g.finish(g.op("Where", mask, p, g.const(0.0)))
    assert_equal(model)
    _, report = rewrite(model)
    assert len(report.sites) == (opset == 11) and len(report.misses) == (opset < 11)


def _fused(g: Site, q: str, k: str, alpha: float) -> str:
    return g.op("FusedMatMul", q, k, transB=1, alpha=alpha, domain="com.microsoft")


@pytest.mark.parametrize(("first", "second"), [(0.5, 0.4), (0.5, 1.0), (1.0, 0.25), (-0.5, 2.0)])
@pytest.mark.parametrize("sign", ["Add", "Sub"])
def test_products_with_factors_of_their_own_that_are_added(first: float, second: float, sign: str) -> None:
    g = Site()
    more = [g.input(n, [B, H, length, 3]) for n, length in (("q2", S), ("k2", L))]
    score = g.op(sign, _fused(g, g.q, g.k, first), _fused(g, *more, second))
    model = g.softmax(g.op("Mul", score, g.const(0.7)))
    assert explain(model).sites[0].spec.D == D + 3
    assert_equal(model)


@pytest.mark.parametrize("other", [T.FLOAT, T.FLOAT16])
def test_products_of_different_types_are_not_joined(other: int) -> None:
    """No Concat takes both. ONNX has no such product, but a checker that looks at no types lets it pass."""
    g = Site()
    q, k = g.input("q2", [B, H, S, 3]), g.input("k2", [B, H, L, 3], other)
    more = g.op("Einsum", q, k, equation="bhid,bhjd->bhij")
    model = g.softmax(g.op("Add", g.score(), more))
    (site,) = explain(model).sites
    joined = 3 if other == T.FLOAT else 0
    assert joined + D == site.spec.D
    assert ("Concat" in [n.op_type for n in rewrite(model)[0].graph.node]) == (other == T.FLOAT)


@pytest.mark.parametrize(("alpha", "other"), [(0.5, 0.4), (0.5, 1.0)])
def test_gemms_with_factors_of_their_own_that_are_added(alpha: float, other: float) -> None:
    g = Graph(18)
    q, k, v, q2, k2 = (g.input(n, [(n[0] == "q" and S) or L, D]) for n in ("q", "k", "v", "q2", "k2"))
    score = g.op("Add", g.op("Gemm", q, k, transB=1, alpha=alpha), g.op("Gemm", q2, k2, transB=1, alpha=other))
    g.nodes.append(h.make_node("MatMul", [g.op("Softmax", score, axis=-1), v], ["o"]))
    model = g.model({"o": ([S, D], T.FLOAT)})
    assert explain(model).sites[0].spec.D == 2 * D
    feeds = {
        i.name: np.float32(np.random.default_rng(3).standard_normal((S if i.name[0] == "q" else L, D)))
        for i in g.inputs
    }
    for form in ("decomposed", "blocked"):
        assert_same(run(model, feeds), run(rewrite(model, form)[0], feeds), 2e-5)


@pytest.mark.parametrize(("beta", "zero"), [(0.5, False), (0.0, False), (0.5, True)])
def test_a_gemm_with_a_third_operand_is_a_product_only_if_that_adds_nothing(beta: float, zero: bool) -> None:
    g = Graph(18)
    q, k, v = (g.input(n, [S if n == "q" else L, D]) for n in "qkv")
    added = g.const(np.zeros((S, L))) if zero else g.input("c", [S, L])
    p = g.op("Softmax", g.op("Gemm", q, k, added, transB=1, alpha=0.3, beta=beta), axis=-1)
    g.nodes.append(h.make_node("MatMul", [p, v], ["o"]))
    model = g.model({"o": ([S, D], T.FLOAT)})
    if beta and not zero:
        assert_refused(model, "Gemm between the softmax and a matmul")
        return
    assert explain(model).sites[0].spec.scale == pytest.approx(0.3)


def test_a_second_division_behind_renormalised_exponentials() -> None:
    g = Site()
    s = g.score()
    e = g.op("Exp", g.op("Sub", s, g.op("ReduceMax", s, g.i([-1]))))
    masked = g.op("Mul", e, g.op("Cast", g.input("m", [S, L], T.BOOL), to=T.FLOAT))
    p = g.op("Div", masked, g.op("ReduceSum", masked, g.i([-1])))
    g.nodes.append(h.make_node("Div", [g.op("MatMul", p, g.v), g.op("ReduceSum", e, g.i([-1]))], ["o"]))
    assert_refused(g.model({"o": ([B, H, S, D], T.FLOAT)}), "by that of all keys")


def _dropped(change: Callable[[Site, str], str], fill: float) -> onnx.ModelProto:
    """A mask before the softmax, changed there, and the same mask on the probabilities."""
    g = Site()
    keep = g.input("m", [B, 1, S, L], T.BOOL)
    p = g.op("Softmax", change(g, g.keep(keep, g.score(), fill)), axis=-1)
    return g.finish(g.op("Where", keep, p, g.const(0.0)))


@pytest.mark.parametrize("factor", [-1.0, 0.0, 1e-30, -2.0])
def test_a_factor_between_a_mask_and_the_softmax_undoes_the_mask(factor: float) -> None:
    """A mask of finite numbers makes no row NaN, so that the second one is a weight; a negated -inf is no mask at all."""
    times = _dropped(lambda g, s: g.op("Mul", s, g.const(factor)), -1e38)
    assert explain(times).sites[0].spec.weights is not None
    assert_equal(times)
    if factor == -1.0:
        assert_refused(_dropped(lambda g, s: g.op("Neg", s), -INF), "so a masked key may have a probability")
        assert_equal(_dropped(lambda g, s: g.op("Neg", s), -1e38))
        assert_equal(_dropped(lambda g, s: g.op("Neg", g.op("Neg", s)), -1e38))


@pytest.mark.parametrize(("factor", "fill"), [(0.5, -1e38), (8.0, -1e38), (1e30, -1e10), (-0.5, 1e38), (0.1, -INF)])
def test_a_factor_between_a_mask_and_the_softmax_that_leaves_the_mask_one(factor: float, fill: float) -> None:
    assert_equal(_dropped(lambda g, s: g.op("Mul", s, g.const(factor)), fill))


@pytest.mark.parametrize("kind", ["row", "same", "any"])
def test_exponentials_are_guarded_and_their_sum_is_not(kind: str) -> None:
    """A row without keys: zero before the product with V, divided by a sum that is NaN."""
    g = Site()
    keep = g.input("m", [B, 1, S, L], T.BOOL)
    s = g.keep(keep, g.score())
    top = g.op("ReduceMax", s, g.i([-1]))
    e = g.op("Exp", g.op("Sub", s, top))
    rows = {"row": g.op("Equal", top, g.const(-INF)), "any": g.input("rows", [B, 1, S, 1], T.BOOL)}
    guarded = g.op("Where", keep, e, g.const(0.0)) if kind == "same" else g.op("Where", rows[kind], g.const(0.0), e)
    g.nodes.append(h.make_node("Div", [g.op("MatMul", guarded, g.v), g.op("ReduceSum", e, g.i([-1]))], ["o"]))
    assert_refused(g.model({"o": ([B, H, S, D], T.FLOAT)}), "sum")


@pytest.mark.parametrize(("fill", "inside"), [(-INF, False), (-1e38, True)])
def test_a_gate_does_not_make_a_number_of_a_row_without_keys(fill: float, inside: bool) -> None:
    """Where such a row is NaN, only the log-sum-exp comes from the site; the gate stays behind it."""
    g = Site()
    s = g.keep(g.input("m", [B, 1, S, L], T.BOOL), g.score(), fill)
    gate = g.op("Sigmoid", g.op("Sub", g.op("ReduceLogSumExp", s, g.i([-1])), g.input("sink", [1, H, 1, 1])))
    out = g.op("MatMul", g.op("Softmax", s, axis=-1), g.v)
    g.nodes.append(h.make_node("Mul", [out, gate], ["o"]))
    model = g.model({"o": ([B, H, S, D], T.FLOAT)})
    spec = explain(model).sites[0].spec
    assert (spec.sink is not None) == inside and spec.stats == (() if inside else ("lse",))
    assert_equal(model)


def test_renormalising_after_an_underflow_gives_the_keys_that_are_left() -> None:
    """The documented NaN that a rewrite makes a number: the probabilities of all visible keys are below the least float."""
    g = Site()
    keep = g.input("m", [S, L], T.BOOL)
    masked = g.op("Where", keep, g.op("Softmax", g.score(), axis=-1), g.const(0.0))
    model = g.finish(g.op("Div", masked, g.op("ReduceSum", masked, g.i([-1]))))
    assert explain(model).sites
    rng = np.random.default_rng(1)
    feeds = {n: np.float32(rng.standard_normal((B, H, S if n == "q" else L, D))) for n in "qkv"}
    feeds["m"] = np.arange(L)[None] != np.arange(S)[:, None]
    feeds["k"][0, 0, 0] = 1e4 * feeds["q"][0, 0, 0]  # the first query sees, but for the mask, the first key alone
    feeds["m"][1] = False
    want = run(model, feeds)[0]
    s = np.where(feeds["m"], np.float64(feeds["q"]) @ np.float64(feeds["k"]).swapaxes(-1, -2), -INF)
    with np.errstate(invalid="ignore"):
        p = np.exp(s - s.max(-1, keepdims=True))
    exact = p / p.sum(-1, keepdims=True) @ feeds["v"]
    assert np.isnan(want[0, 0, 0]).all() and np.isnan(want[:, :, 1]).all() and np.isfinite(want[1, :, 2:]).all()
    for form in ("decomposed", "blocked"):
        have = run(rewrite(model, form)[0], feeds)[0]
        np.testing.assert_array_equal(np.isnan(have), np.isnan(exact))
        np.testing.assert_allclose(have, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("between", [T.FLOAT, T.FLOAT16, T.BFLOAT16, T.INT8, T.INT64])
@pytest.mark.parametrize("optimise", [False, True])
def test_a_mask_that_was_a_number_is_read_in_a_loop(between: int, optimise: bool) -> None:
    """onnxruntime takes out casts there and back, and does not see that a Loop reads what they make."""
    g = Site()
    keep = g.input("keep", [1, 1, S, L], T.BOOL)
    model = g.softmax(g.keep(g.op("Cast", g.op("Cast", keep, to=between), to=T.BOOL), g.score()))
    feeds = _feeds(model)
    new, report = rewrite(model, "blocked")
    assert report.sites
    want, have = run(model, feeds)[0], run(new, feeds, optimise=optimise)[0]
    np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("place", ["scores", "probabilities", "values"])
def test_a_dropout_that_trains_and_drops_nothing(place: str) -> None:
    """torch's functional dropout is in training unless told otherwise."""
    g = Site()
    idle = [g.const(0.0), g.const(True, np.bool_)]
    if place == "values":
        g.v = g.op("Dropout", g.v, *idle)
    score = g.op("Dropout", g.score(), *idle) if place == "scores" else g.score()
    prob = g.op("Softmax", score, axis=3)
    assert_equal(g.finish(g.op("Dropout", prob, *idle) if place == "probabilities" else prob))


@pytest.mark.parametrize("ratio", [0.1, None])
def test_a_dropout_that_drops(ratio: float | None) -> None:
    g = Site()
    part = "" if ratio is None else g.const(ratio)
    prob = g.op("Dropout", g.op("Softmax", g.score(), axis=3), part, g.const(True, np.bool_))
    assert not explain(g.finish(prob)).sites


@pytest.mark.parametrize("op", ["Dropout", "Identity"])
def test_casts_there_and_back_before_an_op_that_does_nothing(op: str) -> None:
    """onnxruntime takes the op out first, and then the casts."""
    g = Site()
    g.v = g.op(op, g.op("Cast", g.op("Cast", g.v, to=T.DOUBLE), to=T.FLOAT))
    assert_equal(g.softmax(g.score()))


def test_a_guard_that_asks_for_the_scores_before_they_are_masked_anew() -> None:
    """A row that the new mask empties is NaN: the guard looks at a maximum that it has no part in."""
    g = Site()
    score = g.score()
    masked = g.op("Mul", g.op("Softmax", score, axis=3), g.op("Cast", g.input("keep", [S, L], T.BOOL), to=T.FLOAT))
    anew = g.op("Div", masked, g.op("ReduceSum", masked, g.i([-1]), keepdims=1))
    empty = g.op("Equal", g.op("ReduceMax", score, g.i([-1]), keepdims=1), g.const(-INF))
    report = explain(g.finish(g.op("Where", empty, g.const(0), anew)))
    assert not report.sites and "before they were masked anew" in report.misses[0].reason


@pytest.mark.parametrize("op", ["Div", "Reciprocal"])
def test_a_number_divided_by_rounded_scores(op: str) -> None:
    """The zeros of integers have one sign, those of rounded numbers two: and 1 / 0 is an infinity of that sign."""
    g = Site()
    step = [g.const(0.06), g.const(128, np.uint8)]
    rounded = g.op("DequantizeLinear", g.op("QuantizeLinear", g.score(), *step), *step)
    report = explain(g.softmax(g.op("Div", g.const(4), rounded) if op == "Div" else g.op(op, rounded)))
    assert not report.sites and "whose zeros all have the same sign" in report.misses[0].reason


@pytest.mark.parametrize("form", ["decomposed", "blocked"])
def test_a_row_without_keys_is_nan_before_it_is_rounded(form: Form) -> None:
    """And the number that it is rounded to is the model's."""
    g = Site()
    keep, step = g.input("keep", [S, L], T.BOOL), [g.const(0.004), g.const(0, np.int8)]
    p = g.op("Softmax", g.keep(keep, g.score()), axis=3)
    model = g.finish(g.op("DequantizeLinear", g.op("QuantizeLinear", p, *step), *step))
    rng = np.random.default_rng(0)
    feeds = {n: np.asarray(rng.standard_normal((B, H, x, D)), np.float32) for n, x in (("q", S), ("k", L), ("v", L))}
    feeds["keep"] = np.arange(S * L).reshape(S, L) > L
    new, report = rewrite(model, form)
    assert report.sites
    np.testing.assert_allclose(*(run(m, feeds, optimise=False)[0] for m in (new, model)), atol=0.03)


def test_a_factor_for_each_key_and_one_for_all_on_integers() -> None:
    """The product with V has a factor, and V is read as numbers because the keys have factors of theirs."""
    g = Site()
    g.v = g.op("DequantizeLinear", g.input("v8", [B, H, L, D], T.INT8), g.const(0.03), g.const(3, np.int8))
    weights = g.op("Mul", g.op("Softmax", g.score(), axis=3), g.const(np.linspace(0.5, 2, L)))
    product = h.make_node("FusedMatMul", [weights, g.v], ["o"], domain="com.microsoft", alpha=0.5)
    g.nodes.append(product)
    model = g.model({"o": ([B, H, S, D], T.FLOAT)})
    model.opset_import.append(h.make_opsetid("com.microsoft", 1))
    rng = np.random.default_rng(0)
    feeds = {n: np.asarray(rng.standard_normal((B, H, x, D)), np.float32) for n, x in (("q", S), ("k", L), ("v", L))}
    feeds["v8"] = rng.integers(-128, 127, (B, H, L, D)).astype(np.int8)
    new, report = rewrite(model, "blocked")
    assert report.sites
    feeds = {i.name: feeds[i.name] for i in model.graph.input}
    np.testing.assert_allclose(*(run(m, feeds)[0] for m in (new, model)), rtol=2e-5, atol=2e-6)


def test_a_factor_of_rows_that_is_too_large_for_q() -> None:
    """Times Q it overflows, where the scores are so small that they do not."""
    g = Site()
    model = g.softmax(g.op("Mul", g.score(), g.const([[1]] * (S - 1) + [[1e38]])))
    feeds = _feeds(model)
    feeds["q"], feeds["k"] = np.full((B, H, S, D), 30, np.float32), feeds["k"] * np.float32(1e-38)
    assert explain(model).sites
    for form in ("decomposed", "blocked"):
        new, _ = rewrite(model, form)
        np.testing.assert_allclose(*(run(m, feeds)[0] for m in (new, model)), rtol=2e-4, atol=2e-5)


def test_a_guard_of_lost_rows_behind_one_against_nan() -> None:
    """The NaN of a query stays zero, whatever else is done about rows without keys."""
    g = Site()
    score = g.keep(g.input("keep", [B, 1, S, L], T.BOOL), g.score())
    p = g.op("Softmax", score, axis=3)
    p = g.op("Where", g.op("IsNaN", p), g.const(0.0), p)
    lost = g.op("Equal", g.op("ReduceMax", score, g.i([3])), g.const(-INF))
    model = g.finish(g.op("Where", lost, g.const(0.0), p))
    assert [site.spec.empty_row for site in explain(model).sites] == ["guarded"]
    assert_equal(model)


def _factor_in_another_type(kind: int, factor: float | str) -> onnx.ModelProto:
    g = Site()
    wide = g.op("Cast", g.op("Softmax", g.score(), axis=3), to=kind)
    number = g.input(factor, [], kind) if isinstance(factor, str) else g.const(factor, h.tensor_dtype_to_np_dtype(kind))
    return g.finish(g.op("Cast", g.op("Mul", wide, number), to=T.FLOAT))


def test_a_factor_in_f64_on_probabilities() -> None:
    """It multiplies the output, which is f32."""
    assert_equal(_factor_in_another_type(T.DOUBLE, 0.3))


@pytest.mark.parametrize("factor", [1e300, 1e-300, "given"])
def test_a_factor_in_f64_that_may_be_no_number_of_f32(factor: float | str) -> None:
    report = explain(_factor_in_another_type(T.DOUBLE, factor))
    assert not report.sites and "multiplied in DOUBLE, and the output is of another type" in report.misses[0].reason


@pytest.mark.parametrize("form", ["decomposed", "blocked"])
@pytest.mark.parametrize("op", ["Dropout", "Expand", "Tile", "Gather", "Cast", "casts"])
def test_integers_behind_an_op_that_the_optimiser_looks_past(form: Form, op: str) -> None:
    """onnxruntime's optimiser removes some, and then moves the DequantizeLinear into what a Loop reads."""
    g = Graph(21)
    q, k, v = g.input("q", [S, D]), g.input("k", [L, D]), g.input("v", [L, D], T.UINT8)
    more = {"Expand": [L, D], "Tile": [1, 1], "Gather": np.arange(L)}
    numbers = g.op("DequantizeLinear", v, g.const(0.03), g.const(0, np.uint8))
    if op in ("Cast", "casts"):
        numbers = g.op("Cast", numbers, to=T.DOUBLE) if op == "casts" else numbers
        numbers = g.op("Cast", numbers, to=T.FLOAT)
    else:
        numbers = g.op(op, numbers, *([g.const(more[op], np.int64)] if op in more else []))
    p = g.op("Softmax", g.op("MatMul", q, g.op("Transpose", k, perm=[1, 0])), axis=-1)
    g.nodes.append(h.make_node("MatMul", [p, numbers], ["o"], name="pv"))
    model = g.model({"o": ([S, D], T.FLOAT)})
    new, report = rewrite(model, form)
    needed = {"o"}
    for node in reversed(new.graph.node):
        if needed & set(node.output):
            assert node.op_type != "DequantizeLinear"
            inner = [x for a in node.attribute for n in a.g.node for x in n.input]
            needed |= {*node.input, *inner}
    assert report.sites and "v" in needed
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("q", (S, D)), ("k", (L, D)))}
    feeds["v"] = rng.integers(0, 255, (L, D)).astype(np.uint8)
    np.testing.assert_allclose(run(new, feeds)[0], run(model, feeds, optimise=False)[0], rtol=2e-5, atol=2e-6)
