"""Reductions whose result one operation reads in two orders: right, in branches and loops too, and others are left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

import onnx_fa
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.packed_rows import APART
from onnx_fa.iree.legalise.turned_twice import keep_reductions_apart
from onnx_fa.spec.target import parse_target
from tests.support.branches import TAKEN, in_branch
from tests.support.ort_run import run

TURN = "u = Transpose<perm=[1, 0]>(t) "
PAIRS = {
    "sums": f"t = ReduceSum(x, last) {TURN} y = Add(t, u)",
    "sums without their axis": "t = ReduceSum<keepdims=0>(x, last) u = Unsqueeze(t, one) y = Mul(u, t)",
    "through others": f"s = ReduceMax(x, last) t = Abs(s) {TURN} v = Exp(u) y = Sub(v, s)",
    "the same sums twice": "t = ReduceSum(x, last) s = ReduceSum(x, last) u = Transpose<perm=[1, 0]>(s) y = Add(t, u)",
    "of the same squares twice": (
        "a = Mul(x, x) k = Constant<value_ints=[-1]>() t = ReduceSum(a, k) b = Mul(x, x) s = ReduceSum(b, last) "
        "u = Transpose<perm=[1, 0]>(s) y = Add(t, u)"
    ),
    "softmax": f"p = MatMul(x, w) t = Softmax(p) {TURN} y = Sub(t, u)",
    "rows less their mean": f"p = MatMul(x, w) m = ReduceMean(p, last) t = Sub(p, m) {TURN} y = Mul(t, u)",
    "expanded": (
        "s = ReduceSum(x, last) n = Constant<value_ints=[1, 6]>() t = Expand(s, n) v = Transpose<perm=[1, 0]>(s) y = Sub(t, v)"
    ),
    "distances": (
        f"q = Mul(x, x) t = ReduceSum(q, last) {TURN} "
        "v = Transpose<perm=[1, 0]>(x) p = MatMul(x, v) d = Sub(t, p) y = Add(d, u)"
    ),
    "a global pool": (
        "r = Constant<value_ints=[1, 6, 7, 1]>() i = Reshape(x, r) g = GlobalMaxPool(i) c = Constant<value_ints=[6, 1]>() "
        f"t = Reshape(g, c) {TURN} y = Add(t, u)"
    ),
}
ONCE = {
    "one order": "t = ReduceSum(x, last) y = Sub(x, t)",
    "one order twice": f"t = ReduceSum(x, last) {TURN} v = Transpose<perm=[1, 0]>(t) y = Sub(u, v)",
    "products": f"t = MatMul(x, w) {TURN} y = Sub(t, u)",
    "sums of two": "t = ReduceSum(x, last) z = Abs(x) s = ReduceSum(z, last) u = Transpose<perm=[1, 0]>(s) y = Add(t, u)",
    "one number": f"t = ReduceSum(x) {TURN} y = Add(t, u)",
}


def model(source: str, dims: str = "6, 7") -> onnx.ModelProto:
    """y (n, n) by x (n, m) and w (m, n)."""
    n, m = dims.split(", ")
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]> g (float[{dims}] x, float[{m}, {n}] w) => (float[p, q] y) {{
        zero = Constant<value_ints = [0]>() one = Constant<value_ints = [1]>() last = Constant<value_ints = [-1]>() {source} }}"""
    )


def feeds(n: int, m: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"x": rng.standard_normal((n, m)).astype(np.float32), "w": rng.standard_normal((m, n)).astype(np.float32)}


def check(tested: onnx.ModelProto, path: Path, *inputs: dict[str, Any]) -> None:
    onnx_fa.compile(tested, path)
    for given in inputs:
        (got,), (want,) = onnx_fa.run(path, *given.values()), run(tested, given)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", PAIRS)
def test_both_orders(name: str, tmp_path: Path) -> None:
    check(model(PAIRS[name]), tmp_path / "m.vmfb", feeds(6, 7))


@pytest.mark.parametrize("name", ["sums", "softmax", "distances"])
def test_free_sizes(name: str, tmp_path: Path) -> None:
    check(model(PAIRS[name], "n, m"), tmp_path / "m.vmfb", feeds(6, 7), feeds(33, 40), feeds(3, 5))


@pytest.mark.parametrize("dims", ["6, 7", "n, m"])
def test_in_a_branch(dims: str, tmp_path: Path) -> None:
    given = feeds(33, 40) if dims == "n, m" else feeds(6, 7)
    plain = model(PAIRS["sums"], dims)
    check(in_branch(plain, run(plain, given)), tmp_path / "m.vmfb", {TAKEN: np.array(True), **given})


@pytest.mark.parametrize(
    ("name", "apart"), [*((name, 2 if "twice" in name else 1) for name in PAIRS), *((name, 0) for name in ONCE)]
)
@pytest.mark.parametrize("target", ["cpu-host", "cuda"])
def test_which_are_apart(name: str, apart: int, target: str) -> None:
    tested = model({**PAIRS, **ONCE}[name])
    infer_types(tested, {})
    keep_reductions_apart(tested, target=parse_target(target))
    assert [op_of(n) for n in tested.graph.node].count(APART) == apart
