"""Operators in the bodies of If and Loop: what IREE computes wrongly is written otherwise there too, and sizes are compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import onnx_fa
from onnx_fa.errors import OnnxFaError
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.legalise.writer import all_nodes
from tests.support.ort_run import run

X = np.random.default_rng(0).standard_normal((2, 8, 4, 4)).astype(np.float32)
X[0, 0] = 0.0
YES, NO = np.array(True), np.bool_(False)

BODIES = {
    # The first are wrong in a body that stays as it is.
    "tail of a Gelu": 'g = Gelu<approximate = "tanh">(a) m = Mul(g, ten) r = Exp(m)',
    "zeros": "r = LpNormalization<axis = -1, p = 2>(a)",
    "channels": 'd = DepthToSpace<blocksize = 2, mode = "CRD">(a) t = Transpose<perm = [0, 3, 1, 2]>(d) r = Reshape(t, whole)',
    "a function": "r = Mish(a)",
    "with constants": "s = ReduceSum<keepdims = 1>(a, last) r = Sub(a, s)",
}
IF = """g (bool c, float[B, 8, 4, 4] x) => (float[B, 8, 4, 4] y) {{
    last = Constant<value = int64[1] {{-1}}>() whole = Constant<value = int64[4] {{0, 8, 4, 4}}>()
    ten = Constant<value = float {{-10.0}}>()
    y = If(c)<then_branch = t () => (float[B, 8, 4, 4] r) {{ a = Identity(x) {body} }},
              else_branch = e () => (float[B, 8, 4, 4] n) {{ n = Neg(x) }}>
}}"""
LOOP = """g (int64 n, float[B, 8, 4, 4] x) => (float[B, 8, 4, 4] y) {{
    last = Constant<value = int64[1] {{-1}}>() whole = Constant<value = int64[4] {{0, 8, 4, 4}}>()
    ten = Constant<value = float {{-10.0}}>() on = Constant<value = bool {{1}}>()
    y = Loop(n, on, x)<body = b (int64 i, bool more, float[B, 8, 4, 4] a) => (bool same, float[B, 8, 4, 4] r) {{
        same = Identity(more) {body} }}>
}}"""


def parsed(text: str, opset: int = 20) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {text}')
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize("name", BODIES)
def test_bodies(name: str, tmp_path: Path) -> None:
    for form, first in ((IF, YES), (IF, NO), (LOOP, np.array(1)), (LOOP, np.array(0))):
        model = parsed(form.format(body=BODIES[name]))
        (want,) = run(model, {model.graph.input[0].name: np.asarray(first), "x": X})
        out = tmp_path / "m.vmfb"
        onnx_fa.compile(model, out)
        (got,) = onnx_fa.run(out, first, X)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)


def test_a_function_that_the_importer_writes_out(tmp_path: Path) -> None:
    """It asks for the type of what stands around the branch. (In the body of a Loop the compiler takes no such function.)"""
    model = parsed(IF.format(body="r = MeanVarianceNormalization<axes = [0, 2, 3]>(x)"))
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    (want,) = run(model, {"c": YES, "x": X})
    np.testing.assert_allclose(onnx_fa.run(tmp_path / "m.vmfb", YES, X)[0], want, rtol=2e-5, atol=1e-5)


def test_a_body_in_a_body() -> None:
    inner = "r = If(c)<then_branch = u () => (float[B, 8, 4, 4] p) { p = LpNormalization<axis = -1>(a) }, "
    inner += "else_branch = w () => (float[B, 8, 4, 4] q) { q = Swish(a) }>"
    model = parsed(IF.format(body=inner), 24)
    found = [n.op_type for n in all_nodes(legalize(onnx.shape_inference.infer_shapes(model)).graph)]
    assert not {"LpNormalization", "Swish"} & {*found} and found.count("If") == 2 and "Sigmoid" in found


MEETS = {
    "If": IF.replace("float[B, 8, 4, 4] x)", "float[B, 8, 4, 4] x, float[one, 8, 4, 4] z)").format(
        body="r = Add(a, z)"
    ),
    "Loop": LOOP.replace("float[B, 8, 4, 4] x)", "float[B, 8, 4, 4] x, float[one, 8, 4, 4] z)").format(
        body="r = Add(a, z)"
    ),
}


@pytest.mark.parametrize("form", MEETS)
def test_sizes_are_compared_where_they_meet(form: str, tmp_path: Path) -> None:
    """And only in a branch that is taken, and in a round that is made."""
    model = parsed(MEETS[form])
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    for taken in (0, 1):
        for z in (X, X[:1]):
            first = np.array(bool(taken)) if form == "If" else np.array(taken)
            (want,) = run(model, {model.graph.input[0].name: first, "x": X, "z": z})
            if taken and len(z) == 1:
                with pytest.raises(OnnxFaError, match=r"\(B\) and axis 0 of 'z' \(one\) to be of one size"):
                    onnx_fa.run(tmp_path / "m.vmfb", first, X, z)
            else:
                np.testing.assert_array_equal(onnx_fa.run(tmp_path / "m.vmfb", first, X, z)[0], want)


def test_a_branch_does_not_look_for_the_other(tmp_path: Path) -> None:
    """What one branch has compared, the other one compares again."""
    text = MEETS["If"].replace("n = Neg(x)", "n = Sub(x, z)")
    onnx_fa.compile(parsed(text), tmp_path / "m.vmfb")
    for taken in (YES, NO):
        with pytest.raises(OnnxFaError, match="to be of one size"):
            onnx_fa.run(tmp_path / "m.vmfb", taken, X, X[:1])
