"""A model with int64 ids, compiled for Vulkan and run on lavapipe."""

from __future__ import annotations

from pathlib import Path

import onnx

from onnx_fa.iree.compile import compile_model
from onnx_fa.models import build as zoo
from onnx_fa.models.export import export_onnx
from tests.support.lavapipe import require_lavapipe, run_on_lavapipe
from tests.support.ort_run import assert_same, run

BERT = zoo.Model("narrow_bert", "bert", S=24, hidden=32, heads=2, layers=1, B=2, intermediate=64, vocab=128)
"""Every kind of dispatch that a larger one has: lavapipe takes most of the time, for the shaders of each and for their products."""
SAME = 1e-5
"""Relative norm error of a whole f32 model of at most two layers when its attentions are computed in another order."""


def test_bert_with_int64_ids(tmp_path: Path) -> None:
    require_lavapipe()
    model = export_onnx(BERT, "torchscript", 17)
    inputs = zoo.inputs(BERT)
    assert {i.type.tensor_type.elem_type for i in model.graph.input} == {onnx.TensorProto.INT64}
    report = compile_model(model, tmp_path / "m.vmfb", "vulkan")
    assert [site.fused for site in report.sites] == [True] and not report.misses
    passed = [inputs[i.name] for i in model.graph.input]
    found = run_on_lavapipe(tmp_path / "m.vmfb", model.graph.name, passed, len(model.graph.output), tmp_path)
    assert_same(run(model, inputs), found, SAME)
