"""Rewritten models declare no names that shape inference made up: onnxruntime's optimiser goes by them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnx_fa.forms.replace import Form
from onnx_fa.forms.rewrite import FORMS, rewrite
from tests.support.ort_run import run
from tests.support.text_graphs import TextGraph

BOXES = """
    places = NonZero(mask)
    kept = Squeeze(places, zero)
    boxes = Gather(rows, kept)
    left = Slice(boxes, zero, end, one, two)
    right = Slice(boxes, one, end, one, two)
    l = Relu(left)
    r = Relu(right)
    ll = Unsqueeze(l, two)
    rr = Unsqueeze(r, two)
    pairs = Concat <axis = 2> (ll, rr)
    sizes = Shape(boxes)
    n = Gather(sizes, first)
    m = Gather(sizes, second)
    n1 = Unsqueeze(n, zero)
    m1 = Unsqueeze(m, zero)
    shape = Concat <axis = 0> (n1, m1)
    clipped = Reshape(pairs, shape)
    qt = Transpose <perm = [0, 2, 1]> (q)
    scores = MatMul(q, qt)
    p = Softmax(scores)
    o = MatMul(p, q)
"""
"""Boxes are clipped to an image in x and in y, as torchvision's detectors write it, beside an attention."""


def detector() -> onnx.ModelProto:
    inputs = "bool[k] mask, float[k,w] rows, float[2,n,8] q"
    numbers = {"zero": [0], "one": [1], "two": [2], "end": [2**62], "first": 0, "second": 1}
    return TextGraph(inputs, BOXES, "clipped, o", 17, **numbers).proto


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("found", [0, 3])
def test_a_detector_that_finds_nothing_runs(form: Form, found: int) -> None:
    model = detector()
    made, report = rewrite(model, form)
    assert report.sites or form == "attention"  # no op of this opset
    rng = np.random.default_rng(0)
    rows, q = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 4), (2, 6, 8)))
    feeds = {"mask": np.arange(5) < found, "rows": rows, "q": q}
    for optimise in (False, True):
        for want, have in zip(run(model, feeds, optimise=False), run(made, feeds, optimise=optimise), strict=True):
            np.testing.assert_allclose(have, want, atol=2e-6)


def test_names_that_the_model_has_stay() -> None:
    """Those of its inputs, wherever they lead, and those that it declares itself, though they look made up."""
    model = detector()
    info = helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ["unk__7", "w"])
    model.graph.value_info.append(info)
    made, _ = rewrite(model)
    said = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in made.graph.value_info}
    assert said["boxes"] == ["unk__7", "w"]
    assert said["sizes"] == [2] and said["pairs"][2] == 2
    assert any("n" in dims for dims in said.values())  # of the site
    assert not [name for name, dims in said.items() if "unk__0" in dims]
