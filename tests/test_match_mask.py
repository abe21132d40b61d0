"""Masks in every spelling: what the matcher makes of them, and that every rewritten graph equals the original in onnxruntime."""

from __future__ import annotations

import onnx
import pytest
from ort_run import TOLERANCE, assert_same, run
from spellings_mask import MATCHED, REFUSED, WIDE, describe, feeds, is_wide
from test_match import LARGE_SCORE_TOLERANCE

from onnx_fa.rewriter import FORMS, explain, rewrite
from onnx_fa.spec import AttentionSpec


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


@pytest.mark.parametrize("name", REFUSED)
def test_mask_is_left_alone(name: str) -> None:
    build, reason = REFUSED[name]
    model = build()
    report = explain(model)
    assert not report.sites
    assert any(reason in m.reason for m in report.misses), report.misses
    new, _ = rewrite(model)
    assert [n.op_type for n in new.graph.node] == [n.op_type for n in model.graph.node]
