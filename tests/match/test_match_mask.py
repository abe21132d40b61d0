"""Masks in every spelling: what the matcher makes of them, and that every rewritten graph equals the original in onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnx_fa.forms.rewrite import FORMS, explain, rewrite
from onnx_fa.spec.attention import AttentionSpec
from tests.match.test_match import LARGE_SCORE_TOLERANCE
from tests.support.ort_run import TOLERANCE, assert_same, run
from tests.support.spellings_mask import MATCHED, REFUSED, WIDE, B, Mask, describe, feeds, is_wide


def only_spec(model: onnx.ModelProto) -> AttentionSpec:
    report = explain(model)
    assert len(report.sites) == 1, report.misses
    return report.sites[0].spec


@pytest.mark.parametrize("name", MATCHED)
def test_mask_is_understood_and_exact(name: str) -> None:
    build, said = MATCHED[name]
    model = build()
    spec = only_spec(model)
    assert said in describe(spec), describe(spec)
    assert is_wide(spec) == (name in WIDE), describe(spec)
    for form in FORMS:
        new, _ = rewrite(model, form)
        onnx.checker.check_model(new, full_check=True)
        for kind in ("normal", "large", "empty", "dense"):
            for seed in (0, 1):
                inputs = feeds(model, seed, large=kind == "large", empty_rows=kind == "empty", dense=kind == "dense")
                want = run(model, inputs)
                assert_same(want, run(new, inputs), LARGE_SCORE_TOLERANCE if kind == "large" else TOLERANCE)
        again, _ = rewrite(new, form)
        assert again.SerializeToString() == new.SerializeToString(), "rewriting twice changed something"


_FROM, _TO = np.arange(20)[:, None], np.arange(20)
_NEAR = (abs(_FROM // 4 - _TO // 4) <= 1) & (abs(_FROM % 4 - _TO % 4) <= 1)


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ((_TO <= _FROM) & (_FROM - _TO < 4), "SlidingWindow(left=3, right=0"),
        ((_TO <= _FROM) | (_TO < 5), "prefix"),
        ((_TO <= _FROM) & ((_FROM - _TO) % 3 == 0), "BoolMask(shape=(20, 20)"),
        (_NEAR, "BoolMask(shape=(20, 20)"),
    ],
    ids=["window", "prefix", "dilated", "neighbours on a grid"],
)
def test_a_constant_that_says_what_is_hidden(keep: np.ndarray, said: str) -> None:
    """As `masked_fill(~keep, -inf)` is exported where lengths are static."""
    g = Mask(dims=(B, 20, 20))
    model = g.finish(g.op("Where", g.const(~keep, bool), g.f(-np.inf), g.score()))
    spec = only_spec(model)
    assert said in describe(spec) and ("BoolMask" in describe(spec)) == ("BoolMask" in said)
    new, _ = rewrite(model)
    for seed in (0, 1):
        inputs = feeds(model, seed)
        assert_same(run(model, inputs), run(new, inputs), TOLERANCE)


@pytest.mark.parametrize("name", REFUSED)
def test_mask_is_left_alone(name: str) -> None:
    build, reason = REFUSED[name]
    model = build()
    report = explain(model)
    assert not report.sites
    assert any(reason in m.reason for m in report.misses), report.misses
    new, _ = rewrite(model)
    assert [n.op_type for n in new.graph.node] == [n.op_type for n in model.graph.node]


@pytest.mark.parametrize(
    ("first", "last", "matched"), [(-1e9, -1e9, False), (-3.4028235e38, -3.4028235e38, True), (-2e38, -1e38, False)]
)
def test_two_fills_of_one_attention_op(first: float, last: float, matched: bool) -> None:
    """A key that both mask is no lower than one that either does: where nothing else is left, all weigh the same."""
    g = Mask(dims=(B, 20, 20), opset=23)
    keep = g.const(np.arange(20)[:, None] % 3 != np.arange(20) % 2, bool)
    padding = g.input("padding", [B, 1, 1, 20], onnx.TensorProto.BOOL)
    model = g.finish(g.where(padding, g.where(keep, g.score(), first), last))
    new, report = rewrite(model, "attention")
    assert any(n.op_type == "Attention" for n in new.graph.node) == matched, report.misses
    inputs = feeds(model, 0)
    for kept in (0, 20, 7):
        inputs["padding"] = np.broadcast_to(np.arange(20) < kept, (B, 1, 1, 20)).copy()
        assert_same(run(model, inputs), run(new, inputs), TOLERANCE)
