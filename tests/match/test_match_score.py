"""Spellings of scale, score functions, softmax, sinks and guards: each is matched and equal in every form, or refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import numpy_helper as nh

from onnx_fa.forms.rewrite import FORMS, explain, rewrite
from onnx_fa.spec.terms import AddMask, Softcap
from tests.match.test_match import LARGE_SCORE_TOLERANCE
from tests.support import spellings_functions
from tests.support.ort_run import TOLERANCE, assert_same, run
from tests.support.spellings_score import MATCH, NOTHING_HERE, REASONS, REFUSE, SITES, H, Site, feeds, more_robust

ALL = MATCH | more_robust


@pytest.mark.parametrize("name", ALL)
def test_every_form_equals_the_original(name: str) -> None:
    model = ALL[name]()
    report = explain(model)
    assert len(report.sites) == SITES.get(name, 1) and not report.misses, report.misses
    for form in FORMS:
        new, done = rewrite(model, form)
        onnx.checker.check_model(new, full_check=True)
        for large, empty in ((False, False), (True, False), (False, True)):
            inputs = feeds(model, 1, large=large, empty_rows=empty)
            want, have = run(model, inputs), run(new, inputs)
            if large and name in more_robust:
                assert np.isfinite(have[0]).all() or not done.sites
                want = [np.where(np.isfinite(a), a, b) for a, b in zip(want, have, strict=True)]
            assert_same(want, have, LARGE_SCORE_TOLERANCE if large else TOLERANCE)
        again, _ = rewrite(new, form)
        assert again.SerializeToString() == new.SerializeToString(), "rewriting twice changed something"


def in_half(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with all floats as f16."""
    for info in (*model.graph.input, *model.graph.output):
        if info.type.tensor_type.elem_type == T.FLOAT:
            info.type.tensor_type.elem_type = T.FLOAT16
    for tensor in model.graph.initializer:
        array = nh.to_array(tensor)
        if array.dtype == np.float32:
            tensor.CopyFrom(nh.from_array(np.maximum(array, -6e4).astype(np.float16), tensor.name))
    for node in model.graph.node:
        for attr in node.attribute:
            if node.op_type == "Cast" and attr.name == "to" and attr.i == T.FLOAT:
                attr.i = T.FLOAT16
    return model


HALF = [
    "scale/runtime scalar",
    "scale/tensor [3, 1, 1]",
    "scale/tensor [7]",
    "softmax/mul, keepdims=False",
    "softmax/epsilon, keepdims=True",
    "sink/in the sum",
    "sink/softmax plus one",
    "sink/last column, cut -1",
    "sink/gate on the output",
    "guard/not nan",
    "guard/rows of the mask, finite fill",
    "probability/times [3, 1, 1]",
    "function/softcap, factor inside",
    "function/swish",
    "terms/rope part by itself",
]


@pytest.mark.parametrize("name", HALF)
def test_half_precision(name: str) -> None:
    model = in_half(MATCH[name]())
    assert explain(model).sites
    for form in ("decomposed", "blocked"):
        new, _ = rewrite(model, form)
        for empty in (False, True):
            inputs = feeds(model, 3, empty_rows=empty)
            halves = {n: x.astype(np.float16) if x.dtype == np.float32 else x for n, x in inputs.items()}
            want, have = run(model, halves), run(new, halves)
            # The original rounds scores and probabilities to f16, the rewritten site does not.
            assert_same([x.astype(np.float64) for x in want], [x.astype(np.float64) for x in have], 4e-3)


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
    return explain(ALL[name]()).sites[0].spec


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
    assert spec_of("terms/rope part by itself").D == 12  # 8 and the 4 with positions
    assert [type(m) for m in spec_of("terms/relative shift").masks] == [AddMask]


@pytest.mark.parametrize(("op", "bad"), [("Mul", np.inf), ("Mul", np.nan), ("Div", 0.0)])
def test_constant_scales_that_are_not_finite_are_not_moved_to_q(op: str, bad: float) -> None:
    g = Site()
    factor = g.const(np.asarray([1.0, bad, 1.0], np.float32).reshape(H, 1, 1))
    model = g.done(g.times_v(g.softmax(g.op(op, g.score(), factor))))
    new, report = rewrite(model)
    assert report.sites[0].spec.masks and not report.misses
    inputs = feeds(model)
    assert_same(run(model, inputs), run(new, inputs), TOLERANCE)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("scores_that_an_input_chooses", "--set c=1 (or 0)"),
        ("scores_that_values_choose", "its condition is computed"),
    ],
)
def test_scores_that_an_if_makes(name: str, reason: str) -> None:
    (miss,) = explain(spellings_functions.REFUSE[name]()).misses
    assert reason in miss.reason
