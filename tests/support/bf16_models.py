"""A tiny attention whose numbers are bf16 throughout, as an exporter writes a model in that type."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, numpy_helper

_TEXT = """<ir_version: 9, opset_import: ["": 18]>
g (bfloat16[2, S, 32] x, int64[2, S] mask) => (bfloat16[2, S, 32] y) {
  heads = Constant<value = int64[4] {0, 0, 2, 16}>()
  flat = Constant<value = int64[3] {0, 0, 32}>()
  axes = Constant<value = int64[2] {1, 2}>()
  a = MatMul(x, wq)
  a4 = Reshape(a, heads)
  q = Transpose<perm = [0, 2, 1, 3]>(a4)
  b = MatMul(x, wk)
  b4 = Reshape(b, heads)
  kt = Transpose<perm = [0, 2, 3, 1]>(b4)
  c = MatMul(x, wv)
  c4 = Reshape(c, heads)
  v = Transpose<perm = [0, 2, 1, 3]>(c4)
  count = Constant<value_int = 12>()
  size = Cast<to = 16>(count)
  root = Sqrt(size)
  s = MatMul(q, kt)
  t = Div(s, root)
  keep = Cast<to = 9>(mask)
  kept = Unsqueeze(keep, axes)
  bias = Where(kept, zero, low)
  m = Add(t, bias)
  p = Softmax<axis = -1>(m)
  o = MatMul(p, v)
  ot = Transpose<perm = [0, 2, 1, 3]>(o)
  o3 = Reshape(ot, flat)
  y = MatMul(o3, wo)
}"""


def bf16_attention(path: Path, *, inside: bool = False) -> Path:
    """Four products with weights around an attention of two heads, whose mask comes of integers and whose scale of a size: the
    root of 12, which bf16 rounds. `inside`: inputs, outputs and weights are f32, and cast, as autocast has it."""
    model = onnx.parser.parse_model(_TEXT)
    rng = np.random.default_rng(0)
    numbers = {"zero": np.zeros((), np.float32), "low": np.array(ml_dtypes.finfo(ml_dtypes.bfloat16).min)}
    weights = {name: rng.standard_normal((32, 32)) / 4 for name in ("wq", "wk", "wv", "wo")}
    for name, array in (numbers | weights).items():
        model.graph.initializer.append(numpy_helper.from_array(array.astype(ml_dtypes.bfloat16), name))
    if inside:
        _cast_inside(model)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def _cast_inside(model: onnx.ModelProto) -> None:
    graph = model.graph
    for tensor in graph.initializer:
        wide = numpy_helper.to_array(tensor).astype(np.float32)
        graph.node.insert(
            0, onnx.helper.make_node("Cast", [f"{tensor.name}/f32"], [tensor.name], to=TensorProto.BFLOAT16)
        )
        tensor.CopyFrom(numpy_helper.from_array(wide, f"{tensor.name}/f32"))
    graph.node.insert(0, onnx.helper.make_node("Cast", ["x/f32"], ["x"], to=TensorProto.BFLOAT16))
    graph.node.append(onnx.helper.make_node("Cast", ["y"], ["y/f32"], to=TensorProto.FLOAT))
    for value in (graph.input[0], graph.output[0]):
        value.name += "/f32"
        value.type.tensor_type.elem_type = TensorProto.FLOAT
