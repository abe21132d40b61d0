"""Windows of images of any size: their number stands beside the batch in one axis of Q, and alone in the mask."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from onnx_fa.forms.rewrite import FORMS, explain, rewrite
from tests.support.ort_run import assert_same, run
from tests.support.spellings_layout import Layout

H, S, D = 2, 4, 8


def windows(outer: str, of_mask: bool = True) -> onnx.ModelProto:
    """Scores of all windows of a batch, and a mask for each window; `outer` is the axis that stands first, the "batch" or the
    "windows". Without `of_mask` a run says how many windows there are, and the mask is for one of a third image's."""
    g = Layout(18)
    q, k, v = (g.input(name, ["b*n", H, S, D]) for name in "qkv")
    score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
    mask = g.input("mask", ["n", S, S])
    count = g.op("Shape", mask, start=0, end=1) if of_mask else g.input("count", [1], T.INT64)
    rest, both = g.const([H, S, S], np.int64), [g.const([-1], np.int64), count]
    split = g.op("Concat", *(both if outer == "batch" else both[::-1]), rest, axis=0)
    added = g.op("Add", g.op("Reshape", score, split), g.unsqueeze(mask, *((0, 2) if outer == "batch" else (1, 2))))
    p = g.softmax(g.reshape(added, -1, H, S, S))
    g.nodes.append(h.make_node("MatMul", [p, v], ["o"]))
    return g.model({"o": (["b*n", H, S, D], T.FLOAT)})


def given(batch: int, count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch)
    arrays = {name: rng.standard_normal((batch * count, H, S, D)).astype(np.float32) for name in "qkv"}
    hidden = np.where(rng.random((count, S, S)) < 0.3, -100.0, 0.0).astype(np.float32)
    return arrays | {"mask": hidden}


@pytest.mark.parametrize("form", [form for form in FORMS if form != "attention"])
def test_their_number_is_read_off_the_mask(form: str) -> None:
    model = windows("batch")
    (site,) = explain(model).sites
    assert set(site.spec.batch) == {"b", "n"}
    new, report = rewrite(model, form)
    assert len(report.sites) == 1
    for batch, count in ((2, 3), (1, 4), (3, 1)):
        assert_same(run(model, given(batch, count)), run(new, given(batch, count)), 1e-5)


@pytest.mark.parametrize(("outer", "of_mask", "size"), [("windows", True, "b"), ("batch", False, "unk__1")])
def test_a_number_that_no_tensor_has_is_missed_with_its_reason(outer: str, of_mask: bool, size: str) -> None:
    report = explain(windows(outer, of_mask))
    assert not report.sites
    assert [miss.reason for miss in report.misses] == [
        f"a reshape of Q, K, V or a mask needs the size {size}, which is that of no axis of theirs at run time"
    ]
