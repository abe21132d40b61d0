"""Factors of rows go to Q, factors of keys to V, and some stay where they are."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_fa.match import factors
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import (
    Cap,
    Factor,
    OperandChoice,
    Operands,
    Scale,
    Step,
)
from onnx_fa.patterns import PATTERNS
from onnx_fa.spec.terms import Dim
from tests.support.text_graphs import TextGraph, describe_step, name_of, run_expr

SHAPE: tuple[Dim, ...] = (2, 3, 6, 8)


FACTORS = (
    "float[2,3,6,4] q, float[2,3,8,5] v, float[3,1,1] head, float[2,1,6,1] "
    "row, float[8] key, float[2,3,1,8] per, float[6,8] both"
)


@pytest.mark.parametrize(
    ("steps", "q", "left"),
    [
        (["times head"], "Mul(q, head)", []),
        (["divide row"], "Div(q, row)", []),
        (["scale", "times head"], "Mul(q, head)", ["scale 0.5"]),
        (["cap", "times head"], "q", ["cap 3", "times head"]),
        (["times key"], "q", ["times key"]),
        (["times huge"], "q", ["times huge"]),
    ],
)
def test_factors_of_q(steps: list[str], q: str, left: list[str]) -> None:
    graph = TextGraph(FACTORS, "y = Identity(q)", huge=np.full((3, 1, 1), 1e20, np.float32))
    known: dict[str, Step] = {"scale": Scale(0.5), "cap": Cap(3.0)}
    made = [known.get(s) or Factor(graph.value(s.split()[1]), s.startswith("divide")) for s in steps]
    choice = OperandChoice(graph.value("q"), (0, 1, 2, 3), 1.0, 3)
    rest, moved = factors.multiply_q(graph.view, PATTERNS.mask, made, choice, SHAPE, "f32")
    assert (name_of(moved.value), [describe_step(s) for s in rest]) == (q, left)


def test_factors_that_are_not_finite_are_refused() -> None:
    graph = TextGraph(FACTORS, "y = Identity(q)", bad=np.asarray([1, np.inf, 1], np.float32).reshape(3, 1, 1))
    choice = OperandChoice(graph.value("q"), (0, 1, 2, 3), 1.0, 3)
    with pytest.raises(NoMatch, match="not finite"):
        factors.multiply_q(graph.view, PATTERNS.mask, [Factor(graph.value("bad"))], choice, SHAPE, "f32")


def test_half_precision_keeps_its_factors_on_the_score() -> None:
    graph = TextGraph("float16[2,3,6,4] q, float16[3,1,1] head", "y = Identity(q)")
    choice = OperandChoice(graph.value("q"), (0, 1, 2, 3), 1.0, 3)
    steps = [Factor(graph.value("head"))]
    assert factors.multiply_q(graph.view, PATTERNS.mask, steps, choice, SHAPE, "f16") == (steps, choice)


@pytest.mark.parametrize(
    ("layout", "name"), [((0, 1, 2, 3), "key"), ((0, 2, 1, 3), "key"), ((0, 1, 2, 3), "per"), ((0, 2, 1, 3), "per")]
)
def test_factors_of_v(layout: tuple[int, ...], name: str) -> None:
    graph = TextGraph(FACTORS, "y = Identity(v)")
    q = OperandChoice(graph.value("q"), (0, 1, 2, 3), 1.0, 3)
    v = OperandChoice(graph.value("v"), layout, 1.0, 3)
    operands = Operands(q, v, v, (2,), 3, 3, 6, 8, 4, 5)
    made = factors.multiply_v(graph.view, PATTERNS.mask, [graph.value(name)], operands, "f32", graph.node("y"))
    canonical = np.arange(2 * 3 * 8 * 5, dtype=np.float32).reshape(2, 3, 8, 5)
    by = np.arange(2 * 3 * 8, dtype=np.float32).reshape(2, 3, 1, 8) if name == "per" else np.arange(8, dtype=np.float32)
    have = run_expr(made.value, {"v": canonical.transpose(layout), name: by})
    per_key = np.broadcast_to(by, (2, 3, 1, 8)).transpose(0, 1, 3, 2)
    np.testing.assert_array_equal(have, (canonical * per_key).transpose(layout))
