"""Unsigned integers stay unsigned, whichever operator reads them; and constants as any file keeps them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

import onnx_fa
from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.rules import legalize
from tests.support.ort_run import run

ONE_BYTE = """<ir_version: 9, opset_import: ["" : 18]>
bytes (uint8[2, 6] x, uint8[2, 6] y) => (
  uint8[2, 6] a, uint8[2, 6] b, uint8[2, 6] c, uint8[2, 6] d, uint8[2, 2] most, int64[2, 2] at,
  bool[2, 6] less, uint8[2, 6] larger, uint8[2, 6] smaller, uint8[2, 1] largest, float[2, 6] f)
<uint8 low = {3}, uint8 high = {220}, int64[1] two = {2}, int64[1] last = {1}>
{
  a = Clip(x, low, high)  b = Clip(x, low)  c = Clip(x, , high)  d = Sign(x)  most, at = TopK(x, two)
  less = Less(x, y)  larger = Max(x, y)  smaller = Min(x, y)  largest = ReduceMax <keepdims = 1> (x, last)  f = Cast <to = 1> (x)
}"""
LONGER = """<ir_version: 9, opset_import: ["" : 18]>
longer (uint32[2, 6] x, uint32[2, 6] y) => (uint32[2, 6] a, uint32[2, 6] b, bool[2, 6] c)
<uint32 low = {3}, uint32 high = {3000000000}>
{ a = Clip(x, low, high)  b = Abs(x)  c = Less(x, y) }"""
X = np.array([[200, 3, 127, 128, 0, 255], [7, 130, 129, 5, 250, 1]])
Y = np.array([[1, 200, 128, 127, 255, 2], [7, 9, 131, 250, 5, 2]])


@pytest.mark.parametrize(("text", "kind", "times"), [(ONE_BYTE, np.uint8, 1), (LONGER, np.uint32, 1 << 24)])
def test_as_onnxruntime_has_them(text: str, kind: type[np.unsignedinteger], times: int, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(text)
    x, y = (X * times).astype(kind), (Y * times).astype(kind)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    wanted = run(model, {"x": x, "y": y})
    for output, got, want in zip(model.graph.output, onnx_fa.run(tmp_path / "m.vmfb", x, y), wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(got).view(want.dtype), want, output.name)


def test_what_no_signed_type_holds_is_refused() -> None:
    text = '<ir_version: 9, opset_import: ["" : 18]> g (uint64[4] x, int64[1] k) => (uint64[K] v, int64[K] i) { v, i = TopK(x, k) }'
    with pytest.raises(ModelError, match="TopK of uint64 as of int64"):
        legalize(onnx.parser.parse_model(text))


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.UINT16])
@pytest.mark.parametrize("constant", [False, True])
def test_elements_in_wider_numbers(kind: int, constant: bool, tmp_path: Path) -> None:
    """As onnx.helper and converters to float16 write them; IREE's importer takes bytes alone."""
    tensor = helper.make_tensor("c", kind, [3], [1, 0, 5])
    assert tensor.int32_data
    nodes = [helper.make_node("Cast", ["c"], ["f"], to=TensorProto.FLOAT), helper.make_node("Add", ["x", "f"], ["y"])]
    if constant:
        nodes.insert(0, helper.make_node("Constant", [], ["c"], value=tensor))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [] if constant else [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    np.testing.assert_array_equal(onnx_fa.run(tmp_path / "m.vmfb", np.ones(3, np.float32))[0], [2, 1, 6])
