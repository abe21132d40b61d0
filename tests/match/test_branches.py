"""Ifs whose branch is sure: taken inside an attention, equal where there are no elements, and left alone elsewhere."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

from onnx_fa.forms.rewrite import FORMS, rewrite
from onnx_fa.graph.empty_guards import sure_branch
from onnx_fa.graph.io import load
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.graph.view import GraphView
from tests.support.ort_run import run
from tests.support.spellings_inside import MATCH, REFUSE, guarded

_HEAD = '<ir_version: 10, opset_import: ["": 21]>'


@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 2, 3), (2, 0, 3), (2, 3, 0), (0, 0, 0), (1, 1, 1)])
def test_guarded_attention_of_no_elements(batch: int, queries: int, keys: int) -> None:
    model = guarded()
    new, report = rewrite(model)
    assert len(report.sites) == 1
    assert "If" not in [n.op_type for n in new.graph.node]
    feeds = {"q": (batch, 4, queries, 8), "k": (batch, 4, keys, 8), "v": (batch, 4, keys, 6)}
    inputs = {name: np.ones(shape, np.float32) for name, shape in feeds.items()}
    for optimise in (False, True):
        (want,), (have,) = (run(m, inputs, optimise=optimise) for m in (model, new))
        np.testing.assert_array_equal(want, have)


def test_a_form_that_cannot_hold_it_says_so() -> None:
    model = guarded()
    new, report = rewrite(model, "attention")
    assert [n.op_type for n in new.graph.node] == [n.op_type for n in model.graph.node]
    assert ["opset 23" in miss.reason for miss in report.misses] == [True]


def branch_taken(then: str, other: str, *, count: str = "Size(x)", behind: str = "Identity(made)") -> str | None:
    """The name of the branch of an If on `count` == 0, over x of [s, 4]."""
    model = load(
        onnx.parser.parse_model(f"""{_HEAD} g (float[s, 4] x, float[4, t] w, float[t] other) => (float[m, n] o) {{
  zero = Constant <value = int64 {{0}}> ()
  nought = Constant <value_float = 0.0> ()
  rows = Shape <start = 0, end = 1> (x)
  four = Constant <value = int64[1] {{4}}> ()
  one = Constant <value = int64[1] {{1}}> ()
  count = {count}
  none = Equal(count, zero)
  made = If(none) <then_branch = then () => (float[a, b] p) {{ {then} }}, else_branch = other () => (float[c, d] r) {{ {other} }}>
  o = {behind}
}}""")
    )
    infer_shapes(model)
    node = next(n for n in model.graph if n.op_type == "If")
    branch = sure_branch(GraphView(model), node)
    return None if branch is None else branch.name


def test_branches_of_one_shape_without_elements() -> None:
    assert branch_taken("p = Neg(x)", "r = Exp(x)") == "other"
    assert branch_taken("p = Neg(x)", "r = Exp(x)", count="Size(other)") is None, (
        "x has elements where `other` has none"
    )
    assert branch_taken("p = Transpose(x)", "r = Exp(x)") is None, "[4, 0] and [0, 4] are told apart"
    assert branch_taken("p = MatMul(x, w)", "r = Exp(x)") is None


def test_sizes_that_decide() -> None:
    assert branch_taken("p = Neg(x)", "r = Transpose(x)", count="Size(four)") == "other"
    assert branch_taken("p = Neg(x)", "r = Transpose(x)", count="Sub(zero, zero)") == "then"
    assert branch_taken("p = Neg(x)", "r = Exp(x)", count="Add(zero, zero)") == "then"


def test_a_product_that_sums_over_nothing() -> None:
    """The product of [4, s] and [s, 4] is zeros where s is 0."""
    zeros = "shape = Concat <axis = 0> (four, four)\n p = Expand(FILL, shape)"
    product = "xt = Transpose(x)\n r = MatMul(xt, x)"
    assert branch_taken(zeros.replace("FILL", "nought"), product) == "other"
    one = "c = Constant <value_float = 1.0> ()\n"
    assert branch_taken(one + zeros.replace("FILL", "c"), product) is None
    assert branch_taken(zeros.replace("FILL", "nought"), f"{product.replace('r =', 'm =')}\n r = Exp(m)") is None


def test_what_meets_nothing_but_empty_tensors() -> None:
    """A row of [1, 4] is not empty where s is 0, but what is added to x is."""
    row = "shape = Concat <axis = 0> (one, four)\n p = Expand(nought, shape)"
    top = "axis = Constant <value = int64[1] {0}> ()\n r = ReduceMax(x, axis)"
    assert branch_taken(row, top, behind="Sub(x, made)") == "other"
    assert branch_taken(row, top, behind="Neg(made)") is None
    assert branch_taken(row, top) is None


@pytest.mark.parametrize(
    "name", ["guards against no elements", "guard against one element", "loop that keeps the shape"]
)
def test_the_model_given_stays_as_it_is(name: str) -> None:
    """To the byte: constants that share a tensor with it keep their names, in branches too."""
    model = (MATCH | REFUSE)[name]()
    for node in model.graph.node:
        for branch in (a.g for a in node.attribute if a.name == "else_branch"):
            # The constant of a branch has a name that the graph around it has too.
            branch.initializer.append(onnx.numpy_helper.from_array(np.ones(3, np.float32), "o/decided"))
    before = model.SerializeToString()
    for form in FORMS:
        rewrite(model, form)
        assert model.SerializeToString() == before
