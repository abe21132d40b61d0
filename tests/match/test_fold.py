"""Steps on a score become a scale, modifications and mask terms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from onnx_fa.match.exprs import Const
from onnx_fa.match.fold import fold_steps, tighten_causal
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import (
    AddTerm,
    Cap,
    Map,
    Nothing,
    Scale,
    Select,
    Step,
    Term,
)
from onnx_fa.patterns import PATTERNS
from onnx_fa.spec.expr import SCORE, Apply, Float
from onnx_fa.spec.terms import Causal, Dim, MaskTerm, SlidingWindow
from tests.support.text_graphs import TextGraph, describe_term

INF = float("inf")
LOWEST = float(np.finfo(np.float32).min)
SHAPE: tuple[Dim, ...] = (2, 3, 6, 8)


def fold(*steps: Step) -> str:
    graph = TextGraph("float[6,8] m", "y = Identity(m)")
    placed = [replace(s, value=graph.value("m")) if isinstance(s, AddTerm) and s.value is M else s for s in steps]
    scale, mods, terms = fold_steps(graph.view, PATTERNS.mask, placed, SHAPE, "f32", graph.node("y"))
    return ", ".join([f"{scale:g}", *(f"cap {m.cap:g}" for m in mods), *(describe_term(t) for t in terms)])


M = Const(np.zeros(1))
RELU = Apply("Relu", SCORE)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([], "1"),
        ([Scale(0.5), Nothing(), Scale(4.0)], "2"),
        ([Scale(0.5), Cap(3.0)], "0.5, cap 3"),
        ([Cap(3.0), Cap(2.0)], "1, cap 3, softcap: (tanh((score / 2)) * 2)"),
        ([Cap(3.0), Scale(2.0)], "1, cap 3, scale: (score * 2)"),
        ([Scale(0.5), AddTerm(M)], "0.5, add[6, 8] f32 * 1, m"),
        ([AddTerm(M), Scale(0.5)], "0.5, add[6, 8] f32 * 0.5, m"),
        ([AddTerm(M), Scale(-0.5)], "1, add[6, 8] f32 * 1, m, scale: (score * -0.5)"),
        ([Map(RELU)], "1, elementwise: relu(score)"),
        ([Map(Apply("Neg", RELU))], "1, elementwise: relu(score), scale: (score * -1)"),
        ([Map(Apply("Mul", SCORE, Float(2.0)))], "2"),
        ([Map(Apply("Div", SCORE, Float(4.0)))], "0.25"),
        ([Map(Apply("Add", SCORE, Float(0.0)))], "1"),
        ([Map(Apply("Add", SCORE, Float(1.5)))], "1, elementwise: (score + 1.5)"),
        ([Map(Apply("Mul", Apply("Tanh", Apply("Mul", SCORE, Float(0.5))), Float(2.0)))], "1, cap 2"),
        ([Map(Apply("Mul", SCORE, SCORE))], "1, elementwise: (score * score)"),
    ],
)
def test_steps_are_folded(steps: list[Step], said: str) -> None:
    assert fold(*steps) == said


@pytest.mark.parametrize(
    ("step", "why"), [(Scale(INF), "not finite"), (Cap(0.0), "not positive"), (Cap(-1.0), "not positive")]
)
def test_steps_that_are_refused(step: Step, why: str) -> None:
    with pytest.raises(NoMatch, match=why):
        fold(step)


@pytest.mark.parametrize(
    ("fill", "factor", "said"),
    [
        (-INF, 2.0, "2, keep[8] else -inf, row"),
        (-1e9, 2.0, "2, keep[8] else -2e+09, row"),
        (-1e9, 1e-8, "1, keep[8] else -1e+09, row, scale: (score * 1e-08)"),
        (LOWEST, 2.0, f"1, keep[8] else {LOWEST:g}, row, scale: (score * 2)"),
    ],
)
def test_a_scale_behind_a_mask(fill: float, factor: float, said: str) -> None:
    graph = TextGraph("bool[8] row", "y = Identity(row)")
    steps = [Select(graph.value("row"), False, fill), Scale(factor)]
    scale, mods, terms = fold_steps(graph.view, PATTERNS.mask, steps, SHAPE, "f32", graph.node("y"))
    assert not mods and ", ".join([f"{scale:g}", *map(describe_term, terms)]) == said


@pytest.mark.parametrize(
    ("terms", "scale", "dtype", "fill"),
    [
        ([Causal(0, LOWEST)], 1.0, "f32", -INF),
        ([Causal(3, -1e31)], 2.0, "f32", -INF),
        ([Causal(0, -1e4)], 1.0, "f16", -INF),
        ([Causal(-1, LOWEST)], 1.0, "f32", LOWEST),
        ([Causal("end", LOWEST)], 1.0, "f32", LOWEST),
        ([Causal(0, -1e9)], 1.0, "f32", -1e9),
        ([Causal(0, LOWEST)], 1e10, "f32", LOWEST),
        ([Causal(0, LOWEST), SlidingWindow(3)], 1.0, "f32", LOWEST),
    ],
)
def test_a_causal_mask_alone_may_as_well_be_infinite(
    terms: list[MaskTerm], scale: float, dtype: str, fill: float
) -> None:
    (first, *_) = tighten_causal([Term(t) for t in terms], scale, dtype)
    assert isinstance(first.term, Causal) and first.term.fill == fill
