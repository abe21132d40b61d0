"""The shape of scores whose heads stand in one axis with the batch, which no operand has: each length of it is some operand's."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T

from onnx_fa.forms.replace import Form
from onnx_fa.forms.rewrite import explain, rewrite
from tests.support.ort_run import assert_same, run
from tests.support.spellings import Graph

H, D = 4, 6


def _folded(added: int = 0) -> onnx.ModelProto:
    """As DeBERTa's: scores of heads and batch in one axis, whose shape the probabilities get back. The model gives it, too, with
    so much `added` to its first length."""
    g = Graph(18)
    q, k, v = (g.input(name, ["b", "n", H, D]) for name in "qkv")
    kept = g.input("kept", ["b", 1, 1, "n"], T.BOOL)
    length = g.op("Shape", q, start=1, end=2)
    rows, one, width = g.const([-1], np.int64), g.const([H], np.int64), g.const([D], np.int64)

    def folded(x: str) -> str:
        return g.op("Reshape", g.op("Transpose", x, perm=[0, 2, 1, 3]), g.op("Concat", rows, length, width, axis=0))

    scores = g.op("MatMul", folded(q), g.op("Transpose", folded(k), perm=[0, 2, 1]))
    asked = g.op("Shape", scores)
    apart = g.op("Reshape", scores, g.op("Concat", rows, one, length, length, axis=0))
    masked = g.op("Where", kept, apart, g.const(-1e30))
    probabilities = g.op("Reshape", g.op("Softmax", masked, axis=-1), asked)
    sizes = g.op("Add", asked, g.const([added, 0, 0], np.int64))
    return g.model({g.op("MatMul", probabilities, folded(v)): ([None, "n", D], T.FLOAT), sizes: ([3], T.INT64)})


@pytest.mark.parametrize("form", ["decomposed", "blocked"])
def test_the_shape_is_a_product_of_lengths(form: Form) -> None:
    original = _folded(added=3)
    assert [site.variant for site in explain(original).sites] == ["mha+boolmask"]
    rewritten, _ = rewrite(original, form=form)
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((3, 5, H, D)).astype(np.float32) for name in "qkv"}
    feeds["kept"] = np.arange(5) < np.asarray([5, 3, 1]).reshape(3, 1, 1, 1)
    assert_same(run(original, feeds), run(rewritten, feeds))
