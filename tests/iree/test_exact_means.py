"""Norms without kernels, of rows of one large number throughout: 0 and what is added to it, whatever the mean is rounded to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser

import onnx_fa
from onnx_fa.iree.run import load_module

MODEL = """<ir_version: 10, opset_import: ["": 21]>
norms (float[2, 33, 7, 11] x, float[2, 33, L] f, float[5, 77] r, float[33] s, float[33] b, float[77] g, float[33, 7, 11] w)
    => (float[2, 33, 7, 11] a, float[2, 33, 7, 11] c, float[2, 33, L] d, float[5, 77] e, float[2, 33, 7, 11] h, float[5, 77] i)
<int64[1] last = {-1}, float small = {0.00001}> {
  a = GroupNormalization<num_groups = 3>(x, s, b)
  c = InstanceNormalization(x, s, b)
  d = InstanceNormalization(f, s, b)
  e = LayerNormalization(r, g)
  h = LayerNormalization<axis = 1>(x, w)
  m = ReduceMean(r, last)  v = Sub(r, m)  q = Mul(v, v)  n = ReduceMean(q, last)  o = Add(n, small)  p = Sqrt(o)  i = Div(v, p)
}"""


def test_numbers_alike(tmp_path: Path) -> None:
    """Known sizes that no kernel takes, a free one, several axes, and as exporters spell a norm out. float64 says what is right, as
    onnxruntime's own means are off by as much, but for its LayerNormalization."""
    onnx_fa.compile(onnx.parser.parse_model(MODEL), tmp_path / "m.vmfb")
    call, rng = load_module(tmp_path / "m.vmfb"), np.random.default_rng(0)
    s, b, g, w = (rng.uniform(0.5, 1.5, shape).astype(np.float32) for shape in ((33,), (33,), (77,), (33, 7, 11)))
    columns = s[:, None, None], b[:, None, None]
    for number, spread in ((12345.678, 0.0), (30000.1, 0.0), (1e9 / 3, 0.0), (1e4, 1.0)):
        x, f, r = (
            (number + spread * rng.standard_normal(n)).astype(np.float32)
            for n in ((2, 33, 7, 11), (2, 33, 77), (5, 77))
        )
        groups = normal(x.reshape(2, 3, -1), (2,)).reshape(x.shape) * columns[0] + columns[1]
        wanted = [
            groups,
            normal(x, (2, 3)) * columns[0] + columns[1],
            normal(f, (2,)) * s[:, None] + b[:, None],
            normal(r, (1,)) * g,
            normal(x, (1, 2, 3)) * w,
            normal(r, (1,)),
        ]
        for have, want in zip(call(x, f, r, s, b, g, w), wanted, strict=True):
            np.testing.assert_allclose(have, want, atol=2e-3 if spread else 1e-6)


def normal(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """The norm in float64, exact where all numbers are alike."""
    first = x.astype(np.float64) - x[(slice(None), *[slice(1)] * (x.ndim - 1))].astype(np.float64)
    centred = first - first.mean(axes, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(axes, keepdims=True) + 1e-5))
