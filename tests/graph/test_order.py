"""Nodes that stand before what they read: moved behind it where ONNX leaves no doubt of what they mean, as onnxruntime does."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from onnx_fa.errors import ModelError
from onnx_fa.forms.rewrite import rewrite
from onnx_fa.graph.io import load
from onnx_fa.graph.order import in_order
from tests.support.ort_run import assert_same, run

BRANCHES = """
<ir_version: 9, opset_import: ["": 18]>
agraph (bool c, float[2, 4, 7, 6] q, float[2, 4, 9, 6] k, float[2, 4, 9, 5] v) => (float[2, 4, 7, 5] o)
{
    o = If (c) <
        then_branch = then () => (float[2, 4, 7, 5] a)
        { s = MatMul (scaled, t)  p = Softmax <axis = -1> (s)  a = MatMul (p, v) },
        else_branch = else () => (float[2, 4, 7, 5] b) { u = MatMul (q, t)  w = MatMul (u, v)  b = Neg (w) }
    >
    scaled = Mul (q, scale)
    scale = Constant <value = float {0.4}> ()
    t = Transpose <perm = [0, 1, 3, 2]> (k)
}
"""
PLAIN = """
<ir_version: 9, opset_import: ["": 18]>
agraph (float[2, 7] x) => (float[2, 7] o) { a = Neg (x)  b = Exp (x)  o = Add (a, b) }
"""
INSIDE = """
<ir_version: 9, opset_import: ["": 18]>
agraph (bool c, float[2] x) => (float[2] o)
{
    o = If (c) <
        then_branch = then () => (float[2] b) { b = Neg (a)  a = Exp (x) },
        else_branch = else () => (float[2] d) { d = Exp (x) }
    >
}
"""


def names(model: onnx.ModelProto) -> list[str]:
    return [node.output[0] for node in model.graph.node]


def reversed_(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its nodes backwards."""
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in model.graph.node][::-1]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


@pytest.mark.parametrize("chosen", [True, False])
def test_attention_in_a_branch_whose_if_stands_before_what_it_reads(chosen: bool) -> None:
    model = onnx.parser.parse_model(BRANCHES)
    before = model.SerializeToString()
    rng = np.random.default_rng(0)
    feeds = {
        n: rng.standard_normal((2, 4, *end), np.float32) for n, end in (("q", (7, 6)), ("k", (9, 6)), ("v", (9, 5)))
    }
    feeds["c"] = np.array(chosen)
    rewritten, report = rewrite(model)
    assert len(report.sites) == 1 and model.SerializeToString() == before
    onnx.checker.check_model(rewritten, full_check=True)
    assert_same(run(model, feeds), run(rewritten, feeds))


def test_what_is_sorted_is_the_model_itself() -> None:
    model = onnx.parser.parse_model(PLAIN)
    assert in_order(model) is model
    assert names(in_order(reversed_(onnx.parser.parse_model(PLAIN)))) == ["b", "a", "o"]


def test_a_cycle_stays_and_is_refused() -> None:
    model = reversed_(onnx.parser.parse_model(PLAIN))
    model.graph.node[-1].input[0] = "o"
    assert in_order(model) is model
    with pytest.raises(ModelError, match="cycle"):
        load(model)


def test_the_nodes_of_a_branch_stay_and_are_refused_as_by_onnxruntime() -> None:
    model = onnx.parser.parse_model(INSIDE)
    assert in_order(model) is model
    with pytest.raises(ModelError, match=r"graph 'then' is not topologically sorted"):
        load(model)
    with pytest.raises(Exception, match="topologically sorted"):
        run(model, {"c": np.array(True), "x": np.ones(2, np.float32)})


def test_two_nodes_of_one_name_are_refused_in_any_order() -> None:
    model = reversed_(onnx.parser.parse_model(PLAIN.replace("b = Exp (x)", "a = Exp (x)  b = Exp (a)")))
    with pytest.raises(ModelError, match="twice"):
        load(model)
