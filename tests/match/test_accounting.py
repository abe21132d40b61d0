"""Every softmax of a model is in a site or has a miss: none is passed over in silence."""

from __future__ import annotations

import os

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper as h

from onnx_fa.forms.report import RewriteReport
from onnx_fa.forms.rewrite import explain, rewrite
from tests.match.test_soundness import Site
from tests.support.accounting import unaccounted
from tests.support.ort_run import run
from tests.support.random_softmax import B, D, H, L, S, graph

GRAPHS = int(os.environ.get("ONNX_FA_GRAPHS", "0")) or 200
SEED = int(os.environ.get("ONNX_FA_SEED", "0"))


def test_random_softmaxes_are_accounted_for_and_keep_their_results() -> None:
    silent, wrong, sites = [], [], 0
    for seed in range(SEED, SEED + GRAPHS):
        model, is_softmax = graph(seed)
        new, report = rewrite(model)
        if unaccounted(model, report) or (is_softmax and not report.sites and not report.misses):
            silent.append(seed)
        if report.sites:
            sites += 1
            rng = np.random.default_rng(seed)
            feeds = {n: np.float32(rng.standard_normal((B, H, S if n == "q" else L, D))) for n in "qkv"}
            (want,), (have,) = run(model, feeds), run(new, feeds)
            finite = np.isfinite(want)
            same = np.array_equal(finite, np.isfinite(have)) and np.array_equal(np.isnan(want), np.isnan(have))
            if not same or np.linalg.norm(want[finite] - have[finite]) > 2e-5 * np.linalg.norm(want[finite]):
                wrong.append(seed)
    assert not silent and not wrong
    assert sites > GRAPHS // 20


def _over_an_axis(g: Site, axis: int) -> str:
    e = g.op("Exp", g.score())
    return g.op("Div", e, g.op("ReduceSum", e, g.i([axis])))


def _of_changed(g: Site) -> str:
    e = g.op("Tanh", g.op("Exp", g.score()))
    return g.op("Div", e, g.op("ReduceSum", e, g.i([-1])))


def _log_changed(g: Site) -> str:
    return g.op("Exp", g.op("Mul", g.op("LogSoftmax", g.score(), axis=-1), g.const(0.5)))


def _log_sum_of_others(g: Site) -> str:
    s = g.score()
    return g.op("Exp", g.op("Sub", s, g.op("ReduceLogSumExp", g.op("Abs", s), g.i([-1]))))


def _powers_of_two(g: Site) -> str:
    e = g.op("Pow", g.const(2.0), g.score())
    return g.op("Div", e, g.op("ReduceSum", e, g.i([-1])))


def _with_a_bias(g: Site) -> str:
    bias = g.input("m", [B, H, 6, 8])
    return g.op("BiasSoftmax", g.score(), bias, axis=-1, is_inner_broadcast=0, domain="com.microsoft")


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda g: _over_an_axis(g, -2), "sums over another axis than the keys"),
        (_of_changed, "divides exponentials by a sum of theirs"),
        (_log_changed, "changed before its exponential is taken"),
        (_log_sum_of_others, "the log-sum-exp n3_ReduceLogSumExp is in no known spelling, or not that"),
        (_powers_of_two, "divides powers of a constant by a sum of theirs"),
        (_with_a_bias, "com.microsoft.BiasSoftmax is not read"),
    ],
)
def test_a_softmax_in_no_known_spelling_has_a_miss(build: object, reason: str) -> None:
    assert callable(build)
    g = Site()
    report = explain(g.finish(build(g)))
    assert not report.sites and any(reason in m.reason for m in report.misses), report.misses


def test_a_logarithm_that_a_function_undoes_is_accounted_for() -> None:
    """The exponential gets a name when the function is taken in. One whose function does something else is a miss, by name."""
    for body, sites in (("y = Exp(x)", 1), ("z = Abs(x) y = Exp(z)", 0)):
        model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21, "my": 1]>
g (float[2,3,4] q, float[2,4,5] kt, float[2,5,6] v) => (float[2,3,6] o) {{
  s = MatMul(q, kt)
  [log] l = LogSoftmax<axis = -1>(s)
  [call] p = my.Undo(l)
  o = MatMul(p, v)
}}
<domain: "my", opset_import: ["": 21]>
Undo (x) => (y) {{ {body} }}""")
        report = explain(model)
        assert len(report.sites) == sites and len(report.misses) == 1 - sites
        assert not unaccounted(model, report)
        assert unaccounted(model, RewriteReport((), ())) == ["log"]


def test_sums_of_exponentials_that_divide_nothing_of_theirs_are_no_softmax() -> None:
    """Features of linear attention, a log-sum-exp as a loss, and a gate of two partial results' log-sum-exps."""
    g = Site()
    s = g.score()
    lse = g.op("ReduceLogSumExp", s, g.i([-1]))
    whole = g.op("Max", lse, g.const(0.0))
    out = g.op("Mul", g.op("Exp", g.op("Sub", lse, whole)), g.op("ReduceSum", g.op("Exp", s), g.i([-1])))
    g.nodes.append(h.make_node("Div", [out, g.op("Abs", g.q)], ["o"]))
    report = explain(g.model({"o": ([B, H, 6, 4], onnx.TensorProto.FLOAT)}))
    assert not report.sites and not report.misses
