"""Models that fail in every run: their shapes contradict each other whatever the inputs are."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_fa import explain
from onnx_fa.graph.contradiction import find_contradiction
from tests.support.text_graphs import TextGraph

HEADS = "s = Shape(x) b = Slice(s, zero, two) t = Concat <axis = 0> (b, heads) y = Reshape(x, t)"
CONSTANTS = {"zero": [0], "two": [2]}


@pytest.mark.parametrize(
    ("heads", "fails"), [([2, 12], True), ([4, 12], False), ([3, -1], False), ([0, 1], False), ([96, 1], True)]
)
def test_a_number_of_elements_that_no_size_gives(heads: list[int], fails: bool) -> None:
    view = TextGraph("float[batch, sequence, 48] x", HEADS, "y", heads=heads, **CONSTANTS).view
    assert (find_contradiction(view) is not None) == fails


@pytest.mark.parametrize(
    ("inputs", "to"),
    [
        ("float[keys, batch, 48] x", "t = Concat <axis = 0> (seven, b, twelve)"),  # 7 keys fit
        ("float[a, b, 48] x, float[c, d, 24] z", "sz = Shape(z) t = Identity(sz)"),
    ],
)
def test_sizes_that_may_fit_are_no_contradiction(inputs: str, to: str) -> None:
    body = f"s = Shape(x) b = Mul(Slice(s, one, two), four) {to} y = Reshape(x, t)"
    body = body.replace("Mul(Slice(s, one, two), four)", "Mul(cut, four)").replace(
        "b =", "cut = Slice(s, one, two) b ="
    )
    view = TextGraph(inputs, body, "y", one=[1], two=[2], four=[4], seven=[7], twelve=[12]).view
    assert find_contradiction(view) is None


def test_a_branch_that_may_not_run_is_no_contradiction() -> None:
    body = (
        "y = If (c) <then_branch = g () => (a) { a = Reshape(x, six) }, else_branch = h () => (e) { e = Identity(x) }>"
    )
    assert find_contradiction(TextGraph("bool c, float[4] x", body, "y", six=[6]).view) is None


def test_the_reason_of_a_miss_names_the_reshape() -> None:
    """Of an exporter that takes Q for that of K's heads: the batch dims that differ are no reason that helps."""
    body = """s = Shape(x) b = Slice(s, zero, two)
        tq = Concat <axis = 0> (b, heads) q = Reshape(x, tq) qt = Transpose <perm = [0, 2, 1, 3]> (q)
        k = Transpose <perm = [0, 2, 3, 1]> (q)
        scores = MatMul(qt, k) p = Softmax <axis = -1> (scores) out = MatMul(p, w)"""
    inputs = "float[batch, sequence, 48] x, float[batch, 4, sequence, 12] w"
    graph = TextGraph(inputs, body, "out", heads=np.asarray([2, 12]), **CONSTANTS)
    (miss,) = explain(graph.proto).misses
    assert miss.reason.startswith("the model fails in every run with a batch and a length: Reshape:q is to make [batch")
    assert "of [batch, sequence, 48]" in miss.reason
