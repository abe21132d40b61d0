"""Which dims of two products are keys, queries, heads and head dims, and what equal ones are called."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir
import pytest

from onnx_fa.graph.view import GraphView
from onnx_fa.match.axes import Atom
from onnx_fa.match.dims import best_name, find_queries, find_side_of_keys, is_unit, merge_sizes, name_atoms
from onnx_fa.match.frames import Frames
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import (
    Product,
)
from onnx_fa.patterns.operands.product import read_product
from onnx_fa.spec.terms import Dim
from tests.support.text_graphs import TextGraph


def product_of(inputs: str, body: str) -> tuple[GraphView, Product]:
    graph = TextGraph(inputs, body, outputs="y")
    found = read_product(graph.view, graph.value("y"))
    assert found is not None
    return graph.view, found


@pytest.mark.parametrize(
    ("dims", "said"),
    [((), 1), ((4, "n"), 4), (("n", 4), 4), (("unk__1", "n"), "n"), ((None, "unk__1"), "unk__1"), ((None,), "other")],
)
def test_the_best_name_of_equal_sizes(dims: tuple[Dim | None, ...], said: Dim) -> None:
    assert best_name(dims, "other") == said


def test_letters_become_atoms() -> None:
    view, qk = product_of("float[1,3,6,4] q, float[2,3,4,n] kt", "y = MatMul(q, kt)")
    atoms = name_atoms(view, qk, qk.node)
    assert {x: a.size for x, a in atoms.items()} == {"A": 2, "B": 3, "m": 6, "k": 4, "n": "n"}
    assert is_unit(qk, 0, "A") and not is_unit(qk, 1, "A")
    view, apart = product_of("float[b,3,6,4] q, float[c,3,4,8] kt", "y = MatMul(q, kt)")
    assert name_atoms(view, apart, apart.node)["A"].size == "broadcast(b, c)"
    assert [x for x, a in name_atoms(view, apart, apart.node).items() if a.apart] == ["A"]
    view, other = product_of("float[b,3,6,4] q, float[N,3,4,8] kt", "y = MatMul(q, kt)")
    other = replace(other, shapes=(other.shapes[0], (None, *other.shapes[1][1:])))
    with pytest.raises(NoMatch, match=r"batch dims of Q .* and K .* are not provably equal; --dim 'b=N' --dim 'N=N' "):
        name_atoms(view, other, other.node)


def test_which_operand_is_k() -> None:
    view, qk = product_of("float[2,3,6,4] q, float[2,3,4,8] kt", "y = MatMul(q, kt)")
    atoms = name_atoms(view, qk, qk.node)
    assert find_side_of_keys(qk, atoms, [atoms["n"]], qk.node) == 1
    assert find_side_of_keys(qk, atoms, [atoms["m"]], qk.node) == 0
    with pytest.raises(NoMatch, match="over another axis than the keys"):
        find_side_of_keys(qk, atoms, [atoms["B"]], qk.node)
    with pytest.raises(NoMatch, match="over keys and over another axis too"):
        find_side_of_keys(qk, atoms, [atoms["m"], atoms["n"]], qk.node)


def test_which_dim_are_the_queries() -> None:
    b, h, s, t = Atom("b", 2), Atom("h", 3), Atom("s", 6), Atom("t", 8)
    frames = Frames([], softmax=[[b], [h], [s], [t]])
    assert find_queries(frames, {h, s}, [h, s], 1) == [s]
    assert find_queries(frames, {h}, [h], 1) == [h]
    assert find_queries(Frames([], softmax=[[b], [], [t]]), {b}, [b], 1) == []


def test_which_dims_are_the_queries_where_keys_are_two() -> None:
    b, h, i, j, t = Atom("b", 2), Atom("h", 3), Atom("i", 6), Atom("j", 5), Atom("t", 8)
    frames = Frames([], softmax=[[b], [h], [i], [j], [t]])
    assert find_queries(frames, {j, i, h}, [j, i, h], 2) == [i, j]
    assert find_queries(frames, {j}, [h, j], 2) == [j]
    assert find_queries(frames, set(), [h], 2) == []


def test_sizes_of_several_atoms() -> None:
    node = ir.Node("", "MatMul", [], name="qk")
    a, b, n = Atom("a", 2), Atom("b", 3), Atom("n", "rows")
    assert merge_sizes(node, "q", [a, b]) == 6
    assert merge_sizes(node, "q", [n]) == "rows"
    assert merge_sizes(node, "q", [a, n]) == "qk_q"
