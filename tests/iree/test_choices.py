"""Choices between two values that are one, as compiled models have them, against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnx_fa
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.rules import legalize
from tests.support.ort_run import Array, run
from tests.support.text_graphs import TextGraph


def test_one_hots_of_numbers_that_are_one(tmp_path: Path) -> None:
    """Repeats of one by a number that is one, which the compiler finds out; other numbers, along the first axis; the same number
    twice."""
    body = """
        sizes = Shape(x)
        size = Slice(sizes, one, two, zero)
        both = Concat<axis=0>(one, size)
        repeats = OneHot(one, second, both)
        flat = Reshape(repeats, two)
        tiled = Tile(x, flat)
        some = Concat<axis=0>(two, size)
        hot = OneHot<axis=0>(places, third, some)
        ones = OneHot(places, third, same)
    """
    outputs = "float[n,t] tiled, int64[3,m] hot, int64[m,3] ones"
    vectors = {"one": [1], "two": [2], "zero": [0], "same": [7, 7]}
    model = TextGraph("float[n,1] x, int64[m] places", body, outputs, second=2, third=3, **vectors).proto
    feeds = {"x": np.arange(3, dtype=np.float32)[:, None], "places": np.array([0, -1, 2, 5, 1], np.int64)}
    _assert_same(model, feeds, tmp_path)


@pytest.mark.parametrize("kind, number", [("float", np.inf), ("int64", -3)])
def test_choices_between_a_number_and_itself(kind: str, number: float, tmp_path: Path) -> None:
    body = """
        named = Where(condition, x, x)
        equal = Where(condition, a, b)
        no = Not(yes)
        small = Where(no, x, x)
    """
    dtype = np.float32 if kind == "float" else np.int64
    same = np.full(1, number, dtype)
    graph = TextGraph(f"bool[n,2] condition, {kind} x", body, "named, equal, small", a=same, b=same, yes=np.array(True))
    feeds = {"condition": np.array([[True, False], [False, True], [True, True]]), "x": np.array(number, dtype)}
    _assert_same(graph.proto, feeds, tmp_path)


def test_what_stays_as_it_is() -> None:
    """Numbers that are known and differ, and choices between values that nothing says are one."""
    body = """
        hot = OneHot(places, three, numbers)
        z = Where(condition, x, y)
    """
    inputs = "int64[n] places, bool[n] condition, float x, float y"
    model = legalize(TextGraph(inputs, body, "hot, z", three=3, numbers=[0.0, 1.0]).proto)
    assert [op_of(node) for node in model.graph.node] == ["OneHot", "Where"]


def _assert_same(model: onnx.ModelProto, feeds: dict[str, Array], folder: Path) -> None:
    onnx_fa.compile(model, folder / "m.vmfb")
    got = onnx_fa.run(folder / "m.vmfb", *feeds.values())
    for output, found, want in zip(model.graph.output, got, run(model, feeds), strict=True):
        np.testing.assert_array_equal(found, want, err_msg=output.name)
