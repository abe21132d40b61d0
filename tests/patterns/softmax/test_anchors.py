"""The softmax in each spelling: where its scores, probabilities and row sum are, and what is no softmax over keys."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import Anchor
from onnx_fa.patterns.softmax import leftover, rows, spellings, unnormalised
from tests.support.text_graphs import Constant, TextGraph, name_of

INPUTS = (
    "float[2,3,6,8] s, float[2,3,8,4] v, float[3,1,1] sink, float[2,3,6,4] q, float[2,3,4,8] kt, float16[2,3,6,8] half"
)
EXP = "m = ReduceMax <keepdims = 1> (s, last) d = Sub(s, m) e = Exp(d) "
SUM = "t = ReduceSum <keepdims = 1> (e, last) "
ZERO = "m = ReduceMax <keepdims = 1> (s, last) "
SHIFTED = "d = Sub(s, w) e = Exp(d) " + SUM + "l = Log(t) y = Add(l, w)"
NUMBERS: dict[str, Constant] = {
    "last": [-1],
    "rows": [2],
    "one": 1.0,
    "tiny": 1e-30,
    "some": 1e-3,
    "floor": -3e38,
    "lowest": -1e30,
    "two": 2.0,
    "three": 3.0,
    "zero": 0.0,
    "column": np.zeros((2, 3, 6, 1), np.float32),
}


def find(body: str, node: str, opset: int = 18, inputs: str = INPUTS) -> tuple[TextGraph, Anchor | None]:
    numbers = {name: value for name, value in NUMBERS.items() if name in body}
    last = "p" if " p = " in f" {body}" else node
    graph = TextGraph(inputs, body, outputs=last, opset=opset, **numbers)
    return graph, spellings.find_softmax(graph.view, graph.node(node))


def describe(anchor: Anchor | None) -> str:
    if anchor is None:
        return "none"
    said = [f"{anchor.op}: {name_of(anchor.score)} to {name_of(anchor.prob)}"]
    said += [f"axes {anchor.axes}"] if anchor.axes != (-1,) else []
    said += [f"sum {name_of(anchor.row_sum)}"] if anchor.row_sum is not None else []
    said += [f"sink {name_of(anchor.sink)} {anchor.column}".strip()] if anchor.sink is not None else []
    flags = {"floored": anchor.floored, "unscaled": anchor.unscaled, "by log": anchor.by_log}
    return ", ".join([*said, *(name for name, is_set in flags.items() if is_set)])


@pytest.mark.parametrize(
    ("body", "node", "said"),
    [
        ("p = Softmax(s)", "p", "Softmax: s to p"),
        ("p = Softmax <axis = 3> (s)", "p", "Softmax: s to p"),
        ("p = Softmax <axis = 2> (s)", "p", "Softmax: s to p, axes (-2,)"),
        (
            "u = Transpose <perm = [0, 1, 3, 2]> (s) w = Softmax <axis = 2> (u) p = Transpose <perm = [0, 1, 3, 2]> (w)",
            "w",
            "Softmax: s to p",
        ),
        ("m = ReduceMax <keepdims = 1> (s, last) d = Sub(s, m) p = Softmax(d)", "p", "Softmax: s to p"),
        ("l = LogSoftmax(s) p = Exp(l)", "p", "LogSoftmax/Exp: s to p"),
        (
            "l = ReduceLogSumExp <keepdims = 1> (s, last) d = Sub(s, l) p = Exp(d)",
            "p",
            "LogSumExp/Sub/Exp: s to p, by log",
        ),
        (EXP + SUM + "p = Div(e, t)", "e", "ReduceMax/Sub/Exp/ReduceSum/Div: s to p"),
        ("e = Exp(s) " + SUM + "p = Div(e, t)", "e", "Exp/ReduceSum/Div: s to p"),
        (EXP + SUM + "r = Reciprocal(t) p = Mul(e, r)", "e", "ReduceMax/Sub/Exp/ReduceSum/Div: s to p"),
        (EXP + SUM + "u = Add(t, tiny) p = Div(e, u)", "e", "ReduceMax/Sub/Exp/ReduceSum/Div: s to p"),
        (EXP + SUM + "o = MatMul(e, v) p = Div(o, t)", "e", "ReduceMax/Sub/Exp/ReduceSum/MatMul/Div: s to e, sum t"),
        (
            "m = ReduceMax <keepdims = 1> (s, last) b = Max(m, sink) d = Sub(s, b) e = Exp(d) "
            + SUM
            + "x = Sub(sink, b) y = Exp(x) u = Add(t, y) p = Div(e, u)",
            "e",
            "ReduceMax/Sub/Exp/ReduceSum/Div: s to p, sink sink",
        ),
        ("e = Exp(s) " + SUM + "u = Add(t, one) p = Div(e, u)", "e", "Exp/ReduceSum/Div: s to p, sink 0.0"),
        (
            EXP.replace("Sub(s, m)", "Sub(s, w)").replace("d =", "w = Max(m, floor) d =")
            + SUM
            + "z = Equal(t, zero) u = Where(z, one, t) p = Div(e, u)",
            "e",
            "ReduceMax/Sub/Exp/ReduceSum/Div: s to p, floored",
        ),
        ("c = Concat <axis = -1> (s, column) p = Softmax(c)", "p", "Softmax: s to p, sink column last"),
        ("c = Concat <axis = 3> (column, s) p = Softmax(c)", "p", "Softmax: s to p, sink column first"),
        (
            "e = Exp(s) w = Mul(e, half32) t = ReduceSum <keepdims = 1> (w, last) p = Div(w, t)",
            "e",
            "Exp/Mul/ReduceSum/Div: s to e, unscaled",
        ),
        # No softmax, or part of one.
        ("p = Exp(s)", "p", "none"),
        ("p = Sigmoid(s)", "p", "none"),
        ("e = Exp(s) " + SUM + "p = Log(t)", "e", "none"),
        ("p = my.Softmax(s)", "p", "none"),
    ],
)
def test_spelling(body: str, node: str, said: str) -> None:
    inputs = f"{INPUTS}, float[6,8] half32"
    assert describe(find(body, node, inputs=inputs)[1]) == said


@pytest.mark.parametrize(
    ("body", "node", "why", "opset"),
    [
        (
            "m = ReduceMax <keepdims = 1> (s, last) b = Max(m, zero) d = Sub(s, b) e = Exp(d) " + SUM + "p = Div(e, t)",
            "e",
            "no sink",
            18,
        ),
        (
            "e = Exp(s) t = ReduceSum <keepdims = 1> (e) w = Div(e, t) p = MatMul(w, v)",
            "e",
            "something else than their sum",
            18,
        ),
    ],
)
def test_what_is_refused(body: str, node: str, why: str, opset: int) -> None:
    with pytest.raises(NoMatch, match=why):
        find(body, node, opset)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("x = MatMul(q, kt) p = Sigmoid(x) o = MatMul(p, v)", None),
        ("x = MatMul(q, kt) p = Mul(x, x) o = MatMul(p, v)", None),
        ("x = MatMul(q, kt) p = Mul(x, one) o = MatMul(p, v)", "linear attention"),
        ("x = MatMul(q, kt) l = Greater(x, one) p = Where(l, x, one) o = MatMul(p, v)", "no known function"),
    ],
)
def test_attention_without_a_softmax(body: str, why: str | None) -> None:
    inputs = INPUTS.replace("q, ", "q, ", 1)
    text = body.replace("kt)", "u)")
    graph = TextGraph(inputs, f"u = Transpose <perm = [0, 1, 3, 2]> (v) {text}", outputs="o", one=1.0)
    if why is None:
        assert unnormalised.refuse_unnormalised(graph.view, graph.node("o")) is None
        return
    with pytest.raises(NoMatch, match=why):
        unnormalised.refuse_unnormalised(graph.view, graph.node("o"))


def test_linear_attention() -> None:
    inputs = "float[2,3,6,4] q, float[2,3,8,4] k, float[2,3,8,4] v"
    graph = TextGraph(
        inputs, "kt = Transpose <perm = [0, 1, 3, 2]> (k) x = MatMul(q, kt) o = MatMul(x, v)", outputs="o"
    )
    with pytest.raises(NoMatch, match="linear attention"):
        unnormalised.refuse_unnormalised(graph.view, graph.node("o"))
    assert unnormalised.refuse_unnormalised(graph.view, graph.node("x")) is None


@pytest.mark.parametrize(("weights", "is_mixed"), [((3, 3), True), ((3, 5), False)])
def test_talking_heads(weights: tuple[int, int], is_mixed: bool) -> None:
    body = (
        "x = MatMul(q, kt) t = Transpose <perm = [0, 2, 3, 1]> (x) w = MatMul(t, c) u = Transpose <perm = [0, 3, 1, 2]> (w) "
        "p = Softmax(u)"
    )
    graph = TextGraph(INPUTS, body, outputs="p", c=np.ones(weights, np.float32))
    if not is_mixed:
        assert unnormalised.refuse_mixed_scores(graph.view, graph.node("p")) is None
        return
    with pytest.raises(NoMatch, match="scores of different heads"):
        unnormalised.refuse_mixed_scores(graph.view, graph.node("p"))


@pytest.mark.parametrize(
    ("body", "node", "why"),
    [
        ("p = LogSoftmax(s)", "p", "logarithm of the probabilities"),
        (
            "e = Exp(s) t = ReduceSum <keepdims = 1> (e, rows) u = Add(t, two) p = Div(e, u)",
            "e",
            "no known spelling of a softmax",
        ),
        ("c = Pow(two, s) t = ReduceSum <keepdims = 1> (c, last) p = Div(c, t)", "c", "powers of a constant"),
        (
            "l = ReduceLogSumExp <keepdims = 1> (s, rows) u = Add(l, one) d = Sub(s, u) p = Exp(d)",
            "p",
            "log-sum-exp l|log-sum-exp Reduce",
        ),
        ("p = com.microsoft.QuickSoftmax(s)", "p", "is not read as a softmax"),
        ("l = LogSoftmax(s) p = Exp(l)", "l", None),
        ("p = Exp(s)", "p", None),
        ("p = Pow(s, two)", "p", None),
        ("p = my.LogSoftmax(s)", "p", None),
    ],
)
def test_a_softmax_in_no_known_spelling(body: str, node: str, why: str | None) -> None:
    graph = TextGraph(INPUTS, body, outputs="p", **{n: v for n, v in NUMBERS.items() if n != "column" and n in body})
    if why is None:
        assert leftover.refuse_leftover(graph.view, graph.node(node)) is None
        return
    with pytest.raises(NoMatch, match=why):
        leftover.refuse_leftover(graph.view, graph.node(node))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("y = ReduceMax <keepdims = 1> (s, last)", True),
        ("u = ReduceMax <keepdims = 0> (s, last) y = Unsqueeze(u, last)", True),
        ("u = ReduceMax <keepdims = 1> (s, last) y = Identity(u)", True),
        ("u = Neg(s) w = ReduceMin <keepdims = 1> (u, last) y = Neg(w)", True),
        ("y, i = TopK(s, k)", True),
        ("y = ReduceMax <keepdims = 0> (s, last)", False),
        ("y = ReduceMax <keepdims = 1> (s, rows)", False),
        ("y = ReduceMax <keepdims = 1> (s)", False),
        ("y = ReduceMin <keepdims = 1> (s, last)", False),
        ("y, i = TopK <largest = 0> (s, k)", False),
        ("y = my.ReduceMax <keepdims = 1> (s, last)", False),
    ],
)
def test_row_maximum(body: str, found: bool) -> None:
    graph = TextGraph("float[2,3,6,8] s", body, outputs="y", last=[-1], rows=[2], k=[1])
    x = rows.row_max(graph.view, graph.value("y"))
    assert (x is graph.value("s")) == found and (x is None) != found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("y = ReduceLogSumExp <keepdims = 1> (s, last)", True),
        ("e = Exp(s) t = ReduceSum <keepdims = 1> (e, last) y = Log(t)", True),
        ("e = Exp(s) y = ReduceLogSum <keepdims = 1> (e, last)", True),
        (EXP + SUM + "l = Log(t) y = Add(l, m)", True),
        (ZERO + "i = IsInf(m) w = Where(i, zero, m) " + SHIFTED, True),
        (ZERO + "i = IsInf(m) n = IsNaN(m) o = Or(i, n) k = Not(o) w = Where(k, m, zero) " + SHIFTED, True),
        (
            ZERO + "i = IsInf(m) k = Not(i) f = Cast <to = 1> (k) n = Cast <to = 1> (i) a = Mul(m, f) b = Mul(zero, n) "
            "w = Add(a, b) " + SHIFTED,
            True,
        ),
        (ZERO + "i = IsInf(m) w = Where(i, m, zero) " + SHIFTED, False),
        (ZERO + "i = Less(m, zero) w = Where(i, zero, m) " + SHIFTED, False),
        (ZERO + "i = IsInf(m) n = IsNaN(m) o = Or(i, n) w = Where(o, m, zero) " + SHIFTED, False),
        (ZERO + "i = IsInf(m) n = Less(m, zero) o = Or(i, n) w = Where(o, zero, m) " + SHIFTED, False),
        (
            ZERO + "i = IsInf(m) w = Where(i, zero, m) d = Sub(s, w) e = Exp(d) " + SUM + "l = Log(t) y = Add(l, zero)",
            False,
        ),
        (EXP + SUM + "l = Log(t) y = Sub(l, m)", False),
        ("e = Exp(s) t = ReduceSum <keepdims = 1> (e, rows) y = Log(t)", False),
        ("t = ReduceSum <keepdims = 1> (s, last) y = Log(t)", False),
    ],
)
def test_log_sum_exp(body: str, found: bool) -> None:
    numbers: dict[str, Constant] = {"zero": 0.0} if "zero" in body else {}
    graph = TextGraph("float[2,3,6,8] s", body, outputs="y", last=[-1], rows=[2], **numbers)
    assert (rows.log_sum_exp(graph.view, graph.value("y")) is graph.value("s")) == found


@pytest.mark.parametrize(
    ("shape", "axes", "per_row", "per_key"),
    [
        ((2, 3, 6, 1), (-1,), True, False),
        ((2, 3, 1, 8), (-1,), False, True),
        ((8,), (-1,), False, True),
        ((), (-1,), True, True),
        ((6, 8), (-1,), False, False),
        ((2, 3, 1, 8), (-2,), True, False),
        ((2, 3, 6, 1), (-2,), False, True),
        ((8,), (-2,), True, False),
        (("n", 1), (-1,), True, False),
        ((2, 3, 1, 1), (-2, -1), True, False),
        ((2, 3, 1, 8), (-2, -1), False, False),
        ((1, 1, 6, 8), (-2, -1), False, True),
        ((8,), (-2, -1), False, True),
        ((), (-2, -1), True, True),
    ],
)
def test_values_per_row_and_per_key(
    shape: tuple[int | str, ...], axes: tuple[int, ...], per_row: bool, per_key: bool
) -> None:
    assert (rows.one_per_row(shape, axes), rows.one_per_key(shape, axes)) == (per_row, per_key)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("m = ReduceMax <keepdims = 1> (s, last) y = Equal(m, low)", True),
        ("m = ReduceMax <keepdims = 1> (s, last) y = IsInf <detect_positive = 0> (m)", True),
        (
            "c = Equal(s, low) n = Not(c) i = Cast <to = 7> (n) a = ReduceMax "
            "<keepdims = 1> (i, last) b = Cast <to = 9> (a) y = Not(b)",
            True,
        ),
        (
            "c = IsInf <detect_positive = 0> (s) i = Cast <to = 6> (c) a = "
            "ReduceMin <keepdims = 1> (i, last) y = Cast <to = 9> (a)",
            True,
        ),
        ("m = ReduceMax <keepdims = 1> (s, last) y = IsInf(m)", False),
        ("m = ReduceMax <keepdims = 1> (s, last) y = Equal(m, finite)", False),
        ("m = ReduceMin <keepdims = 1> (s, last) y = Equal(m, low)", False),
        (
            "c = IsInf <detect_positive = 0> (s) i = Cast <to = 6> (c) a = "
            "ReduceMax <keepdims = 1> (i, last) y = Cast <to = 9> (a)",
            False,
        ),
    ],
)
def test_rows_that_are_minus_infinity_throughout(body: str, found: bool) -> None:
    graph = TextGraph("float[2,3,6,8] s", body, outputs="y", last=[-1], low=float("-inf"), finite=-1e30)
    assert rows.is_minus_infinity(graph.view, graph.value("y"), graph.value("s")) == found
