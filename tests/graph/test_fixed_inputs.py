"""Inputs that the caller fixes: an If that they decide becomes its branch, and nothing else changes."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

from onnx_fa.cli import main
from onnx_fa.errors import ModelError
from onnx_fa.forms.rewrite import rewrite_in_place
from onnx_fa.graph.fixed_inputs import Scalar, fix_inputs
from onnx_fa.graph.io import check_valid, load, to_proto
from tests.support import tiny

NESTED = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x, bool[1] first, int64 second, float scale) => (float[2] y, float[2] z, float[2] same) {
  lost = Neg(x)
  zero = Constant<value = int64 {0}>()
  y, z, same = If(first) <
    then_branch = t () => (float[2] a, float[2] b, float[2] c) {
      t1 = Mul(x, scale)
      more = Greater(second, zero)
      a = If(more) <then_branch = tt () => (float[2] r) { r = Add(t1, x) }, else_branch = te () => (float[2] r) { r = Sub(t1, x) }>
      b = Identity(a)
      c = Identity(x)
    },
    else_branch = e () => (float[2] a, float[2] b, float[2] c) { t1 = Abs(lost)
      a = Add(t1, t1)
      b = Exp(t1)
      c = Neg(b) }
  >
}"""


def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(NESTED)


@pytest.mark.parametrize(("first", "second"), list(product((0, True), (0, 3))))
def test_branch_in_place(first: Scalar, second: int) -> None:
    values: dict[str, Scalar] = {"first": first, "second": second, "scale": 2}
    fixed = fix_inputs(model(), values)
    check_valid(fixed)
    assert [n.op_type for n in fixed.graph.all_nodes() if n.op_type == "If"] == []
    assert [v.name for v in fixed.graph.inputs] == ["x"]
    assert [v.name for v in fixed.graph.outputs] == ["y", "z", "same"]
    assert any(n.op_type == "Neg" for n in fixed.graph) == (not first)
    x = np.array([1.5, -2], np.float32)
    passed = {"x": x, "first": np.array([first], bool), "second": np.int64(second), "scale": np.float32(2)}
    want = ReferenceEvaluator(model()).run(None, passed)
    for a, b in zip(ReferenceEvaluator(to_proto(fixed)).run(None, {"x": x}), want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_condition_that_stays_open() -> None:
    """The inner If alone is decided, which lies in a branch of one that is not: both stay."""
    fixed = fix_inputs(model(), {"second": 1})
    check_valid(fixed)
    assert sum(n.op_type == "If" for n in fixed.graph.all_nodes()) == 2
    assert to_proto(fix_inputs(model(), {})) == to_proto(load(model()))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"third": 1}, "no such input; its inputs are: x, first, second, scale"),
        ({"x": 1}, "shape is 2; only inputs of one element"),
        ({"first": 2}, "type is BOOL"),
        ({"second": 1.5}, "type is INT64"),
        ({"second": 1 << 63}, "type is INT64"),
        ({"scale": True}, "type is FLOAT"),
    ],
)
def test_values_that_do_not_fit(values: dict[str, Scalar], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        fix_inputs(model(), values)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tiny.attention(tmp_path / "a.onnx"))
    assert main(["import", path, "-o", "-", "--set", "cache=1"]) == 2
    assert "--set cache: the model has no such input" in capsys.readouterr().err
    assert main(["run", "a.vmfb", "--set", "cache=1"]) == 2
    assert "--set needs --random-inputs" in capsys.readouterr().err


def test_reason_names_the_input() -> None:
    """An attention in a branch has no kernel, and the reason says which input to fix; with it fixed, it is a site."""
    body = "s = MatMul(q, k) p = Softmax(s) o = MatMul(p, v)"
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,2,8,4] q, float[1,2,4,8] k, float[1,2,8,4] v, bool use) => (float[1,2,8,4] y) {{
      y = If(use) <then_branch = t () => (float[1,2,8,4] o) {{ {body} }},
                   else_branch = e () => (float[1,2,8,4] o) {{ o = Identity(q) }}>
    }}"""
    given = onnx.parser.parse_model(text)
    report, _ = rewrite_in_place(load(given), "site")
    assert ["--set use=1 (or 0)" in m.reason for m in report.misses] == [True]
    report, sites = rewrite_in_place(fix_inputs(given, {"use": 1}), "site")
    assert len(sites) == 1 and not report.misses
