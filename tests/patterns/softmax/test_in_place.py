"""Functions of the score in place of a softmax: where one begins and ends, what it is, and what is no attention."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import After
from onnx_fa.patterns.softmax import in_place, own_sum
from onnx_fa.spec.expr import SCORE, words
from tests.support.text_graphs import Constant, TextGraph, describe_step, name_of

INPUTS = (
    "float[2,3,6,4] q, float[2,3,4,8] kt, float[2,3,8,5] v, float[2,3,5,6] vt, float[8,5] flat, bool[6,8] keep, float[6,8] near, "
    "float[6,1] row, float[2,3,5,6] cols"
)
NUMBERS: dict[str, Constant] = {
    "last": [-1],
    "other": [-2],
    "rows": [2],
    "half": 0.5,
    "one": 1.0,
    "two": 2.0,
    "zero": 0.0,
    "some": 1e-6,
    "root": 2**0.5,
    "cap": 5.0,
    "keys": np.ones((2, 3, 4, 8), np.float32),
    "values": np.ones((2, 3, 8, 5), np.float32),
    "triangle": np.tril(np.ones((6, 8), np.float32)),
    "shape": [6, 6, 8],
}


def graph_of(body: str) -> TextGraph:
    numbers = {name: value for name, value in NUMBERS.items() if name in body}
    return TextGraph(INPUTS, body, outputs="o", **numbers)


@pytest.mark.parametrize(
    ("body", "node", "said"),
    [
        ("p = Sigmoid(s) o = MatMul(p, v)", "p", "s to p, axis -1: sigmoid(score), called sigmoid"),
        ("d = Mul(s, half) p = Relu(d) o = MatMul(p, v)", "p", "d to p, axis -1: relu(score), called relu"),
        (
            "r = Relu(s) p = Mul(r, r) o = MatMul(p, v)",
            "r",
            "s to p, axis -1: (relu(score) * relu(score)), called squared_relu",
        ),
        (
            "r = Relu(s) p = Pow(r, two) o = MatMul(p, v)",
            "r",
            "s to p, axis -1: pow(relu(score), 2), called squared_relu",
        ),
        ("r = Relu(s) p = Pow(r, two) o = MatMul(p, v)", "p", "none"),
        ("r = Relu(s) p = Div(r, two) o = MatMul(p, v)", "r", "s to p, axis -1: (relu(score) / 2), called relu"),
        (
            "g = Sigmoid(s) p = Mul(s, g) o = MatMul(p, v)",
            "g",
            "s to p, axis -1: (score * sigmoid(score)), called swish",
        ),
        (
            "d = Mul(s, two) g = Sigmoid(d) p = Mul(s, g) o = MatMul(p, v)",
            "g",
            "s to p, axis -1: (score * sigmoid((score * 2))), called swish",
        ),
        (
            "d = Div(s, root) e = Erf(d) a = Add(e, one) m = Mul(s, a) p = Mul(m, half) o = MatMul(p, v)",
            "e",
            "s to p, axis -1: ((score * (erf((score / 1.41421)) + 1)) * 0.5), called gelu",
        ),
        ("p = Mul(s, s) o = MatMul(p, v)", "p", "s to p, axis -1: (score * score), called square"),
        ("p = Max(s, zero) o = MatMul(p, v)", "p", "s to p, axis -1: max(score, 0), called relu"),
        (
            "d = Div(s, cap) t = Tanh(d) c = Mul(t, cap) p = Sigmoid(c) o = MatMul(p, v)",
            "p",
            "c to p, axis -1: sigmoid(score), called sigmoid",
        ),
        ("d = Div(s, cap) t = Tanh(d) c = Mul(t, cap) p = Sigmoid(c) o = MatMul(p, v)", "t", "none"),
        # What reads more than the score is left to the layers behind.
        ("r = Relu(s) p = Mul(r, near) o = MatMul(p, v)", "r", "s to r, axis -1: relu(score), called relu"),
        ("r = Relu(s) p = Where(keep, r, zero) o = MatMul(p, v)", "r", "s to r, axis -1: relu(score), called relu"),
        # The product with V says which axis the keys are.
        (
            "r = Relu(s) p = Transpose <perm = [0, 1, 3, 2]> (r) w = Transpose <perm = [0, 1, 3, 2]> (v) o = MatMul(w, p)",
            "r",
            "s to r, axis -1: relu(score), called relu",
        ),
        ("r = Relu(s) o = MatMul(vt, r)", "r", "s to r, axis -2: relu(score), called relu"),
        # No attention.
        ("p = Sigmoid(s) o = Mul(p, near)", "p", "none"),
        ("p = Sigmoid(s) o = MatMul(p, values)", "p", "none"),
        ("p = Sigmoid(s) o = MatMul(p, flat)", "p", "none"),
        ("x = MatMul(q, keys) p = Sigmoid(x) o = MatMul(p, v)", "p", "none"),
        ("u = Tanh(keys) x = MatMul(q, u) p = Sigmoid(x) o = MatMul(p, v)", "p", "none"),
        ("m = Softmax(s) p = Sigmoid(m) o = Softmax(p)", "p", "none"),
        ("p = Relu(near) o = MatMul(p, v)", "p", "none"),
        ("w = Softmax(s) x = MatMul(w, v) p = Tanh(x) o = MatMul(p, vt)", "p", "none"),
        ("p = Neg(s) o = MatMul(p, v)", "p", "none"),
    ],
)
def test_function_in_place_of_a_softmax(body: str, node: str, said: str) -> None:
    graph = graph_of(f"s = MatMul(q, kt) {body}")
    anchor = in_place.find_weights(graph.view, graph.node(node))
    have = "none"
    if anchor is not None:
        assert anchor.weight is not None
        have = f"{name_of(anchor.score)} to {name_of(anchor.prob)}, axis {anchor.axes[0]}: {words(anchor.weight)}"
        have += f", called {anchor.label}"
    assert have == said


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("n = ReduceL1(s, last) p = Div(s, n) o = MatMul(p, v)", True),
        ("a = Abs(s) n = ReduceSum(a, last) m = Max(n, some) p = Div(s, m) o = MatMul(p, v)", True),
        ("n = ReduceSum(s, last) p = Div(s, n) o = MatMul(p, v)", True),
        ("n = ReduceL1(s, other) p = Div(s, n) o = MatMul(p, v)", False),  # over the queries
        ("n = ReduceL2(s, last) p = Div(s, n) o = MatMul(p, v)", False),
        ("n = ReduceL1(near, last) p = Div(s, n) o = MatMul(p, v)", False),  # of something else
        ("n = ReduceL1(s, last) p = Div(s, n) o = MatMul(p, values)", False),  # a layer of the network
        ("r = Sigmoid(s) n = ReduceSum(r, last) p = Div(r, n) o = MatMul(p, v)", False),  # find_weights has it
        ("r = Pow(two, s) n = ReduceSum(r, last) p = Div(r, n) o = MatMul(p, v)", False),  # a softmax by hand
    ],
)
def test_scores_over_a_sum_of_theirs(body: str, found: bool) -> None:
    graph = graph_of(f"s = MatMul(q, kt) {body}")
    anchor = in_place.find_shares(graph.view, graph.node("p"))
    assert (anchor is not None) == found
    if anchor is not None:
        assert anchor.weight == SCORE and name_of(anchor.score) == name_of(anchor.prob) == "s" and anchor.axes == (-1,)


def _after(rule: str, body: str) -> After | None:
    graph = graph_of(f"s = MatMul(q, kt) p = Relu(s) {body}")
    anchor = in_place.find_weights(graph.view, graph.node("p"))
    assert anchor is not None
    layer = {"sum": own_sum.divide_by_own_sum, "drop": own_sum.drop_by_product}[rule]
    return layer(graph.view, anchor, anchor.prob, graph.view.users(anchor.prob))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("t = ReduceSum <keepdims = 1> (p, last) w = Div(p, t)", "to w: score + 0, at least -inf"),
        ("t = ReduceSum <keepdims = 1> (p, last) u = Add(some, t) w = Div(p, u)", "to w: score + 1e-06, at least -inf"),
        (
            "t = ReduceL1 <keepdims = 1> (p, last) u = Clip(t, some) w = Div(p, u)",
            "to w: abs(score) + 0, at least 1e-06",
        ),
        (
            "a = Abs(p) t = ReduceSum <keepdims = 1> (a, last) u = Max(t, some) r = Reciprocal(u) w = Mul(p, r)",
            "to w: abs(score) + 0, at least 1e-06",
        ),
        (
            "t = ReduceSum <keepdims = 1> (p, last) x = Add(t, one) u = Max(some, x) w = Div(p, u)",
            "to w: score + 1, at least 1e-06",
        ),
        ("t = ReduceSum <keepdims = 1> (p, rows) w = Div(p, t)", "none"),
        ("t = ReduceSum <keepdims = 1> (s, last) w = Div(p, t)", "none"),
        ("t = ReduceL2 <keepdims = 1> (p, last) w = Div(p, t)", "none"),
        ("w = Div(p, two)", "none"),
    ],
)
def test_division_by_the_own_sum(body: str, said: str) -> None:
    after = _after("sum", f"{body} o = MatMul(w, v)" if "two" not in body else "w = Mul(p, row) o = MatMul(w, v)")
    have = "none"
    if after is not None:
        assert after.total is not None
        total = after.total
        have = f"to {name_of(after.value)}: {words(total.of)} + {total.plus:g}, at least {total.least:g}"
    assert have == said


def test_a_sum_that_something_else_reads_weights_of() -> None:
    with pytest.raises(NoMatch, match="read by something else"):
        _after(
            "sum",
            "t = ReduceSum <keepdims = 1> (p, last) w = Div(p, t) m = MatMul(p, v) x = MatMul(w, v) o = Add(m, x)",
        )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("c = Cast <to = 1> (keep) w = Mul(p, c)", "to w: keep keep else 0"),
        ("c = Cast <to = 1> (keep) i = Sub(one, c) w = Mul(i, p)", "to w: drop keep else 0"),
        ("w = Mul(p, near)", "none"),
        ("w = Mul(p, row)", "none"),
    ],
)
def test_mask_by_a_product(body: str, said: str) -> None:
    after = _after("drop", f"{body} o = MatMul(w, v)")
    have = "none" if after is None else f"to {name_of(after.value)}: {describe_step(after.drop)}"
    assert have == said


def test_constant_mask_by_a_product() -> None:
    after = _after("drop", "w = Mul(p, triangle) o = MatMul(w, v)")
    assert after is not None and after.drop is not None and not after.drop.inverted
    assert name_of(after.drop.keep) == "Cast(triangle, to=9)"
