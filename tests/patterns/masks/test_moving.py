"""Ops that only move elements: the index into an op's operand for an index into its result, against what the op does."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from onnx_fa.patterns.masks import moving
from onnx_fa.patterns.masks.choosing import choose_by_split
from onnx_fa.patterns.masks.elements import Elements, Unread, Untraceable, place_axis, type_range
from onnx_fa.patterns.masks.expressions import integer
from onnx_fa.spec.expr import SKV, SQ, K, Q, ScoreExpr, evaluate, words
from tests.support.text_graphs import Constant, TextGraph

STEPS = {
    "Transpose": moving.undo_transpose,
    "Unsqueeze": moving.undo_unsqueeze,
    "Squeeze": moving.undo_squeeze,
    "Expand": moving.undo_expand,
    "Tile": moving.undo_tile,
    "Reshape": moving.undo_reshape,
    "Flatten": moving.undo_reshape,
    "Slice": moving.undo_slice,
}


def asked_index(graph: TextGraph, name: str, index: tuple[ScoreExpr, ...], shape: tuple[int, ...]) -> list[ScoreExpr]:
    """The index at which the node that makes `name` asks for its operand's element."""
    elements = Elements(graph.view, (1, 1, *((1, 1, *shape)[-2:])), "f32")
    node = graph.node(name)
    with pytest.raises(Unread) as asked:
        if node.op_type == "Split":
            choose_by_split(elements, node, graph.value(name), index)
        else:
            STEPS[node.op_type](elements, node, index)
    assert asked.value.key[0] is node.inputs[0]
    return list(asked.value.key[1])


def check(shape: tuple[int, ...], body: str, **constants: Constant) -> None:
    """Of `y`, made from x of that shape, every element is the one of x at the index asked for."""
    graph = TextGraph(f"int64[{', '.join(map(str, shape))}] x", body, outputs="y", **constants)
    x = np.arange(np.prod(shape)).reshape(shape)
    (y,) = ReferenceEvaluator(graph.proto).run(None, {"x": x})
    last = (Q, K)[2 - min(y.ndim, 2) :]
    area = (1, 1, *y.shape)[-2:]
    for lead in itertools.product(*(range(n) for n in y.shape[:-2])):
        index = asked_index(graph, "y", (*map(integer, lead), *last), y.shape)
        at = [np.broadcast_to(evaluate(i, np.zeros(area), []), area) for i in index]
        np.testing.assert_array_equal(x[tuple(at)].reshape(y.shape[-2:]), y[lead])


@pytest.mark.parametrize(
    ("shape", "body", "constants"),
    [
        ((2, 3, 4), "y = Transpose <perm = [2, 0, 1]> (x)", {}),
        ((2, 3, 4), "y = Transpose (x)", {}),
        ((3, 4), "y = Unsqueeze (x, a)", {"a": [0, -1]}),
        ((3, 1, 4), "y = Squeeze (x, a)", {"a": [1]}),
        ((1, 3, 1, 4), "y = Squeeze (x)", {}),
        ((3, 1), "y = Expand (x, a)", {"a": [2, 1, 5]}),
        ((3, 4), "y = Tile (x, a)", {"a": [2, 3]}),
        ((1, 4), "y = Tile (x, a)", {"a": [5, 1]}),
        ((2, 6), "y = Reshape (x, a)", {"a": [3, 4]}),
        ((2, 3, 4), "y = Reshape (x, a)", {"a": [6, -1]}),
        ((6, 4), "y = Reshape (x, a)", {"a": [2, 3, -1]}),
        ((6, 4), "y = Reshape (x, a)", {"a": [1, 2, 12]}),
        ((2, 3, 4), "y = Flatten <axis = 2> (x)", {}),
        ((5, 7), "y = Slice (x, a, b)", {"a": [1, 2], "b": [4, 7]}),
        ((5, 7), "y = Slice (x, a, b, c)", {"a": [-3], "b": [9], "c": [-1]}),
        ((5, 9), "y = Slice (x, a, b, c, d)", {"a": [1], "b": [9], "c": [1], "d": [3]}),
        ((4, 7), "z, y = Split <axis = 1> (x, a)", {"a": [3, 4]}),
    ],
)
def test_moved_elements(shape: tuple[int, ...], body: str, constants: dict[str, Constant]) -> None:
    check(shape, body, **constants)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.permutations([2, 3, 2, 1]), st.data())
def test_any_reshape(sizes: list[int], data: st.DataObject) -> None:
    """Any grouping of neighbours, from any order of the same sizes."""
    cuts = data.draw(st.lists(st.booleans(), min_size=3, max_size=3))
    target = [sizes[0]]
    for size, cut in zip(sizes[1:], cuts, strict=True):
        target = [*target, size] if cut else [*target[:-1], target[-1] * size]
    order = data.draw(st.permutations([2, 3, 2, 1]))
    check(tuple(order), "y = Reshape (x, a)", a=target)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(-7, 6), st.integers(-9, 9), st.integers(1, 3))
def test_any_slice(start: int, end: int, step: int) -> None:
    if len(range(5)[start:end:step]):
        check((2, 5), "y = Slice (x, a, b, c, d)", a=[start], b=[end], c=[1], d=[step])


@pytest.mark.parametrize(
    ("inputs", "body", "constants"),
    [
        ("int64[n, 4] x", "y = Reshape (x, a)", {"a": [-1, 2]}),
        ("int64[n, 4] x", "y = Slice (x, a, b)", {"a": [-3, 0], "b": [9, 4]}),
        ("int64[5, 4] x", "y = Slice (x, a, b, c, d)", {"a": [4], "b": [-9], "c": [0], "d": [-1]}),
        ("int64[5, 4] x, int64[2] a", "y = Slice (x, a, a)", {}),
        ("int64[n, 4] x, int64[2] a", "y = Tile (x, a)", {}),
    ],
)
def test_what_cannot_be_followed(inputs: str, body: str, constants: dict[str, Constant]) -> None:
    graph = TextGraph(inputs, body, outputs="y", **constants)
    node = graph.node("y")
    with pytest.raises(Untraceable):
        STEPS[node.op_type](Elements(graph.view, (1, 1, 5, 4), "f32"), node, (Q, K))


def test_axes_and_ranges() -> None:
    assert [place_axis(a, 3) for a in (0, 2, -1, -3)] == [0, 2, 2, 0]
    for axis in (3, -4):
        with pytest.raises(Untraceable):
            place_axis(axis, 3)
    assert type_range(TextGraph("uint8[2] x", "y = Identity(x)").value("x").dtype) == (0, 255)  # type: ignore[arg-type]


def test_what_elements_know() -> None:
    graph = TextGraph("int64[3, 1] x, int64[n] z, int64[p] w", "y = Identity(x)")
    elements = Elements(graph.view, (1, 2, "n", "p + n"), "f32")
    assert elements.express_size(4) == integer(4)
    assert [elements.express_size(d) for d in ("n", "p + n", "m", "unk__1", None)] == [SQ, SKV, None, None, None]
    assert words(elements.express_size("p")) == "(Skv - Sq)"  # type: ignore[arg-type]
    with pytest.raises(Unread):
        elements.read(graph.value("x"), (Q, K))
    elements.known[graph.value("x"), (Q, K)] = None
    with pytest.raises(Untraceable):
        elements.read(graph.value("x"), (Q, K))
