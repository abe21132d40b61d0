"""Convolutions of volumes in groups give onnxruntime's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import onnx_fa
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.iree.legalise.writer import attr_of
from tests.support.ort_run import assert_same, run

F32 = TensorProto.FLOAT
CASES: tuple[tuple[list[int], dict[str, Any]], ...] = (
    ([4, 1, 3, 3, 3], {"group": 4, "pads": [1, 1, 1, 1, 1, 1]}),
    ([8, 1, 3, 1, 2], {"group": 4, "strides": [2, 1, 2]}),
    ([6, 2, 2, 3, 3], {"group": 2, "dilations": [2, 1, 2], "pads": [1, 0, 2, 0, 1, 2]}),
    ([4, 1, 1, 3, 3], {"group": 4}),
)
"""Shapes of weights, and attributes; of 4 channels, 5 x 6 x 7."""


def model_of(opset: int) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    nodes, weights, outputs = [], [], []
    for i, (shape, attributes) in enumerate(CASES):
        for name, dims in ((f"w{i}", shape), (f"b{i}", shape[:1])):
            numbers = rng.standard_normal(dims).astype(np.float32)
            weights.append(helper.make_tensor(name, F32, dims, numbers.tobytes(), raw=True))
        nodes.append(helper.make_node("Conv", ["x", f"w{i}", f"b{i}"], [f"y{i}"], **attributes))
        outputs.append(helper.make_tensor_value_info(f"y{i}", F32, None))
    x = helper.make_tensor_value_info("x", F32, ["batch", 4, 5, 6, 7])
    graph = helper.make_graph(nodes, "g", [x], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def images(batch: int) -> np.ndarray:
    return np.random.default_rng(batch).standard_normal((batch, 4, 5, 6, 7)).astype(np.float32)


def test_groups(tmp_path: Path) -> None:
    model = model_of(17)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    for batch in (1, 3):
        given = images(batch)
        assert_same(run(model, {"x": given}), onnx_fa.run(tmp_path / "m.vmfb", given))


def test_pads_are_attributes_before_opset_11() -> None:
    model, given = model_of(10), images(2)
    made = legalize(onnx.shape_inference.infer_shapes(model))
    assert not any(attr_of(node, "group", 1) > 1 and len(attr_of(node, "pads", [])) > 4 for node in made.graph.node)
    assert_same(run(model, {"x": given}), list(ReferenceEvaluator(made).run(None, {"x": given})))
