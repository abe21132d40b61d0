"""Reshapes to sizes of the run that change no free one; and rows of a table of which there are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import onnx_fa
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from tests.support.ort_run import run


def reshaped(x: str, y: str, tail: str) -> onnx.ModelProto:
    """x as (batch of q, *tail), which is declared as `y`."""
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g (float[{x}] x, float[M, 3] q) => (float[{y}] y) <int64[{tail.count(",") + 1}] tail = {{{tail}}}>
        {{ n = Shape <start = 0, end = 1> (q)  to = Concat <axis = 0> (n, tail)  y = Reshape(x, to) }}"""
    )


def targets(model: onnx.ModelProto) -> list[list[int] | None]:
    """The constant targets of its Reshapes as IREE gets them; None for one that a run computes."""
    infer_types(model, {})
    written = legalize(model)
    known = {t.name: onnx.numpy_helper.to_array(t).tolist() for t in written.graph.initializer}
    return [known.get(n.input[1]) for n in written.graph.node if op_of(n) == "Reshape"]


def test_a_batch_that_stays_is_copied(tmp_path: Path) -> None:
    model = reshaped("B, 6, 8", "C, 6, 2, 4", "-1, 2, 4")
    assert targets(model) == [[0, 6, 2, 4]]
    x = np.arange(96, dtype=np.float32).reshape(2, 6, 8)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    np.testing.assert_array_equal(
        onnx_fa.run(tmp_path / "m.vmfb", x, np.ones((2, 3), np.float32))[0], x.reshape(2, 6, 2, 4)
    )


@pytest.mark.parametrize(
    ("x", "y", "tail"),
    [
        ("B, 6, 8", "C, D, 2, 4", "-1, 2, 4"),  # two free dims
        ("B, 6, 8", "C, 3, 8", "3, 8"),  # twice as many
        ("6, B, 8", "C, 6, 8", "6, 8"),  # another place
        ("B, 0, 8", "C, 0, 8", "0, 8"),  # no elements, of which nothing follows
    ],
)
def test_others_are_computed(x: str, y: str, tail: str) -> None:
    assert targets(reshaped(x, y, tail))[-1] is None


@pytest.mark.parametrize(
    ("table", "indices", "axis", "made"),
    [("float[29, 4]", "B, 0", 0, "float[B, 0, 4]"), ("bool[B, 5, 4]", "0", 1, "bool[B, 0, 4]")],
)
def test_no_rows(table: str, indices: str, axis: int, made: str, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g ({table} x, int64[{indices}] i) => ({made} y) {{ y = Gather <axis = {axis}> (x, i) }}"""
    )
    sizes = {"B": 3}
    dims = [[sizes.get(d.dim_param, d.dim_value) for d in v.type.tensor_type.shape.dim] for v in model.graph.input]
    feeds = {"x": np.ones(dims[0], np.float32 if "float" in table else bool), "i": np.zeros(dims[1], np.int64)}
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    assert onnx_fa.run(tmp_path / "m.vmfb", *feeds.values())[0].shape == run(model, feeds)[0].shape
