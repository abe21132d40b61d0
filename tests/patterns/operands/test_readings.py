"""Where Q, K and V are read: above transposes, head splits and repeats; and tensors brought to the dims of a site."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_fa.match.axes import Atom, Axis, Group
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import OperandChoice
from onnx_fa.patterns.operands.operand import find_readings, read_operand
from onnx_fa.patterns.operands.place import place_tensor
from tests.support.text_graphs import Constant, TextGraph, name_of, run_expr


def describe(choice: OperandChoice) -> str:
    scale = f" * {choice.scale:g}" if choice.scale != 1 else ""
    kept = f" of {choice.integers.quant.dtype}" if choice.integers is not None else ""
    return f"{name_of(choice.value)} {''.join(map(str, choice.layout))} heads {choice.heads}{scale}{kept}"


@pytest.mark.parametrize(
    ("inputs", "body", "constants", "last"),
    [
        ("float[2,6,8,4] x", "y = Identity(x)", {}, "x 0123 heads 6"),
        ("float[2,8,6,4] x", "y = Transpose <perm = [0, 2, 1, 3]> (x)", {}, "x 0213 heads 6"),
        (
            "float[2,8,24] x",
            "u = Reshape(x, c) y = Transpose <perm = [0, 2, 1, 3]> (u)",
            {"c": [2, 8, 6, 4]},
            "u 0213 heads 6",
        ),
        (
            "float[2,3,8,4] x",
            "u = Unsqueeze(x, a) w = Expand(u, c) y = Reshape(w, d)",
            {"a": [2], "c": [2, 3, 2, 8, 4], "d": [2, 6, 8, 4]},
            "x 0123 heads 3",
        ),
        (
            "float[2,3,8,4] x",
            "u = Unsqueeze(x, a) w = Tile(u, c) y = Reshape(w, d)",
            {"a": [2], "c": [1, 1, 2, 1, 1], "d": [2, 6, 8, 4]},
            "x 0123 heads 3",
        ),
        ("float[2,3,8,4] x", "y = Gather <axis = 1> (x, c)", {"c": [0, 0, 1, 1, 2, 2]}, "x 0123 heads 3"),
        ("float[2,1,8,4] x", "y = Expand(x, c)", {"c": [2, 6, 8, 4]}, "x 0123 heads 1"),
        ("float[2,6,8,4] x", "y = Mul(x, c)", {"c": 0.5}, "x 0123 heads 6 * 0.5"),
        ("float[2,6,8,4] x", "y = Div(x, c)", {"c": 4.0}, "x 0123 heads 6 * 0.25"),
        ("int8[2,6,8,4] x", "y = DequantizeLinear(x, c)", {"c": 0.5}, "x 0123 heads 6 of i8"),
        # What is no repeat of heads, or no mere view, ends the walk.
        ("float[2,3,8,4] x", "y = Gather <axis = 1> (x, c)", {"c": [0, 1, 2, 0, 1, 2]}, "y 0123 heads 6"),
        (
            "float[2,3,8,4] x",
            "u = Unsqueeze(x, a) w = Expand(u, c) y = Reshape(w, d)",
            {"a": [1], "c": [2, 2, 3, 8, 4], "d": [2, 6, 8, 4]},
            "y 0123 heads 6",
        ),
        ("float[1,6,8,4] x", "y = Expand(x, c)", {"c": [2, 6, 8, 4]}, "y 0123 heads 6"),
        ("float[2,6,8,4] x", "y = Neg(x)", {}, "y 0123 heads 6"),
        ("float[2,6,8,4] x", "y = Mul(x, c)", {"c": [0.5, 1.0, 1.0, 1.0]}, "y 0123 heads 6"),
        ("float[2,6,4,8] x", "y = Transpose <perm = [0, 1, 3, 2]> (x)", {}, "y 0123 heads 6"),
        ("float[6,8,2,4] x", "y = Reshape(x, c)", {"c": [2, 6, 8, 4]}, "y 0123 heads 6"),
    ],
)
def test_the_reading_furthest_up(inputs: str, body: str, constants: dict[str, Constant], last: str) -> None:
    graph = TextGraph(inputs, body, outputs="y", **constants)
    found = read_operand(graph.view, graph.value("y"), ("b0", "h", "s", "d"), (2, 6, 8, 4))
    assert describe(found[-1]) == last
    assert describe(found[0]) in ("y 0123 heads 6", "x 0123 heads 6")


def test_an_operand_of_another_rank_is_viewed() -> None:
    graph = TextGraph("float[12,8,4] x", "y = Identity(x)")
    batch, heads, rows, width = Atom("b0", 2), Atom("h", 6), Atom("s", 8), Atom("d", 4)
    groups = [Group(a.name, (a,), a.size) for a in (batch, heads, rows, width)]
    found = find_readings(graph.view, graph.value("x"), [[batch, heads], [rows], [width]], groups, {})
    assert [describe(c) for c in found] == ["Reshape(x, [2,6,8,4]) 0123 heads 6"]


@pytest.mark.parametrize(
    ("dims", "axes", "groups", "said"),
    [
        ("6, 8", "b h s t", "b h s t", "m"),
        ("2, 1, 1, 8", "b h s t", "b h s t", "m"),
        ("8, 6", "b h t s", "b h s t", "Transpose(m, perm=(1,0))"),
        ("1, 1, 6, 8", "b h s t", "b h s t", "m"),
        ("1, 1, 1, 6, 8", "b h s t", "b h s t", "Squeeze(m, [0])"),
        ("6, 1, 8, 8", "bh - s t", "b h s t", None),
    ],
)
def test_a_mask_in_the_dims_of_the_site(dims: str, axes: str, groups: str, said: str | None) -> None:
    sizes = {"b": 2, "h": 3, "s": 6, "t": 8}
    atoms = {name: Atom(name, size) for name, size in sizes.items()}
    graph = TextGraph(f"float[{dims}] m", "y = Identity(m)")
    of_axes: list[Axis] = [[atoms[x] for x in word if x in atoms] for word in axes.split()]
    of_groups = [Group(x, (atoms[x],), sizes[x]) for x in groups.split()]
    if said is None:
        with pytest.raises(NoMatch, match="does not provably broadcast"):
            place_tensor(graph.view, graph.value("m"), of_axes, of_groups, {})
        return
    placed = place_tensor(graph.view, graph.value("m"), of_axes, of_groups, {})
    if said.startswith("Transpose"):
        array = np.arange(48).reshape(8, 6)
        shown = run_expr(placed, {"m": array})
        np.testing.assert_array_equal(np.broadcast_to(shown, (2, 3, 6, 8))[1, 2], array.T)
        return
    assert name_of(placed) == said
