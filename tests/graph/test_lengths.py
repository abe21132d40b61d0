"""Lengths as expressions: what they are in numbers, and that equal ones are written alike."""

from __future__ import annotations

import math
from collections.abc import Mapping

import hypothesis.strategies as st
import numpy as np
import pytest
import sympy
from hypothesis import given, settings

from onnx_fa.graph.dims import (
    add_dims,
    broadcast,
    compare_dims,
    divide_dims,
    is_cut_to,
    larger_dim,
    multiply_dims,
    quotient,
    raise_dim,
    range_dim,
    smaller_dim,
    subtract_dims,
    takes_in,
)
from onnx_fa.graph.lengths import MAX_LETTERS, Tail, Widest, dim_of, expression
from onnx_fa.graph.limits import Limits
from onnx_fa.graph.shape_rules import reshape_dims, slice_dim
from onnx_fa.spec.attention import Dim

SYMBOLS = ("past", "seq", "b.0", "odd name")
SIZES = st.fixed_dictionaries({s: st.integers(0, 9) for s in SYMBOLS})
LEAVES = st.one_of(st.integers(-3, 9), st.sampled_from(SYMBOLS))

BROADCAST_DIMS = (
    *(1, 3, "seq", "past", "min(3, seq)", "1 + seq - min(1, seq)", "1 + past - min(1, past)", "min(3, past)"),
    *("tail(3, seq)", "tail(1, seq)", "tail(3, past)", "tail(past + seq, seq)"),
)


def value(dim: Dim, sizes: Mapping[str, int]) -> int:
    expr = expression(dim)
    number = expr.subs({x: sizes[x.name] for x in expr.free_symbols})
    number = number.replace(Tail, lambda whole, count: min(whole, count) if count else whole)
    return int(number.replace(Widest, lambda *lengths: next((n for n in lengths if n != 1), 1)))


@st.composite
def dims(draw: st.DrawFn, depth: int = 3) -> tuple[Dim, object]:
    """A dim made by some operations, and the same as a function of sizes."""
    leaf = draw(LEAVES)
    if depth == 0 or draw(st.booleans()):
        return leaf, (lambda sizes: leaf if isinstance(leaf, int) else sizes[leaf])
    (a, f), (b, g) = draw(dims(depth - 1)), draw(dims(depth - 1))
    made, numbers = draw(
        st.sampled_from(
            [
                (add_dims, lambda x, y: x + y),
                (subtract_dims, lambda x, y: x - y),
                (multiply_dims, lambda x, y: x * y),
                (smaller_dim, min),
                (larger_dim, max),
            ]
        )
    )
    dim = made(a, b)
    if dim is None:
        return leaf, (lambda sizes: leaf if isinstance(leaf, int) else sizes[leaf])
    return dim, (lambda sizes: numbers(f(sizes), g(sizes)))


@settings(max_examples=60, deadline=None)
@given(dims(), SIZES)
def test_a_dim_is_what_its_operations_make_of_numbers(made: tuple[Dim, object], sizes: dict[str, int]) -> None:
    dim, numbers = made
    assert value(dim, sizes) == numbers(sizes)  # type: ignore[operator]
    assert dim_of(expression(dim)) == dim  # written alike whenever it is read


@settings(max_examples=60, deadline=None)
@given(LEAVES, LEAVES, LEAVES, SIZES)
def test_slices_and_ranges_have_the_length_that_numpy_gives(
    dim: Dim, start: Dim, end: Dim, sizes: dict[str, int]
) -> None:
    whole, first, last = (value(d, sizes) for d in (dim, start, end))
    cut = slice_dim(dim, start, end, 1)
    # The first element of an axis that may be empty counts as one.
    if whole >= 0 and cut is not None and (start, end) != (0, 1):
        assert value(cut, sizes) == len(range(whole)[first:last])
    for step in (1, -1):
        length = range_dim(start, end, step)
        assert length is None or value(length, sizes) == np.arange(first, last, step).size


@settings(max_examples=40, deadline=None)
@given(LEAVES, LEAVES, SIZES)
def test_what_is_said_of_two_dims_holds(a: Dim, b: Dim, sizes: dict[str, int]) -> None:
    x, y = value(a, sizes), value(b, sizes)
    equal = compare_dims(a, b)
    assert equal is None or equal == (x == y)
    divided = divide_dims(a, b)
    if divided is not None and y:
        assert value(divided, sizes) == math.trunc(x / y)
    of_lengths = divide_dims(a, b, is_length=lambda dim: True)
    if of_lengths is not None and y and min(x, y) >= 0:
        assert value(of_lengths, sizes) == x // y


def test_a_cut_table_broadcasts_to_what_it_was_cut_to_and_to_nothing_else() -> None:
    cut = slice_dim(512, 0, "seq", 1)
    assert cut == "min(512, seq)"
    assert is_cut_to(cut, "seq")
    assert broadcast([("b", "seq", 8), (1, cut, 8)]) == ("b", "seq", 8)
    assert broadcast([("b", "other", 8), (1, cut, 8)]) == ("b", "broadcast(min(512, seq), other)", 8)
    # Of a table of one row the rows may be repeated, and no rows stay none.
    assert not is_cut_to(slice_dim(1, 0, "seq", 1), "seq")
    # A window that ends behind the table may be empty beside one query.
    window = slice_dim(512, "past", "past + seq", 1)
    assert window == "min(512, past + seq) - min(512, past)"
    assert broadcast([("b", "seq"), (1, window)]) == ("b", f"broadcast({window}, seq)")


def test_a_limit_once_learnt_resolves_the_minima_below_it() -> None:
    limits = Limits()
    window = (slice_dim(1024, "past", "past + seq", 1), slice_dim(1024, 0, "past + seq", 1))
    assert limits.settle(window) == window
    limits.learn_broadcast([("b", 4, "seq", "past + seq"), (1, 1, *window)])
    assert limits.settle(window) == ("seq", "past + seq")
    assert limits.settle(("min(1024, seq)", "min(1000, past + seq)")) == ("seq", "min(1000, past + seq)")
    assert limits.settle(("seq - min(1, seq)",)) == ("seq - min(1, seq)",)
    limits.learn_lengths(("seq - 1", 7))
    assert limits.settle(("seq - min(1, seq)",)) == ("seq - 1",)


def test_a_quotient_has_a_normal_form() -> None:
    """What poolings of 3 and of 1 make of n is written alike, less whole steps."""
    pooled = dim_of(expression("((n - 3)//2) + 1"))
    assert pooled == dim_of(expression("((n - 1)//2)")) == "((1 + n)//(2)) - 1"
    assert dim_of(expression("((n + 7)//4)")) == "((3 + n)//(4)) + 1"
    assert dim_of(expression("((2*n + 5)//4)")) == "((1 + 2*n)//(4)) + 1"
    assert dim_of(expression("((n + 1)//m)")) == "((1 + n)//(m))"  # of an unknown divisor nothing is told
    for n in range(1, 9):
        assert value(pooled, {"n": n}) == (n - 3) // 2 + 1


def test_a_quotient_is_at_least_what_its_dividend_is_that_many_times() -> None:
    limits = Limits()
    cut = ("((n)//(2)) - min(((n)//(2)), 1)",)
    assert limits.settle(cut) == cut
    limits.learn_lengths(("n - 1",))
    assert limits.settle(cut) == cut  # n = 1 has no halves
    limits.learn_lengths(("n - 2",))
    assert limits.settle(cut) == ("((n)//(2)) - 1",)


def test_what_is_the_length_of_something_is_not_negative() -> None:
    limits = Limits()
    assert limits.is_length("n") and not limits.is_length("n - 1")
    limits.learn_lengths(("n - 1",))
    assert limits.is_length("n - 1") and limits.is_length("m + n - 1") and not limits.is_length("n - 2")
    assert slice_dim("n - 2", 0, "n - 2", 1) == "n - min(2, n)"
    assert slice_dim("n - 2", 0, "n - 3", 1) is None
    assert slice_dim("2*n - 1", "n - 1", 1 << 62, 1) == "n"  # a length of 2 n - 1 has n of 1 or more
    assert slice_dim("2*n", "n - 1", 1 << 62, 1) is None  # of none, -1 would be the last but one


def test_powers_are_products() -> None:
    assert dim_of(expression("n**2 + n*(n - 1)")) == "2*n*n - n"
    assert raise_dim("n", 2) == "n*n" and raise_dim(3, 2) == 9
    assert raise_dim("n", 9) is None and raise_dim("n", "m") is None and raise_dim("n", 0) is None
    assert dim_of(expression("n**m")) == "n**m"  # no expression that is known: a name


def test_what_lengths_broadcast_to_has_a_normal_form() -> None:
    assert dim_of(expression("broadcast(n, broadcast(1, m), n)")) == "broadcast(m, n)"
    assert dim_of(expression("4*broadcast(m, m) + broadcast(n, 1)")) == "4*m + n"
    assert dim_of(expression("broadcast(n, 0, m)")) == 0
    assert takes_in("broadcast(m, n)", "n") and takes_in("n", "n") and takes_in(4, "n") and takes_in("n", 1)
    assert not takes_in("n", "broadcast(m, n)") and not takes_in("n", "m") and not takes_in("n", 4)


def test_lengths_that_must_be_equal_show_which_broadcasts_to_which() -> None:
    """Of a tensor with 4 * broadcast(b, c) rows beside one with 4 * b neither has one row. What a MatMul sums over does not
    broadcast at all."""
    limits = Limits()
    limits.learn_broadcast([("4*broadcast(b, c)", 9, 9), ("4*b", 9, 8)])
    assert limits.settle(("broadcast(b, c)", "2*broadcast(b, c)", "c")) == ("b", "2*b", "c")
    limits.learn_equal("broadcast(s, t)", "t")
    assert limits.settle(("broadcast(s, t)", "broadcast(s, t, u)")) == ("t", "broadcast(s, t, u)")
    limits.learn_equal("n", "m")
    limits.learn_broadcast([("broadcast(n, m)",), ("n",)])
    assert limits.settle(("n", "m", "broadcast(m, n)")) == ("n", "m", "broadcast(m, n)")


def test_a_number_beside_what_must_be_equal_shows_what_a_symbol_is() -> None:
    limits = Limits()
    limits.learn_equal(8, "4*b")
    limits.learn_equal("3*c", 9)
    limits.learn_equal("alone", 3)  # keeps its name
    limits.learn_equal(7, "2*odd")  # no length: such a model fails, and says nothing
    limits.learn_equal(9, "n + m")
    assert limits.settle(("b", "5*b", "c", "alone", "odd", "n + m")) == (2, 10, 3, "alone", "odd", "n + m")


def test_a_number_of_elements_shows_what_a_length_is() -> None:
    limits = Limits()
    limits.learn_count(("b", "s"), 14)
    limits.learn_count((3, "t"), 14)  # of no valid run
    assert limits.settle(("b", "s", "t")) == ("b", "s", "t")
    limits.learn_count((2, "s"), 14)
    assert limits.settle(("b", "s", "1 + 2*s")) == ("b", 7, 15)
    limits.learn_count(("s", "b"), 35)
    assert limits.settle(("b",)) == (5,)


def test_the_end_of_a_table_broadcasts_to_what_it_was_cut_to() -> None:
    end = slice_dim(7, "0 - seq", 1 << 40, 1)
    assert end == "tail(7, seq)"
    assert broadcast([("b", "seq", "seq"), (1, end, end)]) == ("b", "seq", "seq")
    assert broadcast([("b", "other"), (1, end)]) == ("b", "broadcast(other, tail(7, seq))")
    # The only row of a table is there once however many rows are asked for: nothing is learnt from it.
    assert slice_dim(1, "0 - seq", 1 << 40, 1) == "tail(1, seq)"
    assert not is_cut_to("tail(1, seq)", "seq")
    limits = Limits()
    limits.learn_broadcast([("seq",), ("tail(1, seq)",)])
    assert limits.settle(("min(7, seq)",)) == ("min(7, seq)",)
    limits.learn_broadcast([("seq",), (end,)])
    assert limits.settle(("min(7, seq)",)) == ("seq",)


def test_an_axis_that_is_never_empty_beside_one_that_is_no_longer() -> None:
    filled = larger_dim(1, "seq")
    assert filled == "1 + seq - min(1, seq)"
    assert broadcast([("b", filled), (1, "min(64, seq)")]) == ("b", "seq")
    # Beside a length of its own it is 1 where there is no row, and that is repeated.
    for other in ("other", "1 + seq"):
        assert broadcast([("b", filled), (1, other)]) == ("b", dim_of(Widest(expression(filled), expression(other))))
        assert not takes_in(other, filled)
    assert broadcast([("b", filled), (1, 1)]) == ("b", filled)
    assert not takes_in("seq", larger_dim(2, "seq"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(BROADCAST_DIMS), min_size=2, max_size=3), SIZES)
def test_a_broadcast_has_the_length_that_numpy_gives(parts: list[Dim], sizes: dict[str, int]) -> None:
    told = broadcast([(part,) for part in parts])[0]
    numbers = [value(part, sizes) for part in parts]
    if told is not None and min(numbers) >= 0 and len({n for n in numbers if n != 1}) < 2:
        assert value(told, sizes) == np.broadcast_shapes(*((n,) for n in numbers))[0]


def test_maxima_are_written_as_minima() -> None:
    cut, rest = slice_dim("seq", 2, 1 << 40, 1), slice_dim("seq", 0, 2, 1)
    assert (cut, rest) == ("seq - min(2, seq)", "min(2, seq)")
    assert add_dims(cut, rest) == "seq"  # what a roll puts together again
    assert dim_of(expression("max(0, seq - 1)")) == "seq - min(1, seq)"
    assert slice_dim("seq", 0, 1 << 40, 2) == "((1 + seq)//(2))"
    assert slice_dim("past + seq", "0 - seq", 1 << 40, 1) == "tail(past + seq, seq)"
    assert broadcast([("seq",), ("tail(past + seq, seq)",)]) == ("seq",)
    assert slice_dim("seq", "0 - seq", 1 << 40, 1) == "seq"


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("b + a", "a + b"),
        ("a*2 + a", "3*a"),
        ("(a + b)*c", "a*c + b*c"),
        ("past + seq - past", "seq"),
        ("min(seq, 512)", "min(512, seq)"),
        ("seq//2", "((seq)//(2))"),
        ("2*(seq//2)", "2*((seq)//(2))"),
        ("batch-size", "batch-size"),
        ("odd name", "odd name"),
        ("x:0/y", "x:0/y"),
        ("min(", "min("),
        ("a//0", "a//0"),
        ("{", "{"),
    ],
)
def test_texts_are_read_as_exporters_write_them(text: str, normal: str) -> None:
    assert dim_of(expression(text)) == normal


def test_what_would_have_a_long_name_has_none() -> None:
    dim: Dim | None = "b"
    for _ in range(MAX_LETTERS):
        dim = multiply_dims(dim, "some_length")
    assert dim is None
    assert add_dims("x" * MAX_LETTERS, "y") is None
    assert isinstance(expression("(" * 3 * MAX_LETTERS), sympy.Symbol)


def test_a_reshape_keeps_what_is_left_over() -> None:
    assert reshape_dims(("4*b", 9, 9), (-1, 4, 9, 9, 1), False) == ("b", 4, 9, 9, 1)
    assert reshape_dims(("b", "s", 32), ("b", "s", 4, -1), False) == ("b", "s", 4, 8)
    assert reshape_dims(("a*c + b*c", 3), ("a + b", -1), False) == ("a + b", "3*c")
    assert reshape_dims(("b", "s"), (5, -1), False) == (5, "((b*s)//(5))")
    assert quotient("b", 2) is None
