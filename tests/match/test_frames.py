"""Axes of the score on their way: through a node that moves them, through the steps, to the softmax and behind it."""

from __future__ import annotations

import pytest

from onnx_fa.match.axes import Atom, Axis
from onnx_fa.match.frames import follow_node, trace_axes
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import (
    Regroup,
    Scale,
    Step,
    Weighting,
)
from onnx_fa.patterns.operands.product import read_product
from onnx_fa.spec.terms import Dim
from tests.support.text_graphs import TextGraph


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
    frames = trace_axes(graph.view, axes_of(b=2, h=3, s=6, t=8), steps, graph.value("t"), weighting, (-2,))
    assert [named(f) for f in frames.steps] == ["b h s t", "b h s t"]
    assert (named(frames.given), named(frames.softmax), named(frames.prob)) == ("b h t s", "b h s t", "b h t s")
    frames = trace_axes(graph.view, axes_of(b=2, h=3, s=6, t=8), steps, graph.value("t"), weighting, (-3, -2))
    assert (named(frames.given), named(frames.softmax)) == ("b h t s", "b s h*t")
    with pytest.raises(NoMatch, match=r"over axes \[-5\]"):
        trace_axes(graph.view, axes_of(b=2, h=3, s=6, t=8), steps, graph.value("t"), weighting, (-5,))
    with pytest.raises(NoMatch, match="to more dims"):
        trace_axes(graph.view, axes_of(h=3, s=6, t=8), steps, graph.value("t"), weighting, (-1,))
