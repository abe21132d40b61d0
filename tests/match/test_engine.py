"""The engine's rules one by one, on graphs of a few nodes: axes, dims by name, divisions, factors, steps, low scores, NaN."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from onnx_fa.match import division, factors, nans
from onnx_fa.match.axes import Atom, Axis
from onnx_fa.match.dims import best_name, find_queries, find_side_of_keys, is_unit, merge_sizes, name_atoms
from onnx_fa.match.exprs import Call, Const, Expr
from onnx_fa.match.fold import fold_steps, tighten_causal
from onnx_fa.match.frames import Frames, follow_node, trace_axes
from onnx_fa.match.low_scores import check_low_scores, check_whole_rows
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import (
    AddTerm,
    Anchor,
    Behind,
    Cap,
    Factor,
    Map,
    Nothing,
    OperandChoice,
    Operands,
    Product,
    Regroup,
    Scale,
    Select,
    Step,
    Term,
    Weighting,
)
from onnx_fa.match.wraps import wrap_in_type
from onnx_fa.patterns import PATTERNS
from onnx_fa.patterns.operands.product import read_product
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import SCORE, Apply, Float
from onnx_fa.spec.terms import AddMask, BoolMask, Causal, Dim, Elementwise, MaskTerm, SlidingWindow
from tests.support.text_graphs import TextGraph, describe_step, describe_term, name_of, run_expr

INF = float("inf")
LOWEST = float(np.finfo(np.float32).min)
SHAPE: tuple[Dim, ...] = (2, 3, 6, 8)


# Axes on their way.


def axes_of(**sizes: Dim) -> list[Axis]:
    return [[Atom(name, size)] if size != 1 else [] for name, size in sizes.items()]


def named(axes: list[Axis]) -> str:
    return " ".join("*".join(leaf.name for a in axis for leaf in a.leaves()) or "-" for axis in axes)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("y = Transpose <perm = [0, 2, 1, 3]> (s)", "b s h t"),
        ("y = Transpose(s)", "t s h b"),
        ("y = Reshape(s, merged)", "b*h s t"),
        ("y = Unsqueeze(s, one)", "b - h s t"),
        ("u = Unsqueeze(s, one) y = Squeeze(u, one)", "b h s t"),
        ("y = Flatten <axis = 2> (s)", "b*h s*t"),
        ("y = Reshape(s, swapped)", None),
        ("y = Squeeze(n, one)", None),
    ],
)
def test_a_node_that_moves_axes(body: str, said: str | None) -> None:
    graph = TextGraph(
        "float[2,3,6,8] s, float[2,n,6,8] n", body, outputs="y", merged=[6, 6, 8], swapped=[3, 2, 8, 6], one=[1]
    )
    axes = axes_of(b=2, h=3, s=6, t=8)
    if "u =" in body:
        axes.insert(1, [])
    if "(n, one)" in body:
        axes = axes_of(b=2, h="n", s=6, t=8)
    if said is None:
        with pytest.raises(NoMatch):
            follow_node(graph.view, graph.node("y"), axes)
        return
    assert named(follow_node(graph.view, graph.node("y"), axes)) == said


def test_the_frames_of_a_score() -> None:
    graph = TextGraph(
        "float[2,3,6,8] s, float[2,3,8,4] v",
        "t = Transpose <perm = [0, 1, 3, 2]> (s) p = Softmax <axis = 2> (t) y = MatMul(p, v)",
        outputs="y",
    )
    steps: list[Step] = [Scale(0.5), Regroup(graph.node("t"))]
    product = read_product(graph.view, graph.value("y"))
    assert product is not None
    weighting = Weighting(product, 0, graph.value("p"))
    frames = trace_axes(graph.view, axes_of(b=2, h=3, s=6, t=8), steps, graph.value("t"), weighting, -2)
    assert [named(f) for f in frames.steps] == ["b h s t", "b h s t"]
    assert (named(frames.given), named(frames.softmax), named(frames.prob)) == ("b h t s", "b h s t", "b h t s")
    with pytest.raises(NoMatch, match="over axis -5"):
        trace_axes(graph.view, axes_of(b=2, h=3, s=6, t=8), steps, graph.value("t"), weighting, -5)
    with pytest.raises(NoMatch, match="to more dims"):
        trace_axes(graph.view, axes_of(h=3, s=6, t=8), steps, graph.value("t"), weighting, -1)


# Dims by name.


def product_of(inputs: str, body: str) -> Product:
    graph = TextGraph(inputs, body, outputs="y")
    found = read_product(graph.view, graph.value("y"))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("dims", "said"),
    [((), 1), ((4, "n"), 4), (("n", 4), 4), (("unk__1", "n"), "n"), ((None, "unk__1"), "unk__1"), ((None,), "other")],
)
def test_the_best_name_of_equal_sizes(dims: tuple[Dim | None, ...], said: Dim) -> None:
    assert best_name(dims, "other") == said


def test_letters_become_atoms() -> None:
    qk = product_of("float[1,3,6,4] q, float[2,3,4,n] kt", "y = MatMul(q, kt)")
    atoms = name_atoms(qk, qk.node)
    assert {x: a.size for x, a in atoms.items()} == {"A": 2, "B": 3, "m": 6, "k": 4, "n": "n"}
    assert is_unit(qk, 0, "A") and not is_unit(qk, 1, "A")
    other = product_of("float[b,3,6,4] q, float[c,3,4,8] kt", "y = MatMul(q, kt)")
    with pytest.raises(NoMatch, match=r"batch dims of Q .* and K .* are not provably equal"):
        name_atoms(other, other.node)


def test_which_operand_is_k() -> None:
    qk = product_of("float[2,3,6,4] q, float[2,3,4,8] kt", "y = MatMul(q, kt)")
    atoms = name_atoms(qk, qk.node)
    assert find_side_of_keys(qk, atoms, [atoms["n"]], qk.node) == 1
    assert find_side_of_keys(qk, atoms, [atoms["m"]], qk.node) == 0
    with pytest.raises(NoMatch, match="over another axis than the keys"):
        find_side_of_keys(qk, atoms, [atoms["B"]], qk.node)


def test_which_dim_are_the_queries() -> None:
    (b,), (h,), (s,), (t,) = axes_of(b=2, h=3, s=6, t=8)
    frames = Frames([], softmax=[[b], [h], [s], [t]])
    assert find_queries(frames, {h, s}, [h, s]) == [s]
    assert find_queries(frames, {h}, [h]) == [h]
    assert find_queries(Frames([], softmax=[[b], [], [t]]), {b}, [b]) == []


def test_sizes_of_several_atoms() -> None:
    node = ir.Node("", "MatMul", [], name="qk")
    a, b, n = Atom("a", 2), Atom("b", 3), Atom("n", "rows")
    assert merge_sizes(node, "q", [a, b]) == 6
    assert merge_sizes(node, "q", [n]) == "rows"
    assert merge_sizes(node, "q", [a, n]) == "qk_q"


# The division by the row sum behind the product with V.

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


# Factors of rows go to Q, factors of keys to V.

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


# Steps become a scale, modifications and terms.


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


# How low masks push scores.

SPEC = AttentionSpec("f32", Hq=3, Hkv=3, Sq=6, Skv=8, D=4, Dv=4, batch=(2,))


def low(
    check: object,
    term: MaskTerm,
    inputs: str = "float[6,8] m, bool[8] row, float16[6,8] half",
    body: str = "y = Identity(m)",
) -> None:
    graph = TextGraph(
        f"{inputs}, float[2,3,6,8] s",
        body,
        zeros=[0.0] * 8,
        lows=[0.0] * 7 + [LOWEST],
        tens=[-1e30] * 8,
        more=[-1e37 * 2] * 8,
    )
    name = {"BoolMask": "row"}.get(type(term).__name__, "y")
    operands: list[Expr] = [graph.value("s")] * 3 + (
        [graph.value(name)] if not isinstance(term, (Causal, SlidingWindow)) else []
    )
    if isinstance(term, Elementwise) and not term.tensors:
        operands = operands[:3]
    node = ir.Node("", "Exp", [graph.value("s")])
    assert callable(check)
    check(graph.view, replace(SPEC, masks=(term,)), operands, node)


@pytest.mark.parametrize(
    ("term", "body"),
    [
        (Causal(), "y = Identity(m)"),
        (Causal(0, LOWEST), "y = Identity(m)"),
        (BoolMask((8,), -1e30), "y = Identity(m)"),
        (AddMask((8,)), "y = Identity(zeros)"),
        (AddMask((8,)), "y = Identity(lows)"),
        (AddMask((8,)), "y = Where(row, zeros, lows)"),
        (AddMask((6, 8)), "y = Cast <to = 1> (half)"),
        (AddMask((6, 8)), "y = Tanh(m)"),
        (Elementwise(Apply("Tanh", SCORE)), "y = Identity(m)"),
    ],
)
def test_statistics_of_scores_that_are_known(term: MaskTerm, body: str) -> None:
    low(check_low_scores, term, body=body)


@pytest.mark.parametrize(
    ("term", "body", "why"),
    [
        (AddMask((6, 8)), "y = Identity(m)", "numbers that are not known"),
        (AddMask((8,)), "y = Identity(more)", "as low as -2e[+]37"),
        (AddMask((8,)), "a = Where(row, zeros, lows) y = Add(a, a)", "as low as|not known"),
        (BoolMask((8,), -1e38), "y = Identity(m)", "as low as -1e[+]38"),
        (Elementwise(Apply("Exp", Apply("Mul", SCORE, SCORE))), "y = Identity(m)", None),
        (Elementwise(Apply("Neg", Apply("Exp", SCORE))), "y = Identity(m)", "not known"),
    ],
)
def test_statistics_of_scores_that_may_be_too_low(term: MaskTerm, body: str, why: str | None) -> None:
    if why is None:
        low(check_low_scores, term, body=body)
        return
    with pytest.raises(NoMatch, match=why):
        low(check_low_scores, term, body=body)


@pytest.mark.parametrize(
    ("term", "body", "why"),
    [
        (Causal(0, -1e9), "y = Identity(m)", None),
        (Causal(-1, -1e9), "y = Identity(m)", "masks throughout"),
        (BoolMask((8,), -INF), "y = Identity(m)", None),
        (BoolMask((8,), -100.0), "y = Identity(m)", None),
        (BoolMask((8,), -1e9), "y = Identity(m)", "masks throughout"),
        (AddMask((8,)), "y = Identity(zeros)", None),
        (AddMask((8,)), "y = Identity(tens)", "very low numbers"),
        (AddMask((6, 8)), "y = Identity(m)", "very low numbers"),
    ],
)
def test_probabilities_by_a_log_sum_exp(term: MaskTerm, body: str, why: str | None) -> None:
    if why is None:
        low(check_whole_rows, term, body=body)
        return
    with pytest.raises(NoMatch, match=why):
        low(check_whole_rows, term, body=body)


# What is done to the output, in its type; and who asks for a NaN.


def test_wraps_take_the_type_of_the_output() -> None:
    graph = TextGraph("float[6,1] row, float16[6,1] half", "y = Identity(row)", c=0.5, huge=1e30)
    c, huge, row, half = (graph.value(n) for n in ("c", "huge", "row", "half"))

    def times(factor: Expr) -> object:
        return lambda e: Call("Mul", (e, factor))

    def wrap(factor: Expr, dtype: str | None) -> str:
        made = wrap_in_type(graph.view, [times(factor)], dtype, graph.node("y"))  # type: ignore[list-item]
        (only,) = made
        found = only(ir.Value(name="o"))
        assert isinstance(found, Call)
        kind = found.args[1].array.dtype if isinstance(found.args[1], Const) else "as it is"
        return f"{name_of(found)} {kind}"

    assert wrap(c, "f32") == "Mul(o, c) as it is"
    assert wrap(c, "f16") == "Mul(o, 0.5) float16"
    assert wrap(row, "f32") == "Mul(o, row) as it is"
    assert wrap(half, None) == "Mul(o, half) as it is"
    for factor, dtype in ((huge, "f16"), (row, "f16"), (half, "f32")):
        with pytest.raises(NoMatch, match="the output is of another type"):
            wrap(factor, dtype)


@pytest.mark.parametrize(
    ("body", "asks"),
    [
        ("n = IsNaN(o) y = Not(n)", True),
        ("a = Add(o, o) y = Cast <to = 7> (a)", True),
        ("a = Transpose(o) y = Greater(a, a)", True),
        ("a = Cast <to = 10> (o) y = Neg(a)", False),
        ("a = Relu(o) y = IsNaN(a)", False),
        ("y = Identity(o)", False),
    ],
)
def test_who_asks_for_a_nan(body: str, asks: bool) -> None:
    graph = TextGraph(DEFERRED, f"o = MatMul(e, v) {body}", outputs="y")
    product = read_product(graph.view, graph.value("o"))
    assert product is not None
    anchor = Anchor(graph.node("o"), "Exp", graph.value("e"), graph.value("e"))
    behind = Behind(Weighting(product, 0, graph.value("e")))
    if not asks:
        nans.check_nan(graph.view, anchor, behind, graph.value("o"))
        return
    with pytest.raises(NoMatch, match="tells the NaN of that from a number"):
        nans.check_nan(graph.view, anchor, behind, graph.value("o"))
