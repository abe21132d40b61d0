"""What is known of a site's result, for what reads it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper as nh

from onnx_fa.iree.kernels import plan_kernels
from onnx_fa.spec.target import parse_target

H, D = 4, 16
WIDTH = H * D


def attention(batch: str, length: str) -> onnx.ModelProto:
    """Heads out of rows and back by shapes that are computed of what is there, as PyTorch's TorchScript exporter writes them: onnx
    then knows none of the result's sizes."""
    text = f"""<ir_version: 9, opset_import: ["": 17]>
    g (float[{batch}, {WIDTH}, {length}] sound) => (float[a, b, {WIDTH}] y)
    <int64[1] less = {{-1}}, int64[1] heads = {{{H}}}, int64[1] each = {{{D}}}, int64[1] first = {{0}}, int64[1] second = {{1}},
     int64[1] third = {{2}}> {{
      c = Conv<strides = [2]>(sound, taps)
      x = Transpose<perm = [0, 2, 1]>(c)
      dims = Shape(x)
      batch = Gather(dims, first)
      length = Gather(dims, second)
      shape = Concat<axis = 0>(batch, length, less, each)
      r = Reshape(x, shape)
      q = Transpose<perm = [0, 2, 1, 3]>(r)
      k = Transpose<perm = [0, 2, 3, 1]>(r)
      s = MatMul(q, k)
      p = Softmax<axis = -1>(s)
      o = MatMul(p, q)
      made = Shape(o)
      rows = Gather(made, first)
      again = Concat<axis = 0>(rows, less, length, each)
      u = Reshape(o, again)
      t = Transpose<perm = [0, 2, 1, 3]>(u)
      flat = Concat<axis = 0>(batch, length, less)
      z = Reshape(t, flat)
      y = MatMul(z, w)
    }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(nh.from_array(np.eye(WIDTH, dtype=np.float32), "w"))
    model.graph.initializer.append(nh.from_array(np.ones((WIDTH, WIDTH, 2), np.float32), "taps"))
    return model


@pytest.mark.parametrize("length", ["S", "9"])
@pytest.mark.parametrize("batch", ["B", "2"])
def test_a_product_behind_it_has_known_columns(batch: str, length: str) -> None:
    planned = plan_kernels(attention(batch, length), parse_target("cpu-avx2"))
    [site] = planned.sites
    [product] = [n for n in planned.model.graph if n.op_type == "MatMul"]
    rows, result = product.inputs[0], site.node.outputs[0]
    assert rows is not None and rows.shape is not None and rows.shape[2] == WIDTH
    known = [d for d in result.shape or () if isinstance(d, int)]
    assert len(known) == 2 + batch.isdigit() + length.isdigit()
