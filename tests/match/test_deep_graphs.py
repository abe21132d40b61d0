"""Chains of hundreds of nodes and expressions shared at every level end in a site or a miss, soon, and never in a traceback."""

from __future__ import annotations

import sys
import time

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnx_fa.forms.rewrite import explain, rewrite
from onnx_fa.match.exprs import Call, values_of
from tests.match.test_soundness import _feeds
from tests.support import deep_graphs as deep
from tests.support.ort_run import run

SECONDS = 60
"""What took exponential time is far beyond, and a busy machine is not."""


def check(model: onnx.ModelProto, feeds: dict[str, np.ndarray] | None = None) -> int:
    """Rewrites and compares; the number of sites. Python's own stack is half of what it usually is."""
    limit, start = sys.getrecursionlimit(), time.monotonic()
    sys.setrecursionlimit(600)
    try:
        new, report = rewrite(model)
    finally:
        sys.setrecursionlimit(limit)
    assert time.monotonic() - start < SECONDS
    assert report.sites or report.misses
    feeds = feeds or _feeds(model)
    want, have = run(model, feeds, optimise=False)[0], run(new, feeds, optimise=False)[0]
    np.testing.assert_array_equal(np.isnan(want), np.isnan(have))
    a, b = np.nan_to_num(want), np.nan_to_num(have)
    assert np.linalg.norm(a - b) <= 2e-5 * np.linalg.norm(a)
    return len(report.sites)


@pytest.mark.parametrize("op", deep.BOOLS)
def test_chains_of_conditions(op: str) -> None:
    assert check(deep.bools(op, 150)) == 1


@pytest.mark.parametrize("op", deep.INTS)
def test_chains_of_whole_numbers(op: str) -> None:
    assert check(deep.ints(op, 400 if op == "Where" else 150)) == 1


@pytest.mark.parametrize("op", deep.SCORES)
def test_chains_of_scores(op: str) -> None:
    report = explain(deep.scores(op, 200))
    assert [m.reason for m in report.misses] == ["more than 32 layers between the matmul and the softmax"]


@pytest.mark.parametrize("op", deep.PROBABILITIES)
def test_chains_behind_the_softmax(op: str) -> None:
    report = explain(deep.probabilities(op, 400))
    assert len(report.sites) == (op in ("Identity", "p * 1")) and len(report.sites + report.misses) == 1


@pytest.mark.parametrize("depth", [18, 60])
def test_conditions_that_share_their_parts(depth: int) -> None:
    assert check(deep.shared(depth)) == 1


def test_a_decode_loop_written_out() -> None:
    assert check(deep.decoding(40, attending=40), deep.decoding_feeds()) == 40
    assert len(explain(deep.decoding(800, attending=3)).sites) == 3


def test_a_chain_of_dims_that_double_has_no_endless_name() -> None:
    g = deep.Graph(18)
    k = g.input("k", [1, 2, "past", 4])
    for _ in range(60):
        k = g.op("Concat", k, k, axis=2)
    q = g.input("q", [1, 2, 3, 4])
    score = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
    g.nodes.append(onnx.helper.make_node("MatMul", [g.op("Softmax", score, axis=-1), k], ["o"]))
    report = explain(g.model({"o": ([1, 2, 3, 4], onnx.TensorProto.FLOAT)}))
    assert len(report.sites + report.misses) == 1


def test_the_values_of_a_shared_expression() -> None:
    x = ir.Value(name="x")
    expr: Call | ir.Value = x
    for _ in range(2000):
        expr = Call("Add", (expr, expr))
    assert values_of(expr) == [x]
