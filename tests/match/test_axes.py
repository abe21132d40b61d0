"""Axes as lists of atoms: what reshapes and transposes do to them, and that the ops that are written move the same elements."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnx_fa.match.axes import (
    Atom,
    Axis,
    Source,
    expand_axes,
    has_size,
    leaves,
    move_axes,
    multiply_sizes,
    regroup,
    regroup_axes,
    split_atom,
    spread_atom,
)
from onnx_fa.match.misses import NoMatch
from onnx_fa.spec.terms import Dim
from tests.support.text_graphs import name_of, run_expr

X = ir.Value(name="x")


def atoms(**sizes: Dim) -> dict[str, Atom]:
    return {name: Atom(name, size) for name, size in sizes.items()}


def named(axes: list[Axis] | None) -> str | None:
    """Axes in words: the names of each axis' atoms, - for a unit axis."""
    return None if axes is None else " ".join("*".join(a.name for a in axis) or "-" for axis in axes)


@pytest.mark.parametrize(
    ("sizes", "dims", "said"),
    [
        ({"a": 2, "b": 3, "c": 4}, (2, 3, 4), "a b c"),
        ({"a": 2, "b": 3, "c": 4}, (6, 4), "a*b c"),
        ({"a": 2, "b": 3, "c": 4}, (2, 1, 12), "a - b*c"),
        ({"a": 6, "b": 4}, (2, 3, 4), "a.r a.lo b"),
        ({"a": 6, "b": 4}, (24,), "a*b"),
        ({"a": "n", "b": 3, "c": 4}, ("n", 12), "a b*c"),
        ({"a": "n", "b": 3}, (None, 3), "a b"),
        ({"a": "n", "b": "m"}, ("n", "m"), "a b"),
        ({"a": "n", "b": "m"}, ("unk__3",), "a*b"),
        ({"a": "n", "b": 3}, ("w", "v", 3), "a.0 a.1 b"),
        ({"a": 2, "b": 1, "c": 4}, (2, 4), "a c"),
        ({"a": "2*n", "b": "3*m", "c": 4}, ("n", 2, 3, "m", 4), "a.0 a.1 b.0 b.1 c"),
        ({"a": 2, "b": "n", "c": 3}, ("2*n", 3), "a*b c"),
        ({"a": "2*n", "b": 3}, ("n", 3, 2), None),
        ({"a": 6, "b": 4}, (4, 6), None),
        ({"a": "n", "b": "m"}, ("m", "n"), None),
        ({"a": 5, "b": 4}, (2, 10), None),
    ],
)
def test_regroup(sizes: dict[str, Dim], dims: tuple[Dim | None, ...], said: str | None) -> None:
    assert named(regroup(list(atoms(**sizes).values()), dims, split_atom, spread_atom)) == said


def test_parts_stand_for_the_whole() -> None:
    whole = Atom("a", 12)
    inner, outer = split_atom(whole, 4, True)
    assert (inner.size, outer.size) == (4, 3) and leaves([whole]) == [outer, inner]
    first, rest = split_atom(outer, 3, False)
    assert leaves([whole]) == [first, rest, inner]
    assert has_size([whole], 12) and has_size([first, rest, inner], 12) and not has_size([inner], 12)
    named_parts = Atom("n", "rows")
    a, b = spread_atom(named_parts, [2, None])
    assert (a.size, b.size) == (2, "rows.1")
    assert has_size([a, b], "rows") and not has_size([b], "rows")
    assert multiply_sizes([whole, named_parts]) == (12, {"rows": 1})


def test_has_size_only_if_provable() -> None:
    a, b = Atom("a", "n"), Atom("b", 3)
    assert has_size([a], "n") and has_size([b], 3) and has_size([], 1)
    assert not has_size([a], "m") and not has_size([a, b], "n") and not has_size([b, a], 3)


def lay_out(axes: list[Axis], order: list[Atom]) -> np.ndarray:
    """Numbers that say which element is which, where the atoms in `order` are the row-major axes of all numbers."""
    base = np.arange(np.prod([int(a.size) for a in order])).reshape([int(a.size) for a in order])
    flat = [a for axis in axes for a in axis]
    return base.transpose([order.index(a) for a in flat]).reshape([int(np.prod([a.size for a in x])) for x in axes])


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.data())
def test_moved_elements_are_where_the_axes_say(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(2, 3), min_size=2, max_size=4))
    order = [Atom(f"a{i}", n) for i, n in enumerate(sizes)]

    def group(flat: list[Atom]) -> list[Axis]:
        axes: list[Axis] = [[flat[0]]]
        for atom in flat[1:]:
            match data.draw(st.integers(0, 3)):
                case 0:
                    axes[-1].append(atom)
                case 1:
                    axes += [[], [atom]]
                case _:
                    axes.append([atom])
        return axes

    have, want = group(order), group(data.draw(st.permutations(order)))
    made = move_axes(X, have, want, {})
    np.testing.assert_array_equal(run_expr(made, {"x": lay_out(have, order)}), lay_out(want, order), name_of(made))


@pytest.mark.parametrize(
    ("have", "want", "said"),
    [
        ("a b", "a b", "x"),
        ("a b", "b a", "Transpose(x, perm=(1,0))"),
        ("a - b", "a b", "Squeeze(x, [1])"),
        ("a b", "- a b -", "Unsqueeze(x, [0,3])"),
        ("a b", "a*b", "Reshape(x, [6])"),
        ("a*b n", "a b n", "Reshape(x, [2,3,-1])"),
        ("n a b", "n a*b", "Reshape(x, [0,6])"),
        ("a b n m", "n m b a", "Transpose(x, perm=(2,3,1,0))"),
        ("a*b n m", "a b n m", "Reshape(x, Concat([2], [3], [-1], Slice(Shape(x), [2], [3]), axis=0))"),
    ],
)
def test_what_is_written(have: str, want: str, said: str) -> None:
    known = atoms(a=2, b=3, n="n", m="m")
    axes = [[[known[x] for x in word.split("*") if x != "-"] for word in side.split()] for side in (have, want)]
    assert name_of(move_axes(X, axes[0], axes[1], {})) == said


def test_sizes_known_only_at_run_time() -> None:
    known = atoms(n="n", m="m", a=2)
    n, m, a = (known[x] for x in "nma")
    sources = {n: Source(ir.Value(name="q"), 1)}
    assert (
        name_of(expand_axes(X, [None, [n], [a]], sources))
        == "Expand(x, Concat([1], Slice(Shape(q), [1], [2]), [2], axis=0))"
    )
    assert name_of(expand_axes(X, [None, []], sources)) == "x"
    with pytest.raises(NoMatch, match="needs the size m, which is that of no axis"):
        regroup_axes(X, [[n, m], [a]], [[n], [m], [a]], sources)
    sources[m] = Source(ir.Value(name="k"), 0)
    said = "Reshape(x, Concat([-1], Slice(Shape(k), [0], [1]), [2], axis=0))"
    assert name_of(regroup_axes(X, [[n, m], [a]], [[n], [m], [a]], sources)) == said
    del sources[m]
    with pytest.raises(NoMatch, match="needs the size m, which is that of no axis"):
        expand_axes(X, [[m]], sources)
    with pytest.raises(NoMatch, match="none of the attention's"):
        move_axes(X, [[n]], [[m]], sources)
