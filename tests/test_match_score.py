"""Spellings of scale, score functions, softmax, sinks and guards: each is matched and equal in every form, or refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from spellings_score import MATCH, NOTHING_HERE, REASONS, REFUSE, SITES, feeds
from test_match import LARGE_SCORE_TOLERANCE, TOLERANCE, assert_same, run

from onnx_fa.rewriter import FORMS, explain, rewrite
from onnx_fa.spec import AddMask, Softcap

OVERFLOWING = [n for n in MATCH if "without the maximum" in n or "divided anew" in n]
"""The original turns large scores into NaN, by an overflow or by a sum that vanishes; the rewritten site does not."""


@pytest.mark.parametrize("name", MATCH)
def test_every_form_equals_the_original(name: str) -> None:
    model = MATCH[name]()
    report = explain(model)
    assert len(report.sites) == SITES.get(name, 1) and not report.misses, report.misses
    for form in FORMS:
        new, done = rewrite(model, form)
        onnx.checker.check_model(new, full_check=True)
        for large, empty in ((False, False), (True, False), (False, True)):
            inputs = feeds(model, 1, large=large, empty_rows=empty)
            want, have = run(model, inputs), run(new, inputs)
            if large and name in OVERFLOWING:
                assert np.isfinite(have[0]).all() or not done.sites
                want = [np.where(np.isfinite(a), a, b) for a, b in zip(want, have, strict=True)]
            assert_same(want, have, LARGE_SCORE_TOLERANCE if large else TOLERANCE)
        again, _ = rewrite(new, form)
        assert again.SerializeToString() == new.SerializeToString(), "rewriting twice changed something"


@pytest.mark.parametrize("name", REFUSE)
def test_refuses_with_a_reason(name: str) -> None:
    model, reason = REFUSE[name](), REASONS[name]
    report = explain(model)
    assert not report.sites
    assert report.misses and any(reason in m.reason for m in report.misses), report.misses
    new, _ = rewrite(model)
    assert [n.op_type for n in new.graph.node] == [n.op_type for n in model.graph.node]


@pytest.mark.parametrize("name", NOTHING_HERE)
def test_says_nothing_where_there_is_no_attention(name: str) -> None:
    report = explain(NOTHING_HERE[name]())
    assert not report.sites and not report.misses


def spec_of(name: str) -> Any:
    return explain(MATCH[name]()).sites[0].spec


def test_recovers_the_meaning() -> None:
    assert spec_of("scale/from the shape, reciprocal").scale == pytest.approx(8**-0.5)
    assert spec_of("scale/runtime scalar").masks == ()  # multiplied into Q
    assert spec_of("scale/negated").scale == pytest.approx(-(8**-0.5))
    assert spec_of("function/softcap, factor inside").mods == (Softcap(7.0),)
    assert spec_of("function/softcap, negative").mods == (Softcap(2.0),)
    assert spec_of("sink/first column, cut 3").sink.shape == (1, 3, 1, 1)
    assert spec_of("sink/softmax plus one").sink.shape == ()
    assert spec_of("sink/gate on the output").sink.shape == (1, 3, 1, 1)
    assert spec_of("guard/not nan").empty_row == "guarded"
    assert spec_of("guard/safe softmax").empty_row == "zero"
    assert spec_of("guard/the mask itself, finite fill").empty_row == "zero"
    assert spec_of("terms/rope part by itself").D == 8
    assert [type(m) for m in spec_of("terms/relative shift").masks] == [AddMask]
