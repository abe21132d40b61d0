"""Differences in numbers that are not finite (docs/developer/architecture.md), and that nothing else passes for one."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from onnx_fa.forms.rewrite import rewrite
from tests.campaign.draw import draw
from tests.campaign.inputs import Engine, Inputs, kinds_at_edges
from tests.campaign.noise import distance
from tests.campaign.overflow import overflows
from tests.campaign.readings import as_defined, nearest, readings, results_of_readings

SQ, SKV, D = 3, 4, 2
CONSTANTS = (
    "float zero = {0}, float low = {-1e38}, float lowest = {-3.4028235e38}, float none = {-inf}, int64[1] keys = {-1}, "
    "float step = {0.5}, float fine = {0.02}, int8 point = {0}, float one = {1}, float large = {1e10}, float small = {1e-10}"
)
CASES = {
    "a mask hides a NaN score": "m = Where (keep, zero, low) y = Add (s, m) p = Softmax (y) o = MatMul (p, v)",
    "the lowest number hides a NaN score": (
        "m = Where (keep, zero, lowest) y = Add (s, m) t = ReduceMax (y, keys) d = Sub (y, t) e = Exp (d) "
        "n = ReduceSum (e, keys) r = MatMul (e, v) o = Div (r, n)"
    ),
    "weights leave a NaN row": "p = Softmax (s) d = Where (keep, p, zero) o = MatMul (d, v)",
    "a mask hides a value": "p = Softmax (s) d = Where (row, p, zero) o = MatMul (d, v)",
    "a mask hides a value, by an Einsum": (
        'p = Softmax (s) d = Where (row, p, zero) o = Einsum <equation = "bij,bje->bie"> (d, v)'
    ),
    "a zero has no sign": "p = Softmax (s) f = Cast <to = 1> (row) d = Mul (p, f) r = MatMul (d, v) o = Div (step, r)",
    "an infinite factor": (
        "y = Mul (s, factor) e = Exp (y) t = ReduceSum (e, keys) n = Add (t, one) p = Div (e, n) o = MatMul (p, v)"
    ),
    "an infinite factor moves": "w = Sin (v) p = Softmax (s) d = Mul (p, factor) o = MatMul (d, w)",
    "a quantised NaN": (
        "i = QuantizeLinear (s, step, point) y = DequantizeLinear (i, step, point) p = Softmax (y) o = MatMul (p, v)"
    ),
    "a quantised NaN, and the result is quantised": (
        "i = QuantizeLinear (s, step, point) y = DequantizeLinear (i, step, point) c = Neg (y) p = Softmax (c) r = MatMul (p, v) "
        "j = QuantizeLinear (r, fine, point) o = DequantizeLinear (j, fine, point)"
    ),
    "an infinite score": "l = ReduceLogSumExp (s, keys) e = Sub (s, l) p = Exp (e) o = MatMul (p, v)",
    "the maximum of NaN and -inf": (
        "y = Add (s, bias) p = Softmax (y) t = ReduceMax (y, keys) b = Equal (t, none) d = Where (b, zero, p) o = MatMul (d, v)"
    ),
    "divided anew": (
        "y = Add (s, bias) p = Softmax (y) d = Where (keep, p, zero) t = ReduceSum (d, keys) w = Div (d, t) o = MatMul (w, v)"
    ),
    "exponentials vanish": "y = Sub (s, bias) e = Exp (y) t = ReduceSum (e, keys) p = Div (e, t) o = MatMul (p, v)",
    "exponentials vanish, divided behind V": (
        "y = Sub (s, bias) e = Exp (y) f = Cast <to = 1> (keep) m = Mul (e, f) r = MatMul (m, v) t = ReduceSum (e, keys) "
        "o = Div (r, t)"
    ),
    "a factor overflows": "y = Mul (q, large) z = MatMul (y, k) x = Mul (z, small) p = Softmax (x) o = MatMul (p, v)",
}


def case_model(nodes: str, *, asks: bool = False) -> onnx.ModelProto:
    """The model of a case; with `asks` its result is what IsNaN says of the case's."""
    inputs = f"float[1,{SQ},{D}] q, float[1,{D},{SKV}] k, float[1,{SKV},{D}] v, bool[{SQ},{SKV}] keep, bool[{SQ},1] row"
    inputs += f", float[{SQ},1] factor, float[{SQ},{SKV}] bias"
    outputs = f"float[1,{SQ},{D}] o, float[1,{SQ},{SKV}] p" if "LogSumExp" in nodes else f"float[1,{SQ},{D}] o"
    if asks:
        nodes, outputs = f"{nodes} a = IsNaN (o)", f"bool[1,{SQ},{D}] a"
    text = f"g ({inputs}) => ({outputs}) <{CONSTANTS}> {{ s = MatMul (q, k) {nodes} }}"
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 18]> {text}')


def case_inputs(case: str = "") -> Inputs:
    """Ordinary numbers; with a case, what shows it in the middle row of the queries."""
    rng = np.random.default_rng(0)
    x: Inputs = {
        "q": rng.standard_normal((1, SQ, D)).astype(np.float32),
        "k": rng.standard_normal((1, D, SKV)).astype(np.float32),
        "v": -1 - rng.random((1, SKV, D)).astype(np.float32),
        "keep": np.ones((SQ, SKV), bool),
        "row": np.ones((SQ, 1), bool),
        "factor": np.ones((SQ, 1), np.float32),
        "bias": np.zeros((SQ, SKV), np.float32),
    }
    if case.endswith("hides a NaN score") or case == "weights leave a NaN row" or case.startswith("a quantised NaN"):
        x["q"][0, 1, 0] = np.nan
        x["keep"][1] = False
    if case.startswith("a mask hides a value") or case == "a zero has no sign":
        x["row"][1] = False
        x["v"][0, 2, 0] = -1 if case == "a zero has no sign" else -np.inf
    if case == "an infinite factor":
        x["factor"][1], x["q"][0, 1] = np.inf, 1
        x["k"][0, 0], x["k"][0, 1] = 1, -2
    if case == "an infinite factor moves":
        x["factor"][1], x["v"][0, 2] = np.inf, 1
    if case == "an infinite score":
        x["q"][0, 1], x["k"][0] = 2e38, (-0.3, 0.2, 2, 0.1)
    if case == "the maximum of NaN and -inf":
        x["bias"][1] = (-np.inf, -np.inf, -np.inf, np.nan)
    if case == "divided anew":
        x["bias"][1, 0], x["keep"][1, 0] = 1000, False
    if case.startswith("exponentials vanish"):
        x["bias"][1], x["keep"][1, 0] = (1000, 1001, 1003, 1002), False
    if case == "a factor overflows":
        x["q"][0, 1] = 1e30
    return x


@pytest.mark.parametrize("case", CASES)
def test_a_difference_is_a_reading(case: str) -> None:
    """Other rows are equal; the middle one is not, and is that of a reading of the original. One more than that is not."""
    model = case_model(CASES[case])
    new, report = rewrite(model, "decomposed")
    assert len(report.sites) == 1
    old, ordinary, odd = Engine(model), case_inputs(), case_inputs(case)
    for want, have in zip(old.run(ordinary), Engine(new).run(ordinary), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)
    last = len(model.graph.output) - 1
    want, have = (engine.run(odd)[last].astype(np.float64) for engine in (old, Engine(new)))
    assert distance(want, have) > 0.5 and distance(want[:, ::2], have[:, ::2]) < 1e-5
    others = results_of_readings(model, old, odd, last)
    assert distance(nearest(others, want, have), have) < 1e-5
    off = have + 1
    assert distance(nearest(others, want, off), off) > 0.5


def test_readings_of_ordinary_numbers_are_the_original() -> None:
    """Every reading of drawn graphs, on plain inputs: bit for bit what the original makes."""
    compared = 0
    for seed in range(40):
        drawn = draw(seed, ("masks", "behind", "plain")[seed % 3])
        if drawn is None or drawn.mutations or not drawn.feeds.runs(drawn.fixed):
            continue
        inputs = drawn.feeds.plain(drawn.fixed)
        old = Engine(drawn.fixed)
        if old.by_definition or onnx.TensorProto.FLOAT16 in kinds_at_edges(drawn.fixed):
            continue  # in f16 onnxruntime rounds less where fewer nodes are between two ops
        want = old.run(inputs)
        if not all(np.isfinite(x.astype(np.float64)).all() for x in want) or overflows(drawn.fixed, inputs):
            continue
        for made in (*readings(drawn.fixed), as_defined(drawn.fixed)):
            for a, b in zip(want, Engine(made).run(inputs), strict=True):
                np.testing.assert_array_equal(a, b)
            compared += 1
    assert compared > 20


def test_a_softplus_of_f16_is_computed_in_f32() -> None:
    """Of opset 18, onnxruntime has no kernel of it for f16, and takes log(1 + exp(x)), which is infinite from 89 on."""
    nodes = "{ o = Softplus (x) }"
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 18]> g (float16[2] x) => (float16[2] o) {nodes}'
    )
    (result,) = Engine(as_defined(model)).run({"x": np.asarray([0, 300], np.float16)})
    np.testing.assert_allclose(result, [np.log(2), 300], rtol=1e-3)
