"""Scans, and Loops that collect something or carry several values of free sizes, give what onnxruntime gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import onnx_fa
from tests.support.ort_run import run

SIZES = ((5, 7), (1, 4), (16, 3))

SUMS = "body = b (float[m] s, float[m] e) => (float[m] t, float[m] o) { t = Add(s, e) o = Mul(t, t) }"
COLUMNS = SUMS.replace("[m]", "[n]")
ROUND = "(int64 i, bool go, float[m] s) => (bool on, float[m] t"
CASES = {
    # Of x (n, m), twice = 2x and the largest of each of its columns, most (m).
    "sums so far": f"l, y = Scan<num_scan_inputs = 1, {SUMS}>(most, twice)",
    "of columns": f"l, y = Scan<num_scan_inputs = 1, scan_input_axes = [1], {COLUMNS}>(widest, twice)",
    "columns of columns": (
        f"l, y = Scan<num_scan_inputs = 1, scan_input_axes = [-1], scan_output_axes = [-1], {COLUMNS}>(widest, twice)"
    ),
    "sizes without a name": f"l, y = Scan<num_scan_inputs = 1, {SUMS.replace('[m]', '[?]')}>(most, twice)",
    "fills": (
        f"k = Constant<value_float = 3.0>() f = Expand(k, shape) g = ReduceMax<keepdims = 0>(f, first) "
        f"l, y = Scan<num_scan_inputs = 1, scan_output_axes = [1], {SUMS.replace('[m]', '[?]')}>(g, f)"
    ),
    "from the end": f"l, y = Scan<num_scan_inputs = 1, scan_input_directions = [1], {SUMS}>(most, twice)",
    "put from the end": f"l, y = Scan<num_scan_inputs = 1, scan_output_directions = [1], {SUMS}>(most, twice)",
    "the last alone": f"y, o = Scan<num_scan_inputs = 1, {SUMS}>(most, twice)",
    "no states": "y = Scan<num_scan_inputs = 1, body = b (float[m] e) => (float[m] o) { o = Neg(e) }>(twice)",
    "an element as it is": "y = Scan<num_scan_inputs = 1, body = b (float[m] e) => (float[m] o) { o = Identity(e) }>(twice)",
    "two inputs": (
        "turned = Transpose<perm = [1, 0]>(twice) y = Scan<num_scan_inputs = 2, scan_input_axes = [0, 1], "
        "body = b (float[m] d, float[m] e) => (float[m] o) { q = Mul(d, e) o = Add(q, d) }>(twice, turned)"
    ),
    "one number each": (
        "y = Scan<num_scan_inputs = 1, body = b (float[m] e) => (float o) { o = ReduceSum<keepdims = 0>(e) }>(twice)"
    ),
    "places": (
        "p = Scan<num_scan_inputs = 1, body = b (float[m] e) => (int64[1] o) { o = ArgMax(e) }>(twice) y = Cast<to = 1>(p)"
    ),
    "what is true": (
        "p = Scan<num_scan_inputs = 1, body = b (float[m] e) => (bool[m] o) { z = Neg(e) o = Less(e, z) }>(twice) "
        "y = Cast<to = 1>(p)"
    ),
    "rounds": f"l, y = Loop(rows, yes, most)<body = b {ROUND}, float[m] o) {{ on = Identity(go) t = Neg(s) o = Add(s, s) }}>",
    "until it is enough": (
        f"l, y = Loop(rows, yes, most)<body = b {ROUND}, float[m] o) {{ t = Add(s, s) o = Neg(s) "
        "two = Constant<value_int = 2>() on = Less(i, two) }>"
    ),
    "no rounds": (
        f"none = Constant<value_int = 0>() l, o = Loop(none, yes, most)<body = b {ROUND}, float[m] o) {{ on = Identity(go) "
        "t = Neg(s) o = Add(s, s) }> y = Concat<axis = 0>(twice, o)"
    ),
    "not begun": (
        f"no = Constant<value = bool {{0}}>() l, o = Loop(rows, no, most)<body = b {ROUND}, float[m] o) {{ on = Identity(go) "
        "t = Neg(s) o = Add(s, s) }> y = Concat<axis = 0>(twice, o)"
    ),
    "two carried": (
        "l, k = Loop(rows, yes, most, twice)<body = b (int64 i, bool go, float[m] s, float[n, m] u) => "
        "(bool on, float[m] t, float[n, m] v) { on = Identity(go) v = Neg(u) r = Gather(v, i) t = Add(s, r) }> y = Add(l, k)"
    ),
    "named otherwise": (
        "l, k = Loop(rows, yes, most, twice)<body = b (int64 i, bool go, float[p] s, float[q, r] u) => "
        "(bool on, float[p2] t, float[q2, r2] v) { on = Identity(go) v = Neg(u) e = Gather(v, i) t = Add(s, e) }> y = Add(l, k)"
    ),
    "one carried": "y = Loop(rows, yes, most)<body = b "
    + ROUND
    + ") { on = Identity(go) r = Gather(twice, i) t = Add(s, r) }>",
    "a loop in a loop": (
        f"y = Loop(rows, yes, most)<body = b {ROUND}) {{ on = Identity(go) three = Constant<value_int = 3>() "
        "up = Constant<value = bool {1}>() down = Constant<value_ints = [0]>() q, o = Loop(three, up, s)<body = c "
        "(int64 j, bool g2, float[m] s2) => (bool o2, float[m] t2, float[m] u2) { o2 = Identity(g2) t2 = Add(s2, s2) "
        "u2 = Neg(s2) }> t = ReduceSum<keepdims = 0>(o, down) }>"
    ),
    "in a branch": (
        "z = ReduceSum<keepdims = 0>(twice) c = Less(z, z) y = If(c)<then_branch = a () => (float[n, m] g) { g = Neg(twice) }, "
        f"else_branch = e () => (float[n, m] h) {{ l, h = Scan<num_scan_inputs = 1, {SUMS}>(most, twice) }}>"
    ),
}


def model(case: str) -> onnx.ModelProto:
    made = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]> g (float[n, m] x) => (float y) {{
        first = Constant<value_ints = [0]>() second = Constant<value_ints = [1]>() zero = Constant<value_int = 0>()
        yes = Constant<value = bool {{1}}>() twice = Add(x, x) most = ReduceMax<keepdims = 0>(twice, first)
        widest = ReduceMax<keepdims = 0>(twice, second) shape = Shape(x) rows = Gather(shape, zero) {CASES[case]} }}"""
    )
    made.graph.output[0].type.tensor_type.ClearField("shape")
    return made


@pytest.mark.parametrize("case", CASES)
def test_what_is_collected(case: str, tmp_path: Path) -> None:
    tested, rng = model(case), np.random.default_rng(0)
    onnx_fa.compile(tested, tmp_path / "m.vmfb")
    for shape in SIZES:
        x = rng.standard_normal(shape).astype(np.float32)
        (want,), (got,) = run(tested, {"x": x}), onnx_fa.run(tmp_path / "m.vmfb", x)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
