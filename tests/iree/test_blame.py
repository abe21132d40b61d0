"""Where a model does not compile and onnx finds a node of it wrong, that node is named; else what the compiler said stands."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from onnx_fa.errors import CompileError, ModelError, RunError
from onnx_fa.iree.blame import blaming
from onnx_fa.iree.compile import compile_model

SOUND = """<ir_version: 9, opset_import: ["" : 18]> g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }"""
BOOL_PRODUCT = """<ir_version: 9, opset_import: ["" : 18]> g (float[n] x, float[m] z) => (float[n, m] y) {
    [test] b = Greater(x, x)
    [product] y = Einsum <equation = "i,j->ij"> (b, z)
}"""
TWO_TYPES = """<ir_version: 9, opset_import: ["" : 18]> g (float[n, 4] x, float16[4] w) => (float[n, 4] y) {
    [norm] y = LayerNormalization(x, w)
}"""
WIDE = """<ir_version: 9, opset_import: ["" : 18]> g (float[n, 2] x) => (float[n] y) <int64[1] one = {1}> {
    [column] y = Squeeze(x, one)
}"""
FAULTS = {
    BOOL_PRODUCT: r"node 'product' \(Einsum\): .*bool.*, says onnx; iree refuses it",
    TWO_TYPES: r"node 'norm' \(LayerNormalization\): .*inconsistent type.*, says onnx; iree refuses it",
    WIDE: r"node 'column' \(Squeeze\): Dimension of input 1 must be 1 instead of 2, says onnx; iree refuses it",
}


@pytest.mark.parametrize("text", FAULTS)
def test_the_node_is_named(text: str) -> None:
    with pytest.raises(ModelError, match=FAULTS[text]) as raised, blaming(onnx.parser.parse_model(text)):
        raise CompileError("iree refuses it")
    assert isinstance(raised.value.__cause__, CompileError)


@pytest.mark.parametrize(("text", "error"), [(SOUND, CompileError("lost")), (WIDE, RunError("lost"))])
def test_other_failures_stand(text: str, error: Exception) -> None:
    with pytest.raises(type(error), match=r"^lost$"), blaming(onnx.parser.parse_model(text)):
        raise error


def test_nothing_is_looked_for_where_all_is_well(tmp_path: Path) -> None:
    with blaming(tmp_path / "there_is_no_such.onnx"):
        pass


def test_an_ill_typed_product_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"node 'product' \(Einsum\): .*tensor\(bool\), says onnx; iree-compile failed"
    ):
        compile_model(onnx.parser.parse_model(BOOL_PRODUCT), tmp_path / "m.vmfb")
    assert not (tmp_path / "m.vmfb").exists()
