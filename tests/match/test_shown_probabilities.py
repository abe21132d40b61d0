"""Probabilities that are an output of the model too: one site, and the probabilities beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T

from onnx_fa.forms.rewrite import explain, rewrite
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target
from tests.support.ort_run import TOLERANCE, assert_same, run
from tests.support.spellings_layout import B, D, E, H, Layout, N, S, feeds, qkv

Outputs = dict[str, tuple[list[int | str], int]]
WHOLE: list[int | str] = [B, H, S, N]
LARGE_SCORE_TOLERANCE = 2e-4


class Shown(Layout):
    """A graph whose outputs are collected."""

    def __init__(self, opset: int = 18) -> None:
        super().__init__(opset)
        self.outs: Outputs = {}

    def show(self, x: str, *dims: int | str) -> None:
        self.outs[x] = (list(dims or WHOLE), T.FLOAT)

    def scores(self, kv: int = H) -> tuple[str, str]:
        """Scaled scores, and V."""
        q, k, v = qkv(self, (B, H, S, D), (B, kv, N, D), (B, kv, N, E))
        if kv != H:
            k, v = (
                self.op("Gather", x, self.const(np.repeat(np.arange(kv), H // kv), np.int64), axis=1) for x in (k, v)
            )
        return self.scaled(self.op("MatMul", q, self.transpose(k, 0, 1, 3, 2))), v

    def keep(self) -> str:
        return self.input("mask", [B, 1, S, N], T.BOOL)

    def times(self, p: str, v: str) -> onnx.ModelProto:
        self.show(self.op("MatMul", p, v), B, H, S, E)
        return self.model(self.outs)


def _plain(fill: float | None = None, how: str = "", kv: int = H, opset: int = 18) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        g = Shown(opset)
        score, v = g.scores(kv)
        if fill is not None:
            score = g.op("Where", g.keep(), score, g.const(fill))
        if how == "bias":
            score = g.op("Add", score, g.input("mask", [B, 1, S, N]))
        p = g.softmax(score)
        if how == "guarded":
            p = g.op("Where", g.op("IsNaN", p), g.const(0.0), p)
        if how == "lost rows":
            top = g.op("ReduceMax", score, g.const([-1], np.int64))
            p = g.op("Where", g.op("Equal", top, g.const(-np.inf)), g.const(0.0), p)
        if how.startswith("set to zero"):
            keep = "mask" if "keeps" in how else g.op("Not", "mask")
            p = g.op("Where", keep, *((p, g.const(0.0)) if "keeps" in how else (g.const(0.0), p)))
        if how == "with log-sum-exp":
            g.show(g.op("ReduceLogSumExp", score, g.const([-1], np.int64), keepdims=0), B, H, S)
        if how == "mean of heads":
            g.show(g.op("ReduceMean", p, g.const([1], np.int64), keepdims=0), B, S, N)
        elif how == "of one head":
            g.show(g.op("Gather", p, g.const(1, np.int64), axis=1), B, S, N)
        else:
            g.show(p)
        if how == "twice":
            g.show(g.op("Identity", p))
        if how == "with scores":
            g.show(score)
        return g.times(g.op("Mul", p, g.const(np.linspace(0, 1, N))) if how == "then weighted" else p, v)

    return build


def _folded() -> onnx.ModelProto:
    """Heads in the batch, and the mean over heads, as torch's MultiheadAttention gives it."""
    g = Shown()
    q, k, v = qkv(g, (B * H, S, D), (B * H, N, D), (B * H, N, E))
    p = g.softmax(g.scaled(g.op("MatMul", q, g.transpose(k, 0, 2, 1))))
    g.show(g.op("MatMul", p, v), B * H, S, E)
    g.show(g.op("ReduceMean", g.reshape(p, B, H, S, N), g.const([1], np.int64), keepdims=0), B, S, N)
    return g.model(g.outs)


def _upright() -> onnx.ModelProto:
    g = Shown()
    q, k, v = qkv(g, (B, H, S, D), (B, H, N, D), (B, H, N, E))
    p = g.op("Softmax", g.scaled(g.op("MatMul", k, g.transpose(q, 0, 1, 3, 2))), axis=-2)
    g.show(p, B, H, N, S)
    g.show(g.op("MatMul", g.transpose(v, 0, 1, 3, 2), p), B, H, E, S)
    return g.model(g.outs)


def _sink() -> onnx.ModelProto:
    """The column of the sink is cut off before the probabilities are shown."""
    g = Shown()
    score, v = g.scores(2)
    both = g.op("Concat", score, g.const(np.linspace(0, 1, H).reshape(1, H, 1, 1).repeat(B, 0).repeat(S, 2)), axis=-1)
    p = g.op("Slice", g.softmax(both), *(g.const([x], np.int64) for x in (0, -1, -1)))
    g.show(p)
    return g.times(p, v)


def _of_two_layers() -> onnx.ModelProto:
    """Both layers' probabilities, stacked; V of the first is computed behind its softmax."""
    g = Shown()
    score, v = g.scores()
    p = g.softmax(score)
    first = g.op("MatMul", p, g.op("Neg", v))
    again = g.softmax(g.op("MatMul", first, g.transpose(g.op("Tanh", first), 0, 1, 3, 2)))
    g.show(g.op("MatMul", again, first), B, H, S, E)
    g.show(g.unsqueeze(g.op("Concat", p, again, axis=-1), 0), 1, B, H, S, N + S)
    return g.model(g.outs)


def _gated() -> onnx.ModelProto:
    """A gate by the log-sum-exp stands for a sink, whose share the probabilities are shown without."""
    g = Shown()
    score, v = g.scores()
    p = g.softmax(score)
    g.show(p)
    lse = g.op("ReduceLogSumExp", score, g.const([-1], np.int64))
    gate = g.op("Sigmoid", g.op("Sub", lse, g.const(np.linspace(0, 2, H).reshape(H, 1, 1))))
    g.show(g.op("Mul", g.op("MatMul", p, v), gate), B, H, S, E)
    return g.model(g.outs)


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], int]] = {
    "plain": (_plain(), 1),
    "dropped": (_plain(-np.inf), 1),
    "dropped, shared heads": (_plain(-np.inf, kv=2), 1),
    "lowest": (_plain(-3.4028235e38), 1),
    "-1e9": (_plain(-1e9, kv=1), 1),
    "biased": (_plain(how="bias"), 1),
    "guarded": (_plain(-np.inf, "guarded"), 1),
    "lost rows": (_plain(-np.inf, "lost rows", kv=2), 1),
    "set to zero": (_plain(-np.inf, "set to zero where it keeps"), 1),
    "set to zero behind a low number": (_plain(-1e4, "set to zero where it drops", kv=2), 1),
    "with log-sum-exp": (_plain(-np.inf, "with log-sum-exp"), 1),
    "opset 23": (_plain(how="of one head", opset=23), 1),
    "mean of heads": (_plain(-np.inf, "mean of heads"), 1),
    "twice": (_plain(how="twice"), 1),
    "with scores": (_plain(-np.inf, "with scores"), 1),
    "then weighted": (_plain(how="then weighted"), 1),
    "folded": (_folded, 1),
    "upright": (_upright, 1),
    "sink": (_sink, 1),
    "gated": (_gated, 1),
    "of two layers": (_of_two_layers, 2),
}


@pytest.mark.parametrize("name", MODELS)
def test_one_site_and_the_probabilities(name: str) -> None:
    build, sites = MODELS[name]
    model = build()
    report = explain(model)
    assert len(report.sites) == sites and not report.misses, report.misses
    assert all("computed a second time" in s.beside for s in report.sites)
    for form in (
        "decomposed",
        *(("blocked",) if name not in ("gated", "with log-sum-exp") else ()),
        *(("attention",) if name == "opset 23" else ()),
    ):
        new, done = rewrite(model, form)  # type: ignore[call-overload]
        onnx.checker.check_model(new, full_check=True)
        assert len(done.sites) == sites and not done.misses, done.misses
        assert [o.name for o in new.graph.output] == [o.name for o in model.graph.output]
        for large, empty in ((False, False), (True, False), (False, True)):
            given = feeds(model, large=large, empty_rows=empty)
            for optimise in (True, False):
                want, have = run(model, given), run(new, given, optimise=optimise)
                assert_same(want, have, LARGE_SCORE_TOLERANCE if large else TOLERANCE)
        again, _ = rewrite(new, form)  # type: ignore[call-overload]
        assert again.SerializeToString() == new.SerializeToString(), "rewriting twice changed something"


@pytest.mark.parametrize("name", ["set to zero", "set to zero behind a low number", "guarded", "lost rows", "dropped"])
def test_nan_is_where_it_was(name: str) -> None:
    model = MODELS[name][0]()
    given = feeds(model)
    given["q"].reshape(-1)[0] = np.nan
    for keeps in (0, 1, N):  # of the NaN's row
        given["mask"].reshape(-1, N)[0] = np.arange(N) >= N - keeps
        for form in ("decomposed", "blocked"):
            new, _ = rewrite(model, form)
            if not (name == "lost rows" and keeps < N):  # onnxruntime's maximum of NaN and -inf is -inf
                assert_same(run(model, given), run(new, given))


def test_rows_that_begin_with_a_masked_key_and_are_low() -> None:
    """onnxruntime's ReduceLogSumExp is -inf there (onnxruntime_bugs/log_sum_exp.onnxtxt): it does not tell the probabilities."""
    model = MODELS["with log-sum-exp"][0]()
    given = feeds(model)
    given |= {"q": np.full_like(given["q"], -30), "k": np.abs(given["k"]) * 30}
    given["mask"][..., 0], given["mask"][..., 1] = False, True
    new, _ = rewrite(model)
    want = run(model, given)
    assert all(np.isfinite(x).all() if x.ndim == 4 else np.isneginf(x).all() for x in want)
    assert_same(want, run(new, given), LARGE_SCORE_TOLERANCE)


def _left(how: str) -> onnx.ModelProto:
    g = Shown()
    score, v = g.scores()
    p = g.softmax(score)
    match how:
        case "used":
            g.show(g.op("Mul", p, g.input("other", WHOLE)))
        case "exponentials":
            p = g.op("Exp", g.op("Sub", score, g.op("ReduceMax", score, g.const([-1], np.int64))))
            g.show(p)
            total = g.op("ReduceSum", p, g.const([-1], np.int64))
            g.show(g.op("Div", g.op("MatMul", p, v), total), B, H, S, E)
            return g.model(g.outs)
        case "before a guard":
            g.show(p)
            p = g.op("Where", g.op("IsNaN", p), g.const(0.0), p)
        case "weighted":
            p = g.op("Mul", p, g.const(np.linspace(0, 1, N)))
            g.show(p)
        case "moved":
            p = g.reshape(p, B * H, S, N)
            g.show(p, B * H, S, N)
            g.show(g.op("MatMul", p, g.reshape(v, B * H, N, E)), B * H, S, E)
            return g.model(g.outs)
        case "scores computed with":
            g.show(p)
            g.show(g.op("Abs", score))
    return g.times(p, v)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("used", "several nodes"),
        ("exponentials", "before they are divided"),
        ("before a guard", "changed before they multiply V"),
        ("weighted", "multiplied by a factor"),
        ("moved", "axes are moved"),
        ("scores computed with", "the scores are used for something else"),
    ],
)
def test_what_is_left_alone(how: str, reason: str) -> None:
    model = _left(how)
    new, report = rewrite(model)
    assert not report.sites and any(reason in m.reason for m in report.misses), report
    assert [n.op_type for n in new.graph.node] == [n.op_type for n in model.graph.node]


@pytest.mark.slow
def test_compiled(tmp_path: Path) -> None:
    """By the log-sum-exp where nothing finite masks, else by a softmax: one dispatch for the attention either way."""
    for name, stats in (("lost rows", ("lse",)), ("lowest", ())):
        model = MODELS[name][0]()
        report = compile_model(model, tmp_path / "m.vmfb", parse_target("cpu-host"))
        (site,) = report.sites
        assert (site.fused, site.dispatches, site.spec.stats, report.misses) == (True, 1, stats, ())
        for empty in (False, True):
            given = feeds(model, empty_rows=empty)
            have = load_module(tmp_path / "m.vmfb")(*(given[i.name] for i in model.graph.input))
            assert_same(run(model, given), [np.asarray(x) for x in have], 2e-5)
