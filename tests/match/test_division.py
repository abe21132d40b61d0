"""The division by the row sum behind the product with V: what is one, with which guard, and what is refused."""

from __future__ import annotations

import pytest

from onnx_fa.match import division
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import (
    Anchor,
    Behind,
    Weighting,
)
from onnx_fa.patterns import PATTERNS
from onnx_fa.patterns.operands.product import read_product
from tests.support.text_graphs import TextGraph, name_of

DEFERRED = "float[2,3,6,8] e, float[2,3,8,4] v"
TAIL = "t = ReduceSum <keepdims = 1> (e, last) o = MatMul(e, v) "


def tail(body: str, floored: bool = False) -> tuple[str, str]:
    """The value behind the division, and the guard."""
    graph = TextGraph(DEFERRED, TAIL + body, outputs="y", last=[-1], zero=0.0, one=1.0)
    product = read_product(graph.view, graph.value("o"))
    assert product is not None
    anchor = Anchor(graph.node("t"), "Exp", graph.value("e"), graph.value("e"), graph.value("t"), floored)
    output, guard, sink = division.walk_tail(
        graph.view, anchor, Behind(Weighting(product, 0, graph.value("e"))), PATTERNS
    )
    assert sink is None
    return name_of(output), guard


@pytest.mark.parametrize(
    ("body", "guard", "floored"),
    [
        ("y = Div(o, t)", "", False),
        ("r = Reciprocal(t) y = Mul(o, r)", "", False),
        ("r = Div(one, t) y = Mul(r, o)", "", False),
        ("i = Identity(o) y = Div(i, t)", "", False),
        (
            "g = Greater(t, zero) a = Where(g, o, zero) b = Where(g, t, one) y = Div(a, b)",
            "guarded",
            False,
        ),
        ("z = Equal(t, zero) b = Where(z, one, t) y = Div(o, b)", "zero", True),
    ],
)
def test_deferred_division(body: str, guard: str, floored: bool) -> None:
    assert tail(body, floored) == ("y", guard)


@pytest.mark.parametrize(
    ("body", "floored", "why"),
    [
        ("u = Add(t, one) y = Div(o, u)", False, "something else than the row sum"),
        ("y = Add(o, one)", False, "not divided by the row sum"),
        ("a = Div(o, t) y = Add(a, o)", False, "not divided by the row sum"),
        ("g = Greater(t, zero) a = Where(g, o, zero) y = Div(a, t)", False, "only one side"),
        ("y = Div(o, t)", True, "not guarded"),
    ],
)
def test_other_divisions_are_refused(body: str, floored: bool, why: str) -> None:
    with pytest.raises(NoMatch, match=why):
        tail(body, floored)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("y = Reciprocal(x)", True),
        ("y = Div(one, x)", True),
        ("y = Pow(x, minus)", True),
        ("y = Div(two, x)", False),
        ("y = Pow(x, two)", False),
        ("y = Neg(x)", False),
        ("y = my.Reciprocal(x)", False),
    ],
)
def test_reciprocals(body: str, found: bool) -> None:
    graph = TextGraph("float[2] x", body, outputs="y", one=1.0, two=2.0, minus=-1.0)
    assert (division.reciprocal_of(graph.view, graph.value("y")) is graph.value("x")) == found
