"""Masks on the probabilities beside what else is done to the scores: the same result in every row, or a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T

from onnx_fa.forms.replace import Form
from onnx_fa.forms.rewrite import explain, rewrite
from tests.support.ort_run import assert_same, run
from tests.support.spellings import Graph
from tests.support.spellings_dropped import MATCH_DROPPED, NOT_DROPPED, WEIGHTED, shifted
from tests.support.spellings_score import SQ, B, Site

INF = float("inf")
FLOATS = ("ordinary", "large", "a mask that is added", "infinite tables", "one query is NaN")
"""What the inputs of floats hold."""


def _draw(model: onnx.ModelProto, what: str, seed: int) -> dict[str, Any]:
    """Rows with all keys, with some and with none, by each mask, and by all of them together alone."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, Any] = {}
    for i in model.graph.input:
        shape = [d.dim_value for d in i.type.tensor_type.shape.dim]
        if i.type.tensor_type.elem_type == T.BOOL:
            keep = rng.random(shape) < 0.5
            keep[..., 0, :] = False
            keep.reshape(-1, *shape[-2:])[-1, -1:] = True
            feeds[i.name] = keep
            continue
        x = np.asarray(rng.standard_normal(shape) * (40 if what == "large" and i.name in "qk" else 1), np.float32)
        if i.name == "mask":
            x = np.where(rng.random(shape) < 0.5, 0.0, -INF).astype(np.float32)
            x[..., -1, :2] = -INF
            if what == "a mask that is added":
                x[..., 1:3, :] = -INF
        feeds[i.name] = x
    if what == "one query is NaN":
        feeds["q"][0, 0, 1, 0] = np.nan
    return feeds


@pytest.mark.parametrize("name", MATCH_DROPPED)
def test_every_row_is_the_models(name: str) -> None:
    model = MATCH_DROPPED[name]()
    report = explain(model)
    assert [s.spec.weights is not None for s in report.sites] == [name in WEIGHTED]
    forms: tuple[Form, ...] = ("decomposed", "blocked") if name in WEIGHTED else ("decomposed", "blocked", "attention")
    for form in forms:
        new, _ = rewrite(model, form)
        onnx.checker.check_model(new, full_check=True)
        for seed, what in enumerate(FLOATS):
            feeds = _draw(model, what, seed)
            want = run(model, feeds, optimise=False)
            assert what != "ordinary" or np.isfinite(want[0]).any()
            for optimise in (False, True):
                assert_same(want, run(new, feeds, optimise=optimise), 2e-5 if what == "large" else 4e-6)


@pytest.mark.parametrize("name", NOT_DROPPED)
def test_what_may_differ_is_left_with_a_reason(name: str) -> None:
    build, reason = NOT_DROPPED[name]
    report = explain(build())
    assert not report.sites
    assert len(report.misses) == 1 and reason in report.misses[0].reason


def test_a_bias_that_is_a_mask_would_differ() -> None:
    """Why such a bias is refused: a row whose keys it hides one and all is NaN where the mask keeps one of them."""
    model = NOT_DROPPED["a bias that may be a mask"][0]()
    feeds = _draw(model, "ordinary", 0)
    feeds["keep"][...], feeds["mask"][...] = True, -INF
    assert np.isnan(run(model, feeds)[0]).all()
    model = MATCH_DROPPED["relative shift"]()
    feeds = _draw(model, "ordinary", 0)
    feeds["keep"][...] = False
    assert not run(model, feeds)[0].any()


@pytest.mark.parametrize("fill", [-INF, -1e4])
def test_probabilities_that_are_an_output_have_all_zeros(fill: float) -> None:
    """Two masks set some to zero, and the model shows them."""
    g = Site()
    masks = [g.input("chunk", [B, 1, SQ, 7], T.BOOL), g.input("padding", [B, 1, 1, 7], T.BOOL)]
    score = shifted(g, g.score())
    for mask in masks:
        score = g.op("Where", mask, score, g.const(fill))
    p = g.softmax(score)
    for mask in masks:
        p = g.op("Where", mask, p, g.const(0.0))
    o = g.times_v(p)
    model = g.model({o: ([B, 3, SQ, 6], T.FLOAT), p: ([B, 3, SQ, 7], T.FLOAT)})
    report = explain(model)
    if not report.sites:
        assert "output" in report.misses[0].reason
        return
    new, _ = rewrite(model)
    feeds = _draw(model, "ordinary", 0)
    assert_same(run(model, feeds, optimise=False), run(new, feeds), 4e-6)


@pytest.mark.parametrize("fill", [-INF, -1e4])
def test_a_negated_mask_of_another_batch_is_expanded(fill: float) -> None:
    """NeMo's exports name the batch of the lengths otherwise than that of the sounds: either may be one."""
    g = Graph(18)
    q, k, v = (g.input(n, shape) for n, shape in (("q", ["n", 3, 5, 8]), ("k", ["n", 3, 8, 7]), ("v", ["n", 3, 7, 6])))
    hidden = g.op("Not", g.input("keep", ["m", 1, 5, 7], T.BOOL))
    score = g.op("Add", g.op("MatMul", q, k), g.op("MatMul", q, g.input("table", [3, 8, 7])))
    p = g.op("Softmax", g.op("Where", hidden, g.const(fill), score), axis=-1)
    o = g.op("MatMul", g.op("Where", hidden, g.const(0.0), p), v)
    model = g.model({o: ([None, 3, 5, 6], T.FLOAT)})
    assert len(explain(model).sites) == 1
    new, _ = rewrite(model)
    rng = np.random.default_rng(0)
    for n, m in ((2, 2), (1, 3), (3, 1)):
        shapes = {"q": (n, 3, 5, 8), "k": (n, 3, 8, 7), "v": (n, 3, 7, 6), "table": (3, 8, 7)}
        feeds: dict[str, Any] = {key: np.asarray(rng.standard_normal(s), np.float32) for key, s in shapes.items()}
        feeds["keep"] = rng.random((m, 1, 5, 7)) < 0.5
        feeds["keep"][0, 0, 0] = False
        assert_same(run(model, feeds, optimise=False), run(new, feeds), 4e-6)
