"""Each layer between the softmax and the product with V: what it takes off the probabilities, what it leaves, what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import After, Anchor
from onnx_fa.patterns.quant import rounding
from onnx_fa.patterns.score import passthrough, regroup
from onnx_fa.patterns.softmax import guard, probability, sink, unnormalised
from tests.support.text_graphs import Constant, TextGraph, describe_step, name_of

INPUTS = (
    "float[2,3,6,8] x, float[2,3,8,4] v, bool[6,8] b, bool[6,1] rows, bool[8] keys, float[6,8] both, float[6,1] row, float[8] key, "
    "float[9,2,3,6,8] wide, int64[6,8] ones, float[3,3,1,1] weight"
)
NUMBERS: dict[str, Constant] = {
    "zero": 0.0,
    "one": 1.0,
    "half": 0.5,
    "infinite": float("inf"),
    "last": [-1],
    "low": float("-inf"),
    "grid": 1 / 255,
    "point": np.asarray(0, np.uint8),
    "from0": [0],
    "from1": [1],
    "to_last": [-1],
    "to_end": [1 << 62],
    "shape": [6, 6, 8],
    "sizes": [7, 1],
    "other_sizes": [6, 2],
}


def layer(rule: Callable[..., After | None], body: str, **changes: object) -> After | None:
    """The layer on the probabilities p of scores s."""
    graph = TextGraph(INPUTS, f"s = Mul(x, one) p = Softmax(s) {body}", outputs="y", **NUMBERS)
    p = graph.value("p")
    anchor = replace(Anchor(graph.node("p"), "Softmax", graph.value("s"), p), **changes)  # type: ignore[arg-type]
    return rule(graph.view, anchor, p, graph.view.users(p))


def describe(after: After | None) -> str:
    """What a layer says, in words."""
    if after is None:
        return "none"
    said = [f"to {name_of(after.value)}"]
    said += [after.guard] if after.guard else []
    said += ["cut"] if after.cut else []
    said += ["per row"] if after.rows is not None else []
    said += [f"V times {name_of(after.keys)}"] if after.keys is not None else []
    said += [f"weights {name_of(after.weights)}"] if after.weights is not None else []
    said += [describe_step(after.step)] if after.step is not None else []
    said += [describe_step(after.drop)] if after.drop is not None else []
    said += ["divided by its sum"] if after.renormalised else []
    said += [f"moved by {after.regroup.op_type}"] if after.regroup is not None else []
    said += [f"rounded to {after.rounding.dtype}"] if after.rounding is not None else []
    return ", ".join(said)


@pytest.mark.parametrize(
    ("rule", "body", "said"),
    [
        (passthrough.skip_noop, "y = Identity(p)", "to y"),
        (passthrough.skip_noop, "y = Cast <to = 10> (p)", "to y"),
        (passthrough.skip_noop, "y = Dropout(p)", "to y"),
        (passthrough.skip_noop, "y = Cast <to = 7> (p)", "none"),
        (passthrough.skip_noop, "y = Neg(p)", "none"),
        (passthrough.skip_noop, "u = Identity(p) y = Add(p, u)", "none"),
        (passthrough.skip_noop, "y = my.Identity(p)", "none"),
        (passthrough.skip_added_zero, "y = Add(p, zero)", "to y"),
        (passthrough.skip_added_zero, "f = Cast <to = 1> (b) z = Mul(zero, f) y = Add(z, p)", "to y"),
        (passthrough.skip_added_zero, "z = Mul(zero, key) y = Add(p, z)", "none"),  # of an infinity it is NaN
        (passthrough.skip_added_zero, "y = Add(p, half)", "none"),
        (passthrough.skip_added_zero, "y = Sub(p, zero)", "none"),
        (regroup.follow_regroup, "y = Reshape(p, shape)", "to y, moved by Reshape"),
        (regroup.follow_regroup, "y = Transpose(p)", "to y, moved by Transpose"),
        (regroup.follow_regroup, "y = Expand(p, shape)", "none"),
        (regroup.follow_regroup, "y = Identity(p)", "none"),
        # Guards for rows without keys.
        (guard.read_guard, "n = IsNaN(p) y = Where(n, zero, p)", "to y, guarded"),
        (guard.read_guard, "n = IsNaN(p) o = Not(n) y = Where(o, p, zero)", "to y, guarded"),
        (guard.read_guard, "n = Equal(p, p) y = Where(n, p, zero)", "to y, guarded"),
        (guard.read_guard, "n = IsNaN(p) d = Shape(p) z = ConstantOfShape(d) y = Where(n, z, p)", "to y, guarded"),
        (guard.read_guard, "n = IsNaN(p) d = Shape(p) z = Expand(zero, d) y = Where(n, z, p)", "to y, guarded"),
        (
            guard.read_guard,
            "n = IsNaN(p) d = Shape(p) z = ConstantOfShape <value = float[1] {1.0}> (d) y = Where(n, z, p)",
            "none",
        ),
        (guard.read_guard, "n = IsNaN(p) d = Shape(p) z = Expand(one, d) y = Where(n, z, p)", "none"),
        (guard.read_guard, "n = IsNaN(p) d = Shape(p) z = Expand(key, d) y = Where(n, z, p)", "none"),
        (guard.read_guard, "n = IsInf(p) y = Where(n, zero, p)", "to y"),
        (
            guard.read_guard,
            "m = ReduceMax <keepdims = 1> (s, last) n = Equal(m, low) y = Where(n, zero, p)",
            "to y, zero",
        ),
        (guard.read_guard, "y = Where(rows, p, zero)", "to y, per row"),
        (guard.read_guard, "y = Where(keys, p, zero)", "to y, keep keys else 0"),
        (guard.read_guard, "y = Where(b, zero, p)", "to y, drop b else 0"),
        (guard.read_guard, "n = Not(b) y = Where(n, zero, p)", "to y, keep b else 0"),
        (guard.read_guard, "n = IsNaN(p) y = Where(n, p, zero)", "none"),
        (guard.read_guard, "n = IsNaN(p) y = Where(n, one, p)", "none"),
        (guard.read_guard, "n = IsNaN(p) y = Where(n, key, p)", "none"),
        (guard.read_guard, "y = Where(b, p, one)", "none"),
        (guard.read_guard, "n = IsNaN(p) w = Where(n, zero, p) y = Add(w, p)", "none"),
        (guard.read_guard, "y = Mul(p, row)", "none"),
        # Factors.
        (probability.move_factor, "y = Mul(p, row)", "to y, per row"),
        (probability.move_factor, "y = Mul(half, p)", "to y, per row"),
        (probability.move_factor, "y = Div(p, half)", "to y, per row"),
        (probability.move_factor, "y = Mul(p, key)", "to y, V times key"),
        (probability.move_factor, "y = Mul(p, both)", "to y, weights both"),
        (probability.move_factor, "y = Mul(p, p)", "none"),
        (probability.move_factor, "y = Div(half, p)", "none"),
        (probability.move_factor, "y = Mul(p, wide)", "none"),
        (probability.move_factor, "y = Add(p, row)", "none"),
        (probability.move_factor, "y = my.Mul(p, row)", "none"),
        # Masks and a new division.
        (
            probability.divide_anew,
            "m = Where(b, p, zero) t = ReduceSum <keepdims = 1> (m, last) y = Div(m, t)",
            "to y, keep b else -inf",
        ),
        (
            probability.divide_anew,
            "m = Where(b, zero, p) t = ReduceSum <keepdims = 1> (m, last) y = Div(m, t)",
            "to y, drop b else -inf",
        ),
        (
            probability.divide_anew,
            "f = Cast <to = 1> (b) m = Mul(p, f) t = ReduceSum <keepdims = 1> (m, last) y = Div(m, t)",
            "to y, keep b else -inf",
        ),
        (
            probability.divide_anew,
            "f = Cast <to = 1> (b) g = Sub(one, f) m = Mul(g, p) t = ReduceSum "
            "<keepdims = 1> (m, last) r = Reciprocal(t) y = Mul(m, r)",
            "to y, drop b else -inf",
        ),
        (probability.divide_anew, "m = Where(b, p, one) t = ReduceSum <keepdims = 1> (m, last) y = Div(m, t)", "none"),
        (probability.divide_anew, "y = Where(b, p, zero)", "none"),
        (
            probability.divide_anew,
            "m = Where(b, p, zero) t = ReduceSum <keepdims = 1> (m, last) some = Greater(t, zero) safe = Where(some, t, one) "
            "d = Div(m, safe) y = Where(some, d, zero)",
            "to y, guarded, keep b else 0, divided by its sum",
        ),
        # Roundings.
        (
            rounding.read_rounding_of_probabilities,
            "q = QuantizeLinear(p, grid, point) y = DequantizeLinear(q, grid, point)",
            "to y, rounded to u8",
        ),
        (rounding.read_rounding_of_probabilities, "y = Round(p)", "none"),
        (unnormalised.refuse_mixed_heads, "y = MatMul(p, v)", "none"),
    ],
)
def test_layer(rule: Callable[..., After | None], body: str, said: str) -> None:
    assert describe(layer(rule, body)) == said


@pytest.mark.parametrize(
    ("rule", "body", "why"),
    [
        (passthrough.skip_noop, "u = Cast <to = 10> (p) w = Cast <to = 1> (u) y = Identity(w)", None),
        (guard.read_guard, "g = Greater(s, zero) y = Where(g, p, zero)", "a condition on the scores"),
        (probability.move_factor, "y = Mul(p, s)", "computed from the scores"),
        (probability.move_factor, "y = Mul(p, infinite)", "infinity or NaN"),
        (probability.move_factor, "y = Div(p, zero)", "infinity or NaN"),
        (probability.move_factor, "y = Div(p, both)", "divided by a tensor with values per query and key"),
        (
            probability.divide_anew,
            "m = Mul(p, both) t = ReduceSum <keepdims = 1> (m, last) y = Div(m, t)",
            "not provably 0 or 1",
        ),
        (
            probability.divide_anew,
            "m = Where(b, p, zero) t = ReduceSum <keepdims = 1> (m, last) u = Add(t, one) y = Div(m, u)",
            "something else than their sum",
        ),
        (
            rounding.read_rounding_of_probabilities,
            "q = QuantizeLinear(p, grid, point) y = Cast <to = 1> (q)",
            "rounds the probabilities",
        ),
        (
            rounding.read_rounding_of_probabilities,
            "q = QuantizeLinear(p, grid, point) y = DequantizeLinear(q, half, point)",
            "one constant scale",
        ),
        (unnormalised.refuse_mixed_heads, "c = Conv(p, weight) y = Identity(c)", "convolution"),
    ],
)
def test_refused(rule: Callable[..., After | None], body: str, why: str | None) -> None:
    if why is None:
        assert describe(layer(rule, body)) == "to u"
        return
    with pytest.raises(NoMatch, match=why):
        layer(rule, body)


def test_half_precision_in_between_is_refused() -> None:
    graph = TextGraph(INPUTS, "p = Softmax(x) u = Cast <to = 10> (p) y = Cast <to = 1> (u)", outputs="y")
    anchor = Anchor(graph.node("p"), "Softmax", graph.value("x"), graph.value("p"))
    u = graph.value("u")
    with pytest.raises(NoMatch, match="rounded to FLOAT16 and widened again"):
        passthrough.skip_noop(graph.view, anchor, u, graph.view.users(u))


@pytest.mark.parametrize(
    ("column", "body", "said"),
    [
        ("last", "y = Slice(p, from0, to_last, last)", "to y, cut"),
        ("first", "y = Slice(p, from1, to_end, last)", "to y, cut"),
        ("last", "y, z = Split <axis = -1> (p, sizes)", "to y, cut"),
        ("", "y = Slice(p, from0, to_last, last)", "none"),
        ("last", "y = Identity(p)", "none"),
        ("last", "y = Slice(p, from0, to_last, from0)", "none"),
        ("last", "y = Slice(p, from1, to_end, last)", "does not cut off just the sink's column"),
        ("first", "y = Slice(p, from0, to_last, last)", "does not cut off just the sink's column"),
        ("last", "y, z = Split <axis = -1> (p, other_sizes)", "does not cut off just the sink's column"),
        ("last", "w, z = Split <axis = -1> (p, sizes) y = Neg(z)", "the probability of the sink is used"),
    ],
)
def test_the_column_of_a_sink(column: str, body: str, said: str) -> None:
    if not said.startswith(("to ", "none")):
        with pytest.raises(NoMatch, match=said):
            layer(probability.cut_sink, body, column=column)
        return
    assert describe(layer(probability.cut_sink, body, column=column)) == said


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        ("l = ReduceLogSumExp <keepdims = 1> (s, last) d = Sub(l, sink) g = Sigmoid(d) y = Mul(o, g)", "sink"),
        (
            "l = ReduceLogSumExp <keepdims = 1> (s, last) n = Neg(sink) d = Add(l, n) g = Sigmoid(d) y = Mul(g, o)",
            "sink",
        ),
        ("l = ReduceLogSumExp <keepdims = 1> (s, last) d = Sub(sink, l) g = Sigmoid(d) y = Mul(o, g)", None),
        ("l = ReduceLogSumExp <keepdims = 1> (o, last) d = Sub(l, sink) g = Sigmoid(d) y = Mul(o, g)", None),
        ("l = ReduceLogSumExp <keepdims = 1> (s, last) d = Sub(l, sink) g = Tanh(d) y = Mul(o, g)", None),
        ("y = Mul(o, o)", None),
    ],
)
def test_a_gate_that_is_a_sink(gate: str, said: str | None) -> None:
    graph = TextGraph(
        f"{INPUTS}, float[3,1,1] sink", f"s = Neg(x) p = Softmax(s) o = MatMul(p, v) {gate}", outputs="y", last=[-1]
    )
    anchor = Anchor(graph.node("p"), "Softmax", graph.value("s"), graph.value("p"))
    tail = sink.read_gate(graph.view, anchor, graph.value("o"))
    assert (None if tail is None else name_of(tail.sink)) == said
    assert tail is None or tail.value is graph.value("y")


def test_a_gate_per_key_is_refused() -> None:
    body = (
        "s = Neg(x) p = Softmax(s) o = MatMul(p, v) l = ReduceLogSumExp <keepdims = "
        "1> (s, last) d = Sub(l, key4) g = Sigmoid(d) y = Mul(o, g)"
    )
    graph = TextGraph(f"{INPUTS}, float[4] key4", body, outputs="y", last=[-1])
    anchor = Anchor(graph.node("p"), "Softmax", graph.value("s"), graph.value("p"))
    with pytest.raises(NoMatch, match="one value per row"):
        sink.read_gate(graph.view, anchor, graph.value("o"))
