"""What a mask in the graph becomes: the layer that is peeled, and the terms that say the same."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_fa.match.exprs import Const
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import AddTerm, Map, Select, Term
from onnx_fa.patterns.masks import layers
from onnx_fa.patterns.masks.conditions import merge_bounds
from onnx_fa.patterns.masks.reader import Reader
from onnx_fa.patterns.masks.swallowing import may_swallow, swallows_scores
from onnx_fa.spec.expr import SCORE, Apply, Float, Tensor
from onnx_fa.spec.terms import AddMask, BoolMask, Causal, Dim, Elementwise, SlidingWindow
from tests.support.text_graphs import Constant, TextGraph, describe_step, describe_term, name_of

SHAPE: tuple[Dim, ...] = (2, 3, 6, 8)
LOWEST = float(np.finfo(np.float32).min)
INF = float("inf")
SCORES = "float[2,3,6,8] s"


def peel(rule: object, inputs: str, body: str, **constants: Constant) -> list[str]:
    graph = TextGraph(f"{SCORES}, {inputs}" if inputs else SCORES, body, **constants)
    assert callable(rule)
    (last,) = graph.model.graph.outputs
    return [f"{describe_step(p.step)} on {name_of(p.inner)}" for p in rule(graph.view, last)]


@pytest.mark.parametrize(
    ("body", "constants", "said"),
    [
        ("y = Add(s, m)", {}, ["add 1 * m on s", "add 1 * s on m"]),
        ("y = Add(m, s)", {}, ["add 1 * s on m", "add 1 * m on s"]),
        ("y = Sub(s, m)", {}, ["add -1 * m on s"]),
        ("y = Add(s, c)", {"c": [0.0] * 8}, ["add 1 * c on s"]),
        ("y = Add(c, s)", {"c": [0.0] * 8}, ["add 1 * c on s"]),
        ("y = Sub(c, s)", {"c": [0.0] * 8}, []),
        ("y = Mul(s, m)", {}, []),
        ("y = my.Add(s, m)", {}, []),
    ],
)
def test_add_is_peeled(body: str, constants: dict[str, Constant], said: list[str]) -> None:
    assert peel(layers.peel_add, "float[6,8] m", body, **constants) == said


@pytest.mark.parametrize(
    ("body", "constants", "said"),
    [
        ("y = Where(b, s, c)", {"c": -INF}, ["keep b else -inf on s"]),
        ("y = Where(b, c, s)", {"c": -1e9}, ["drop b else -1e+09 on s"]),
        ("y = Where(b, s, c)", {"c": [-1.0, -1.0, -1.0]}, ["keep b else -1 on s"]),
        ("c = Expand(n, e) y = Where(b, s, c)", {"n": -5.0, "e": [6, 8]}, ["keep b else -5 on s"]),
        ("y = Where(b, s, c)", {"c": float("nan")}, []),
        ("y = Where(b, s, c)", {"c": [-1.0] * 7 + [-2.0]}, []),
        ("y = Where(b, s, t)", {}, []),
        ("y = my.Where(b, s, c)", {"c": -INF}, []),
    ],
)
def test_where_is_peeled(body: str, constants: dict[str, Constant], said: list[str]) -> None:
    assert peel(layers.peel_where, "bool[6,8] b, float[6,8] t", body.replace(") y", ")\ny"), **constants) == said


POSITIONS = "rows = Range(zero, six, one) i = Unsqueeze(rows, last) j = Range(zero, eight, one) "
NUMBERS: dict[str, Constant] = {
    "zero": 0,
    "one": 1,
    "two": 2,
    "three": 3,
    "six": 6,
    "eight": 8,
    "last": [1],
    "shift": [0, -1],
    "none": 0.0,
    "low": -INF,
}
INPUTS = (
    "bool[8] row, bool[2,1,6,8] wide, bool[2,1,1,8] padding, float[6,8] bias, float[3,1,1] slope, int64[2,1,1,8] doc, "
    "int64[2,1,6,1] mine, int64[2] count, float[9,8] far, float[n,8] some, int8[8] byte, double[6,8] double, uint64[8] odd"
)


def terms_of(
    step: str, body: str, fill: float = -INF, factor: float = 1.0, shape: tuple[Dim, ...] = SHAPE
) -> list[str]:
    """The terms of a mask `y`: a Select ("keep", "drop") or an AddTerm ("add")."""
    graph = TextGraph(INPUTS, POSITIONS + body, outputs="y", **NUMBERS)
    y = graph.value("y")
    made = AddTerm(y, factor) if step == "add" else Select(y, step == "drop", fill)
    return [describe_term(t) for t in layers.read_terms(graph.view, made, shape, "f32")]


@pytest.mark.parametrize(
    ("step", "body", "said"),
    [
        # Conditions on positions.
        ("keep", "y = LessOrEqual(j, i)", ["causal 0 else -inf"]),
        ("keep", "y = GreaterOrEqual(i, j)", ["causal 0 else -inf"]),
        ("drop", "y = Greater(j, i)", ["causal 0 else -inf"]),
        ("drop", "y = Less(i, j)", ["causal 0 else -inf"]),
        ("keep", "h = Add(i, two) y = LessOrEqual(j, h)", ["causal 2 else -inf"]),
        ("keep", "y = Less(j, i)", ["causal -1 else -inf"]),
        ("keep", "y = LessOrEqual(i, j)", ["window 0 None from 0 else -inf"]),
        ("keep", "y = Equal(i, j)", ["window 0 0 from 0 else -inf"]),
        ("keep", "d = Sub(i, j) a = Abs(d) y = LessOrEqual(a, two)", ["window 2 2 from 0 else -inf"]),
        (
            "keep",
            "c = LessOrEqual(j, i) d = Sub(i, j) w = Less(d, three) y = And(c, w)",
            ["window 2 0 from 0 else -inf"],
        ),
        ("keep", "c = LessOrEqual(j, i) n = Not(c) o = Or(c, n) y = Identity(o)", []),
        (
            "keep",
            "c = LessOrEqual(j, i) f = Less(j, three) y = Or(c, f)",
            ["prefix: where(((k <= q) or (k <= 2)), score, -inf)"],
        ),
        (
            "keep",
            "a = Div(i, two) b = Div(j, two) y = Equal(a, b)",
            ["chunked: where(((k / 2) == (q / 2)), score, -inf)"],
        ),
        ("keep", "a = Mod(j, two) y = Equal(a, one)", ["dilated: where(((k % 2) == 1), score, -inf)"]),
        ("keep", "y = Less(j, six)", ["bias: where((k <= 5), score, -inf)"]),
        # Tensors.
        ("keep", "y = Identity(row)", ["keep[8] else -inf, row"]),
        ("drop", "y = Identity(row)", ["keep[8] else -inf, Not(row)"]),
        ("keep", "y = Not(wide)", ["keep[2, 1, 6, 8] else -inf, y"]),
        (
            "keep",
            "c = LessOrEqual(j, i) y = And(c, padding)",
            ["causal 0 else -inf", "keep[2, 1, 1, 8] else -inf, padding"],
        ),
        ("keep", "y = Equal(mine, doc)", ["document: where((t0 == t1), score, -inf), mine, doc"]),
        ("keep", "y = Greater(doc, zero)", ["keep[2, 1, 1, 8] else -inf, y"]),
        ("keep", "y = Cast <to = 9> (doc)", ["keep[2, 1, 1, 8] else -inf, y"]),
        # What is added.
        ("add", "y = Identity(bias)", ["add[6, 8] f32 * 1, bias"]),
        ("add", "c = LessOrEqual(j, i) y = Where(c, none, low)", ["causal 0 else -inf"]),
        ("add", "c = Greater(j, i) y = Where(c, low, none)", ["causal 0 else -inf"]),
        ("add", "y = Where(row, none, low)", ["keep[8] else -inf, row"]),
        ("add", "y = Where(row, bias, low)", ["add[6, 8] f32 * 1, bias", "keep[8] else -inf, row"]),
        (
            "add",
            "c = LessOrEqual(j, i) w = Where(c, none, low) y = Add(w, bias)",
            ["causal 0 else -inf", "add[6, 8] f32 * 1, bias"],
        ),
        (
            "add",
            "d = Sub(j, i) f = Cast <to = 1> (d) y = Mul(slope, f)",
            ["alibi: (score + (t0 * tofloat((k - q)))), slope"],
        ),
        ("add", "y = Sub(none, none)", []),
    ],
)
def test_terms_of_a_mask(step: str, body: str, said: list[str]) -> None:
    assert terms_of(step, body) == said


def test_lengths_that_are_known_only_at_run_time() -> None:
    graph = TextGraph(
        "float[2,3,Sq,Skv] s",
        "shape = Shape(s) nq = Gather(shape, two) nk = Gather(shape, three) rows = Range(zero, nq, one) i = Unsqueeze(rows, last) "
        "j = Range(zero, nk, one) past = Sub(nk, nq) h = Add(i, past) y = LessOrEqual(j, h)",
        outputs="y",
        **NUMBERS,
    )
    made = layers.read_terms(graph.view, Select(graph.value("y"), False, -INF), (2, 3, "Sq", "Skv"), "f32")
    assert [describe_term(t) for t in made] == ["causal end else -inf"]


@pytest.mark.parametrize(
    ("fill", "said"),
    [
        (-INF, ["causal 0 else -inf"]),
        (LOWEST, [f"causal 0 else {LOWEST:g}"]),
        (-1e9, ["window: where((k <= q), score, -1e+09)"]),
        (-1.0, ["window: where((k <= q), score, -1)"]),
    ],
)
def test_only_a_fill_that_swallows_a_score_makes_a_causal_mask(fill: float, said: list[str]) -> None:
    assert terms_of("keep", "y = LessOrEqual(j, i)", fill) == said


@pytest.mark.parametrize(
    ("fill", "said"), [(-1e4, "keep[8] else -10000, row"), (-9e3, "padding: where(t0, score, -9000), row")]
)
def test_only_a_low_fill_makes_a_mask_of_a_tensor(fill: float, said: str) -> None:
    assert [t.replace("mask:", "padding:") for t in terms_of("keep", "y = Identity(row)", fill)] == [said]


def test_a_factor_of_what_is_added() -> None:
    assert terms_of("add", "y = Identity(bias)", factor=-2.0) == ["add[6, 8] f32 * -2, bias"]
    causal = "c = LessOrEqual(j, i) y = Where(c, none, low)"
    assert terms_of("add", causal, factor=2.0) == ["causal 0 else -inf"]
    assert terms_of("add", causal, factor=-1.0) == ["window: (score + where((k <= q), -0, inf))"]


@pytest.mark.parametrize(
    ("step", "body", "why"),
    [
        ("add", "y = Identity(far)", "does not provably broadcast"),
        ("add", "y = Identity(some)", "does not provably broadcast"),
        ("add", "y = Unsqueeze(wide, shift)", "neither float, int nor bool|more dims|float"),
        ("add", "y = Identity(double)", "f64 on scores of another|not f32, f16 or bf16"),
        ("add", "y = Identity(odd)", "neither float, int nor bool"),
    ],
)
def test_masks_that_are_refused(step: str, body: str, why: str) -> None:
    with pytest.raises(NoMatch, match=why):
        terms_of(step, body)


def test_functions_of_the_score() -> None:
    graph = TextGraph(INPUTS, "y = Identity(bias)")
    value = graph.value("bias")
    step = Map(Apply("Mul", SCORE, Tensor(0)), (value,), "gain")
    (made,) = layers.read_terms(graph.view, step, SHAPE, "f32")
    assert describe_term(made) == "gain: (score * t0), bias"
    number = Map(Apply("Mul", SCORE, Tensor(0)), (Const(np.asarray(2.0, np.float32)),), "gain")
    assert describe_term(layers.read_terms(graph.view, number, SHAPE, "f32")[0]) == "gain: (score * t0), 2.0"
    with pytest.raises(NoMatch, match="of different kinds"):
        layers.read_terms(graph.view, Map(Apply("Add", SCORE, Tensor(0)), (graph.value("doc"),)), SHAPE, "f32")


def test_bounds_with_the_same_fill_are_one_window() -> None:
    causal, window = Term(Causal(2)), Term(SlidingWindow(left=3))
    assert merge_bounds([causal, window]) == [Term(SlidingWindow(3, 2))]
    assert merge_bounds([causal, Term(Causal(1))]) == [Term(Causal(1))]
    assert merge_bounds([Term(Causal("end")), Term(SlidingWindow(left=3, offset="end"))]) == [
        Term(SlidingWindow(3, 0, "end"))
    ]
    assert merge_bounds([Term(SlidingWindow(left=1, right=2, offset=4)), Term(SlidingWindow(left=9))]) == [
        Term(SlidingWindow(-3, 6))
    ]
    apart = [causal, Term(SlidingWindow(left=3, fill=-1e30)), Term(BoolMask((8,))), Term(Causal("end"))]
    assert merge_bounds(apart) == apart


@pytest.mark.parametrize(
    ("fill", "dtype", "swallows"),
    [(-INF, "f32", True), (LOWEST, "f32", True), (-1e9, "f32", False), (-65504.0, "f16", True), (-1e4, "f16", False)],
)
def test_which_fills_swallow_scores(fill: float, dtype: str, swallows: bool) -> None:
    assert swallows_scores(fill, dtype) == swallows


@pytest.mark.parametrize(
    ("body", "ordinary"),
    [
        ("y = MatMul(bias, e)", True),
        ("y = Identity(bias)", False),
        ("y = Identity(small)", True),
        ("y = Identity(huge)", False),
        ("t = MatMul(bias, e) u = Add(t, small) y = Transpose(u)", True),
        ("t = MatMul(bias, e) y = Add(t, huge)", False),
        ("t = MatMul(bias, e) y = Add(t, bias)", False),
        ("t = MatMul(bias, e) y = Div(t, two)", False),
        ("t = MatMul(bias, e) y = Div(t, half)", True),
        ("t = MatMul(bias, e) y = Div(t, tiny)", False),
        ("t = MatMul(bias, e) y = Exp(t)", False),
        ("y = Tanh(small)", True),
        ("y = Cast <to = 1> (doc)", True),
        ("t = MatMul(bias, e) u = Cast <to = 10> (t) y = Cast <to = 1> (u)", False),
        ("t = MatMul(bias, e) y = Where(row, t, small)", True),
        ("t = MatMul(bias, e) y = Where(row, t, huge)", False),
    ],
)
def test_a_bias_of_ordinary_size_before_a_fill(body: str, ordinary: bool) -> None:
    constants = {"e": np.ones((8, 8), np.float32), "small": [0.5] * 8, "huge": [-1e30] * 8, "half": 0.5, "tiny": 1e-20}
    graph = TextGraph(INPUTS, body, outputs="y", two=2, **constants) if "two" not in body else None
    if graph is None:
        graph = TextGraph(f"{INPUTS}, float[1] two", body, outputs="y", **constants)
    reader = Reader(graph.view, SHAPE, "f32")
    before = [Term(AddMask((6, 8)), (graph.value("y"),))]
    assert may_swallow(reader, LOWEST, before) == ordinary
    assert may_swallow(reader, -INF, before)


def test_a_fill_behind_another_mask_swallows_nothing() -> None:
    graph = TextGraph(INPUTS, "y = Identity(bias)")
    reader = Reader(graph.view, SHAPE, "f32")
    assert may_swallow(reader, LOWEST, [])
    assert not may_swallow(reader, -1e30, [])
    assert not may_swallow(reader, LOWEST, [Term(Causal())])
    capped = Term(Elementwise(Apply("Mul", Apply("Tanh", SCORE), Float(30.0))))
    assert may_swallow(reader, LOWEST, [capped])
    assert not may_swallow(reader, LOWEST, [Term(Elementwise(Apply("Add", SCORE, Float(-1e30))))])
    assert not may_swallow(Reader(graph.view, SHAPE, "f16"), LOWEST, [])
