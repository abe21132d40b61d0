"""A layer by onnxruntime's operators on bytes as a compiled program: its bytes are onnxruntime's, its attention is one kernel."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser

from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.run import load_module
from tests.support.ort_run import run

LENGTH, WIDTH = 7, 16


def _layer(kind: str) -> str:
    """x to y, of bytes of a kind, with odd zero points: projections, one with a bias, scaled scores, and a last one."""
    n = kind[0]
    # A scale for each kind of value: those of results are no simple fractions of products of the others, so that nothing ties.
    project = "{0}{m}{n} = QLinearMatMul(x{n}, sx, z{n}, w{0}{n}, sw, z{n}, s{0}, z{n})"
    return f"""
  {project.format("q", m="m", n=n)}
  q{n} = com.microsoft.QLinearAdd(qm{n}, sq, z{n}, b{n}, sb, z{n}, sq, z{n})
  {project.format("k", m="", n=n)}
  {project.format("v", m="", n=n)}
  kt{n} = Transpose<perm = [0, 2, 1]>(k{n})
  s{n} = QLinearMatMul(q{n}, sq, z{n}, kt{n}, sk, z{n}, ss, z{n})
  t{n} = com.microsoft.QLinearMul(s{n}, ss, z{n}, one{n}, quarter, z{n}, st, z{n})
  p{n} = com.microsoft.QLinearSoftmax<axis = -1, opset = 13>(t{n}, st, z{n}, sp, low{n})
  o{n} = QLinearMatMul(p{n}, sp, low{n}, v{n}, sv, z{n}, so, z{n})
  y{n} = QLinearMatMul(o{n}, so, z{n}, wo{n}, sw, z{n}, sy, z{n})
"""


def _model() -> onnx.ModelProto:
    inputs = ", ".join(f"{t}[2,{LENGTH},{WIDTH}] x{t[0]}" for t in ("uint8", "int8"))
    outputs = ", ".join(f"{t}[2,{LENGTH},{WIDTH}] y{t[0]}" for t in ("uint8", "int8"))
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
g ({inputs}) => ({outputs}) {{ {_layer("uint8")} {_layer("int8")} }}""")
    rng = np.random.default_rng(0)
    scales = {"sx": 0.031, "sw": 0.0127, "sb": 0.011, "sq": 0.0313, "sk": 0.0297, "sv": 0.0211}
    scales |= {"ss": 0.0419, "quarter": 0.2503, "st": 0.0123, "sp": 1 / 256, "so": 0.0173, "sy": 0.0191}
    arrays = {name: np.asarray(x, np.float32) for name, x in scales.items()}
    for kind, zero, low in ((np.uint8, 127, 0), (np.int8, -1, -128)):
        n, ends = np.dtype(kind).name[0], np.iinfo(kind)
        for name in ("wq", "wk", "wv", "wo", "b"):
            shape = (WIDTH,) if name == "b" else (WIDTH, WIDTH)
            arrays[f"{name}{n}"] = rng.integers(ends.min, ends.max, shape, kind, endpoint=True)
        arrays |= {f"z{n}": np.asarray(zero, kind), f"low{n}": np.asarray(low, kind)}
        arrays[f"one{n}"] = np.asarray(zero + 1, kind)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(x, name) for name, x in arrays.items())
    return model


def test_a_layer_on_bytes(tmp_path: Path) -> None:
    model = _model()
    onnx.save(model, tmp_path / "m.onnx")
    sites = compile_model(tmp_path / "m.onnx", tmp_path / "m.vmfb").sites
    assert [site.fused for site in sites] == [True, True]
    rng = np.random.default_rng(1)
    shape = (2, LENGTH, WIDTH)
    inputs = {"xu": rng.integers(0, 256, shape, np.uint8), "xi": rng.integers(-128, 128, shape, np.int8)}
    results = load_module(tmp_path / "m.vmfb")(*inputs.values())
    for want, have in zip(run(model, inputs, optimise=False), results, strict=True):
        assert len(np.unique(want)) > 20  # few are saturated
        np.testing.assert_array_equal(np.asarray(have).view(want.dtype), want)
