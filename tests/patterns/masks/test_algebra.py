"""Expressions of masks in their normal form: what each becomes, and that it is the same number everywhere, as int64 has it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from onnx_fa.patterns.masks.algebra import Algebra
from onnx_fa.patterns.masks.expressions import MaskTensor, TooComplex, Wraps, integer, is_choice, outcomes, reads, sized
from onnx_fa.patterns.masks.sums import divide_towards_zero
from onnx_fa.spec.expr import K, Q, ScoreExpr, Tensor, evaluate, parts, substitute, words
from tests.support.expressions import build, compute, tensor

ROWS, COLUMNS = 5, 7
T0_RANGE = (-4, 9)


def make_algebra() -> Algebra:
    return Algebra({Q: ROWS, K: COLUMNS}, {tensor(0): T0_RANGE})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # Comparisons are one LessOrEqual or Equal, the constant on the right.
        ("q >= k", "(k <= q)"),
        ("k - q <= 0", "(k <= q)"),
        ("k < q", "(k <= (q - 1))"),
        ("k + 1 <= q + 1", "(k <= q)"),
        ("not k <= q", "(q <= (k - 1))"),
        ("not k < q", "(q <= k)"),
        ("q == k", "(k == q)"),
        ("3 > k", "(k <= 2)"),
        ("2 * k <= 7", "(k <= 3)"),
        ("7 <= 2 * k", "(4 <= k)"),
        ("abs(q - k) <= 2", "((k <= (q + 2)) and (q <= (k + 2)))"),
        ("max(q, 3) <= k", "((q <= k) and (3 <= k))"),
        ("k <= max(q, 3)", "((k <= q) or (k <= 3))"),
        ("min(q, 3) <= k", "((q <= k) or (3 <= k))"),
        # What the ranges of positions and tensors decide.
        ("k >= 0", "True"),
        ("k < 7", "True"),
        ("k == 7", "False"),
        ("q + k > 10", "False"),
        ("t0 <= 9", "True"),
        ("t0 < 0 - 4", "False"),
        ("t1 <= 9", "(t1 <= 9)"),
        # Sums in one order, division and remainder of what they divide.
        ("q + k - q", "k"),
        ("q - q", "0"),
        ("2 * (q + 1) - q", "(q + 2)"),
        ("(4 * q + 3) // 4", "q"),
        ("(4 * q + 3) % 4", "3"),
        ("k // 7", "0"),
        ("k % 7", "k"),
        ("k // 2", "(k / 2)"),
        ("(0 - k) // 2", "(neg(k) / 2)"),
        ("k % 1", "0"),
        ("abs(k - q)", "abs((k - q))"),
        ("abs(q - k)", "abs((k - q))"),
        ("abs(0 - k)", "k"),
        # Connectives and choices.
        ("b0 and not b0", "False"),
        ("b0 or not b0", "True"),
        ("b0 or b0", "t0"),
        ("not (b0 and not b1)", "(not(t0) or t1)"),
        ("b0 ^ True", "not(t0)"),
        ("b0 == b0", "True"),
        ("q if b0 else q", "q"),
        ("(1 if b0 else 0) == 1", "t0"),
        ("(k if k <= q else q) <= q", "True"),
        ("b1 if b0 else False", "(t0 and t1)"),
        ("(2 if b0 else 3) * 2 + 1", "where(t0, 5, 7)"),
        ("0.0 if k <= q else -1.5", "where((k <= q), 0, -1.5)"),
        ("-(1.0 if b0 else 2.0)", "where(t0, -1, -2)"),
        # Floats that are whole numbers.
        ("float(k) - float(q) <= 0.0", "(k <= q)"),
        ("float(k) < 2.5", "(k <= 2)"),
        ("float(k) > 2.5", "(3 <= k)"),
        ("2.5 >= float(k)", "(k <= 2)"),
        ("float(k) == 2.5", "False"),
        ("int(float(k))", "k"),
        ("bool(k)", "not((k == 0))"),
        # What might wrap around keeps its op, and its side of a comparison.
        ("t1 + 1 <= t1", "((t1 + 1) <= t1)"),
        ("t1 - t1 == 0", "True"),
        (f"q * {1 << 62} >= 0", f"(0 <= (q * {1 << 62}))"),
    ],
)
def test_normal_form(text: str, said: str) -> None:
    assert words(build(make_algebra(), text)) == said


def test_sizes_that_are_known_only_at_run_time() -> None:
    algebra = Algebra()
    assert words(build(algebra, "q + Skv - Sq >= k")) == "((k + Sq) <= (q + Skv))"
    assert words(build(algebra, "k < 7")) == "(k <= 6)"
    assert words(build(algebra, f"k < {1 << 24}")) == "True"


@pytest.mark.parametrize(("number", "by", "quotient"), [(7, 2, 3), (-7, 2, -3), (7, -2, -3), (-7, -2, 3), (0, 5, 0)])
def test_division_towards_zero(number: int, by: int, quotient: int) -> None:
    assert divide_towards_zero(number, by) == quotient


def test_what_is_in_an_expression() -> None:
    algebra = make_algebra()
    expr = build(algebra, "t0 if k <= q else 3")
    assert reads(expr) == {K, Q, tensor(0), integer(3)}
    assert len(list(parts(expr))) == 6
    choice = build(algebra, "1.0 if b0 else (2.0 if b1 else 1.0)")
    assert is_choice(choice) and not is_choice(expr)
    assert [words(o) for o in outcomes(choice)] == ["1", "2", "1"]


def test_too_large_expressions_are_refused() -> None:
    algebra = make_algebra()
    with pytest.raises(TooComplex):
        build(algebra, " + ".join(["t1 * t1"] * 80))
    with pytest.raises(Wraps):
        algebra.add(tensor(1), integer(1))
    with pytest.raises(TooComplex):
        sized(build(Algebra(), "+".join(["t1"] * 101)))


SMALL = ["q", "k", "t0", "0", "1", "2", "3", "5", "-1", "-4"]
WIDE = [*SMALL, "t1", "Sq", "Skv", str(1 << 31), str(-(1 << 31)), str(1 << 62), str(INT := (1 << 63) - 1), str(-INT)]


def _expressions(leaves: list[str], floats: bool = False) -> tuple[st.SearchStrategy[str], st.SearchStrategy[str]]:
    """(whole numbers or floats, conditions) as text, some three levels deep."""
    base = st.sampled_from([f"float({x})" for x in leaves] + ["0.5", "-2.5"] if floats else leaves)

    def grow(numbers: st.SearchStrategy[str], conditions: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        pair = st.tuples(numbers, numbers)
        made = [
            st.builds(lambda ab, op: f"({ab[0]} {op} {ab[1]})", pair, st.sampled_from("+-")),
            st.builds(lambda a, op: f"{op}({a})", numbers, st.sampled_from(["abs", "-"])),
            st.builds(lambda c, ab: f"({ab[0]} if {c} else {ab[1]})", conditions, pair),
        ]
        if not floats:
            made += [
                st.builds(lambda ab, op: f"{op}({ab[0]}, {ab[1]})", pair, st.sampled_from(["max", "min"])),
                st.builds(lambda ab: f"({ab[0]} * {ab[1]})", pair),
                st.builds(lambda a, op, n: f"({a} {op} {n})", numbers, st.sampled_from(["//", "%"]), st.integers(1, 9)),
            ]
        return st.one_of(numbers, *made)

    def compare(numbers: st.SearchStrategy[str], conditions: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        ops = st.sampled_from(["<", "<=", ">", ">=", "=="])
        return st.one_of(
            st.builds(lambda a, op, b: f"({a} {op} {b})", numbers, ops, numbers),
            st.builds(lambda a, op, b: f"({a} {op} {b})", conditions, st.sampled_from(["and", "or", "^"]), conditions),
            st.builds(lambda a: f"(not {a})", conditions),
        )

    numbers, conditions = base, st.sampled_from(["b0", "b1", "True"])
    for _ in range(3):
        numbers, conditions = grow(numbers, conditions), compare(numbers, conditions)
    return numbers, conditions


def _tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    ends = np.asarray([(1 << 63) - 1, -(1 << 63), 1 << 31, 0, 3])
    return {
        "t0": rng.integers(T0_RANGE[0], T0_RANGE[1] + 1, (1, COLUMNS)),
        "t1": ends[:, None],
        "b0": rng.random((1, COLUMNS)) < 0.5,
        "b1": rng.random((ROWS, 1)) < 0.5,
    }


TENSORS = _tensors()


def _check(text: str) -> None:
    """Builds the expression, and compares the result everywhere with the expression as it was written."""
    algebra = make_algebra()
    try:
        made = build(algebra, text)
    except TooComplex:
        assume(False)
    # A boolean and an integer tensor share their number: each expression reads those of its kind.
    numbered = {f"{kind}{i}": TENSORS[f"{kind}{i}"] for kind in "tb" for i in (0, 1)}
    want = compute(text, ROWS, COLUMNS, numbered)
    have = _evaluate(made)
    np.testing.assert_array_equal(have, want, err_msg=f"{text} became {words(made)}")
    if want.dtype == np.int64:
        low, high = algebra.bounds(made)
        assert low <= want.min() and want.max() <= high, f"{text}: {low} to {high}"


def _evaluate(made: ScoreExpr) -> np.ndarray:
    """The expression at every position. Tensors are numbered as they are read: integers first, then booleans."""

    def renumber(leaf: ScoreExpr) -> ScoreExpr:
        if isinstance(leaf, MaskTensor):
            return Tensor(leaf.index + (2 if leaf.kind == "bool" else 0))
        return leaf

    tensors = [TENSORS[name] for name in ("t0", "t1", "b0", "b1")]
    found = evaluate(substitute(made, renumber), np.zeros((ROWS, COLUMNS)), tensors)
    return np.broadcast_to(found, (ROWS, COLUMNS))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(_expressions(SMALL)[1])
def test_conditions_on_small_numbers_stay_what_they_are(text: str) -> None:
    _check(text)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.one_of(*_expressions(WIDE)))
def test_numbers_at_the_ends_of_int64_stay_what_they_are(text: str) -> None:
    _check(text)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.one_of(*_expressions(["q", "k", "t0", "3", "-1"], floats=True)))
def test_floats_that_stand_for_positions_stay_what_they_are(text: str) -> None:
    _check(text)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(_expressions(SMALL)[0])
def test_a_sum_of_atoms_is_the_number(text: str) -> None:
    algebra = make_algebra()
    try:
        made = build(algebra, text)
    except TooComplex:
        assume(False)
    terms, constant = algebra.linear(made)
    again = algebra.sums.from_linear(terms, constant)
    np.testing.assert_array_equal(_evaluate(again), _evaluate(made))
