"""Values of which only a run knows how many dims they have: IREE would take each for a single number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import onnx_fa
from onnx_fa.errors import ModelError
from onnx_fa.iree.compile import import_model
from tests.support.ort_run import run


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {text}')


UNKNOWN = {
    "Reshape": "g (float[B, 4] x, int64[K] s) => (float y) { r = Reshape(x, s) y = ReduceSum<keepdims = 0>(r) }",
    "Expand": "g (float[B, 4] x, int64[K] s) => (float y) { r = Expand(x, s) y = ReduceMax<keepdims = 0>(r) }",
    "If": """g (bool c, float[2, 4] x) => (float y) {
        r = If(c)<then_branch = t () => (float[2, 4] a) { a = Neg(x) },
                  else_branch = e () => (float[8] b) { n = Constant<value = int64[1] {-1}>() b = Reshape(x, n) }>
        y = ReduceSum<keepdims = 0>(r) }""",
}


@pytest.mark.parametrize("op", UNKNOWN)
def test_refused(op: str) -> None:
    with pytest.raises(ModelError, match=rf"\({op}\): only a run knows how many dims 'r' has, .* a single number"):
        import_model(parsed(UNKNOWN[op]), "cpu-host")


def test_refused_in_a_body() -> None:
    text = """g (int64 n, float[2, 4] x, int64[K] s) => (float[2, 4] y) { on = Constant<value = bool {1}>()
        y = Loop(n, on, x)<body = b (int64 i, bool more, float[2, 4] a) => (bool same, float[2, 4] z) {
            same = Identity(more) r = Reshape(a, s) m = ReduceMax<keepdims = 0>(r) z = Mul(a, m) }> }"""
    with pytest.raises(ModelError, match=r"\(Reshape\): only a run knows how many dims 'r' has"):
        import_model(parsed(text), "cpu-host")


def test_repeats_of_unknown_number() -> None:
    text = "g (float[B, 4] x, int64[K] s) => (float[M, N] y) { y = Tile(x, s) }"
    with pytest.raises(ModelError, match="Tile takes repeats of unknown number"):
        import_model(parsed(text), "cpu-host")
    assert import_model(parsed(text.replace("[K]", "[2]")), "cpu-host").text


def test_known_where_sizes_are_given(tmp_path: Path) -> None:
    model = parsed(UNKNOWN["Reshape"])
    onnx_fa.compile(model, tmp_path / "m.vmfb", dims={"K": 3})
    feeds = {"x": np.arange(8, dtype=np.float32).reshape(2, 4), "s": np.array([2, 1, 4], np.int64)}
    np.testing.assert_array_equal(onnx_fa.run(tmp_path / "m.vmfb", *feeds.values())[0], run(model, feeds)[0])


def test_a_loop_says_nothing_of_its_round(tmp_path: Path) -> None:
    """The types of the round and of the condition often have no shape; they are single numbers."""
    text = """g (int64 n, float[2, 4] x) => (float[2, 4] y) { on = Constant<value = bool {1}>()
        y = Loop(n, on, x)<body = b (int64 i, bool more, float[2, 4] a) => (bool same, float[2, 4] z) {
            same = Identity(more) f = Cast<to = 1>(i) z = Add(a, f) }> }"""
    model = parsed(text)
    body = model.graph.node[1].attribute[0].g
    for value in (*body.input[:2], body.output[0]):
        value.type.tensor_type.ClearField("shape")
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(onnx_fa.run(tmp_path / "m.vmfb", np.array(3), x)[0], x + 3)
