"""Dims that are numbers or symbols: what is said of sums, products, slices and reshapes holds for every size of the symbols."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from onnx_fa.graph.axes import node_axes, node_axis, placed_axes, placed_axis
from onnx_fa.graph.dims import (
    add_dims,
    broadcast,
    compare_dims,
    divide_dims,
    known,
    multiply_dims,
    product_of,
    subtract_dims,
)
from onnx_fa.graph.shape_rules import multiply_shapes, reshape_dims, slice_dim
from onnx_fa.spec.terms import Dim
from tests.support.text_graphs import Constant, TextGraph

SIZES = {"n": 3, "m": 5, "b": 1}
DIM = st.sampled_from(["n", "m", "b"]) | st.integers(1, 7)
MAX_LENGTH = 1 << 62


def size(dim: Dim | None, sizes: dict[str, int] = SIZES) -> int | None:
    """The number that a dim stands for."""
    return eval(dim, {}, sizes) if isinstance(dim, str) else dim


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.sampled_from("+*-/"), DIM), min_size=1, max_size=5), DIM)
def test_arithmetic(steps: list[tuple[str, Dim]], start: Dim) -> None:
    """Chains of operations, each on the last result and one more dim."""
    total: Dim | None = start
    number: float = size(start) or 0
    for op, dim in steps:
        by = size(dim)
        assert by is not None
        match op:
            case "+":
                total, number = add_dims(total, dim), number + by
            case "*":
                total, number = multiply_dims(total, dim), number * by
            case "-":
                total, number = subtract_dims(total, dim), number - by
            case "/":
                total, number = divide_dims(total, dim), int(number / by)
        if total is None:
            return
    assert size(total) == number


@pytest.mark.parametrize(
    ("have", "want"),
    [
        (add_dims("n", "m"), "m + n"),
        (add_dims("m", "n"), "m + n"),
        (add_dims("n", 0), "n"),
        (add_dims("n", None), None),
        (multiply_dims("n", 2), "2*n"),
        (multiply_dims("n", 0), 0),
        (multiply_dims("n + 1", "m"), "m + m*n"),
        (subtract_dims("n", "n"), 0),
        (subtract_dims("n", 0), "n"),
        (divide_dims(7, 2), 3),
        (divide_dims(-7, 2), -3),
        (divide_dims(7, 2, whole=False), None),
        (divide_dims("n", 1), "n"),
        (divide_dims(7, 0), None),
        (compare_dims(3, 3), 1),
        (compare_dims("n", "n"), 1),
        (compare_dims("n", "m"), None),
        (compare_dims("n", -1), 0),
        (compare_dims(None, None), None),
        (product_of(["n", 2, 3]), "6*n"),
        (product_of([]), 1),
        (product_of([None, 2]), None),
    ],
)
def test_what_is_known(have: Dim | None, want: Dim | None) -> None:
    assert have == want


def test_a_symbol_does_not_grow_without_end() -> None:
    dim: Dim | None = "length"
    for _ in range(12):
        dim = add_dims(multiply_dims(dim, dim), "other")
    assert dim is None


def test_names_that_somebody_gave() -> None:
    assert [known(d) for d in (3, "n", "unk__3", None)] == [True, True, False, False]


@pytest.mark.parametrize(
    ("shapes", "want"),
    [
        ([(2, 1), (3,)], (2, 3)),
        ([("n", 1), (1, "m")], ("n", "m")),
        ([("n",), ("n",)], ("n",)),
        ([("n",), ("m",)], ("broadcast(m, n)",)),
        ([("n",), ("broadcast(m, n)",)], ("broadcast(m, n)",)),
        ([("k",), ("broadcast(m, n)",), ("m",)], ("broadcast(k, m, n)",)),
        ([("broadcast(m, n)",), (4,)], (4,)),
        ([("n",), (None,)], (None,)),
        ([("n",), (4,)], (4,)),
        ([(None,), (4,)], (4,)),
        ([(None,), (1,)], (None,)),
        ([(), (0, 1)], (0, 1)),
    ],
)
def test_broadcast(shapes: list[tuple[Dim | None, ...]], want: tuple[Dim | None, ...]) -> None:
    assert broadcast(shapes) == want


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    dim=st.sampled_from(["n", "n + 3", "3 + n"]) | st.integers(0, 6),
    start=st.integers(-8, 8),
    end=st.integers(-8, 8) | st.just(MAX_LENGTH),
    step=st.integers(1, 3),
)
def test_a_slice_of_any_length(dim: Dim, start: int, end: int, step: int) -> None:
    made = slice_dim(dim, start, end, step)
    if made is None:
        return
    # A slice of one element is taken for one even where the axis may be empty.
    for n in range(1 if (start, end, step) == (0, 1, 1) else 0, 9):
        length = size(dim, {"n": n})
        assert length is not None
        assert size(made, {"n": n}) == len(range(length)[start:end:step]), (dim, start, end, step, made, n)


@pytest.mark.parametrize(
    ("dim", "start", "end", "step", "want"),
    [
        ("n", 0, MAX_LENGTH, 1, "n"),
        ("n", 0, "n", 1, "n"),
        ("n + 3", 2, MAX_LENGTH, 1, "1 + n"),
        ("n + 3", 1, -2, 1, "n"),
        ("n + 3", 0, -1, 1, "2 + n"),
        ("n", 1, MAX_LENGTH, 1, "n - min(1, n)"),
        ("n + 3", 4, MAX_LENGTH, 1, "n - min(1, n)"),
        ("n", 0, 5, 1, "min(5, n)"),
        (None, 0, MAX_LENGTH, 1, None),
        (7, None, 3, 1, None),
        (7, 6, 0, -1, 6),
        (7, 9, -9, -2, 4),
        (7, -2, 5, -1, 0),
        (0, -1, -5, -1, 0),
        (7, None, 0, -1, None),
        ("n", 6, 0, -1, None),
    ],
)
def test_a_slice(dim: Dim | None, start: Dim | None, end: Dim, step: int, want: Dim | None) -> None:
    assert slice_dim(dim, start, end, step) == want


@pytest.mark.parametrize(
    ("source", "to", "want"),
    [
        ((2, 3, 4), (6, -1), (6, 4)),
        (("n", 3, 4), (0, -1), ("n", 12)),
        (("n", 3, 4), (-1, 4), ("3*n", 4)),
        (("n", "m", 4), ("n", -1), ("n", "4*m")),
        (("n", 12), ("n", 4, -1), ("n", 4, 3)),
        (("n", 5), (-1, 2), ("((5*n)//(2))", 2)),
        ((3, 5), (-1, 2), (None, 2)),
        (("n", 4), ("m", -1), ("m", "((4*n)//(m))")),
        ((None, 4), (-1, 4), (None, 4)),
        (("n", 4), (None, -1), (None, None)),
        ((2, 0, 3), (0, 0, 3), (2, 0, 3)),
    ],
)
def test_a_reshape(source: tuple[Dim | None, ...], to: tuple[Dim | None, ...], want: tuple[Dim | None, ...]) -> None:
    assert reshape_dims(source, to, allow_zero=False) == want


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(DIM, min_size=1, max_size=4), st.lists(DIM, min_size=0, max_size=3), st.integers(0, 3))
def test_what_a_reshape_leaves_over(source: list[Dim], to: list[Dim], at: int) -> None:
    wanted = [*to[:at], -1, *to[at:]]
    made = reshape_dims(tuple(source), tuple(wanted), allow_zero=False)
    left = made[wanted.index(-1)]
    if left is not None:
        # Sizes that leave a remainder, or none of many, are those of a Reshape that fails.
        numbers = [size(d) or 0 for d in source], [size(d) or 0 for d in to]
        count, kept = math.prod(numbers[0]), math.prod(numbers[1])
        fails = count % kept > 0 if kept else count > 0
        assert fails or (size(left) or 0) * kept == count


def test_shapes_of_products() -> None:
    assert multiply_shapes(("b", 3, "n", 4), (3, 4, "m")) == ("b", 3, "n", "m")
    assert multiply_shapes((4, "n"), (4, 7), swap_a=True) == ("n", 7)
    assert multiply_shapes((6, 4), ("m", 4), swap_b=True) == (6, "m")
    assert multiply_shapes((4,), (4, 7)) is None and multiply_shapes((3, 4), None) is None


def test_axes_by_name() -> None:
    assert [placed_axis(a, 3) for a in (0, -1, -3, 3, -4)] == [0, 2, 0, None, None]
    assert placed_axes([0, -1], 3) == {0, 2}
    assert placed_axes([0, -3], 3) is None and placed_axes([5], 3) is None and placed_axes(None, 3) is None
    graph = TextGraph(
        "float[2,3,4] x, int64[1] a",
        "t = Squeeze(x, c) u = Squeeze(x, a) v = Squeeze(x) y = Softmax <axis = -1> (x)",
        c=[0, -1],
    )
    view = graph.view
    assert node_axes(graph.node("t"), view.const) == [0, -1]
    assert node_axes(graph.node("u"), view.const) is None and node_axes(graph.node("v"), view.const) is None
    assert node_axis(graph.node("y"), 3) == 2


@pytest.mark.parametrize(
    ("inputs", "body", "want"),
    [
        ("float[n,4] x", "s = Shape(x) y = ConstantOfShape(s)", ("n", 4)),
        (
            "float[n,4] x",
            "s = Shape(x) d = Gather(s, zero) u = Unsqueeze(d, axes) t = Concat <axis = 0> (u, minus) y = Reshape(x, t)",
            ("n", 4),
        ),
        (
            "float[n,4] x",
            "s = Shape <start = 0, end = 1> (x) t = Concat <axis = 0> (s, two, two) y = Reshape(x, t)",
            ("n", 2, 2),
        ),
        (
            "float[n,4] x",
            "s = Shape(x) d = Gather(s, zero) m = Mul(d, two) t = Concat <axis = 0> (m, two) y = Reshape(x, t)",
            ("2*n", 2),
        ),
        ("float[n,4] x", "s = Shape(x) d = Gather(s, zero) y = Range(zero, d, one)", ("n",)),
        ("float[n,4] x", "y = Concat <axis = 0> (x, x)", ("2*n", 4)),
        ("float[n,4] x, float[m,4] z", "c = Concat <axis = 0> (x, z) y = Transpose(c)", (4, "m + n")),
        ("float[n,4] x", "u = Unsqueeze(x, axes) y = Expand(u, wide)", (5, "n", 4)),
        ("float[n,4] x, float[4,m] z", "y = MatMul(x, z)", ("n", "m")),
        ("float[n,4] x", "y = ReduceSum <keepdims = 1> (x, axes)", (1, 4)),
        ("float[n,4] x, float[n] z", "u = Unsqueeze(z, minus) y = Add(x, u)", ("n", 4)),
        ("float[n,4] x", 'y = Einsum <equation = "ij,kj->ik"> (x, x)', ("n", "n")),
        (
            "float[n,6] x",
            "s = Shape(x) d = Gather(s, one) h = Div(d, two) t = Concat <axis = 0> (minus, h) y = Reshape(x, t)",
            ("2*n", 3),
        ),
        ("float[n,4] x", "y = Flatten <axis = 1> (x)", ("n", 4)),
        ("float[n,4] x", "y = Gather <axis = 1> (x, zero)", ("n",)),
    ],
)
def test_shapes_by_name(inputs: str, body: str, want: tuple[Dim, ...]) -> None:
    """As they are said; and as ONNX's evaluator makes them, whatever the sizes."""
    constants: dict[str, Constant] = {
        "zero": 0,
        "one": 1,
        "axes": [0],
        "minus": [-1],
        "two": [2],
        "wide": np.asarray([5, 1, 1]),
    }
    used = {n: v for n, v in constants.items() if n in body.replace("=", " ")}
    graph = TextGraph(inputs, body, outputs="y", **used)
    assert graph.view.shape(graph.value("y")) == want
    for sizes in ({"n": 3, "m": 5}, {"n": 1, "m": 2}):
        feeds = {
            v.name: np.zeros([d if isinstance(d, int) else sizes[str(d.value)] for d in v.shape or ()], np.float32)
            for v in graph.model.graph.inputs
        }
        (y,) = ReferenceEvaluator(graph.proto).run(None, feeds)
        assert y.shape == tuple(size(d, sizes) for d in want)
