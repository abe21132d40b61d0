"""QuantizeLinear, DequantizeLinear and Cast of floats of eight bits, compiled, against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

import onnx_fa
from onnx_fa.cli import main
from onnx_fa.ort_session import ort_session

KINDS = {
    "e4m3fn": (T.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
    "e5m2": (T.FLOAT8E5M2, ml_dtypes.float8_e5m2),
    "e4m3fnuz": (T.FLOAT8E4M3FNUZ, ml_dtypes.float8_e4m3fnuz),
    "e5m2fnuz": (T.FLOAT8E5M2FNUZ, ml_dtypes.float8_e5m2fnuz),
}
ALL = pytest.mark.parametrize("name", KINDS)
BOTH = pytest.mark.parametrize("name", ["e4m3fn", "e5m2"])
Array = np.ndarray[Any, np.dtype[Any]]


def every_f16() -> Array:
    """All numbers of f16, those of f32 beside them, and some beyond."""
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    with np.errstate(invalid="ignore"):
        beside = [np.nextafter(x, np.float32(end)) for end in (-np.inf, np.inf)]
    return np.concatenate([x, *beside, np.float32([1e5, -1e5, 3e38, -3e38, 7e4, -7e4, 1e-30, 0])]).reshape(-1, 8)


def model(
    nodes: list[onnx.NodeProto], tensors: dict[str, Array], shape: list[Any], kind: int = T.FLOAT
) -> onnx.ModelProto:
    x, y = (h.make_tensor_value_info(n, kind, shape if n == "x" else None) for n in "xy")
    constants = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = h.make_graph(nodes, "main_graph", [x], [y], constants)
    return onnx.shape_inference.infer_shapes(h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10))


def both(made: onnx.ModelProto, x: Array, folder: Path) -> tuple[Array, Array]:
    """What onnxruntime and the compiled model give."""
    (want,) = ort_session(made, threads=1, optimise=False).run(None, {"x": x})
    onnx_fa.compile(made, folder / "m.vmfb")
    (have,) = onnx_fa.run(folder / "m.vmfb", x)
    assert want.dtype == have.dtype
    return want, have


def rounding(name: str, scale: Array, kind: int, **attrs: int) -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    """x by way of eight bits, with a scale."""
    nodes = [
        h.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **attrs),
        h.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **{k: v for k, v in attrs.items() if k != "saturate"}),
    ]
    return nodes, {"s": scale.astype(h.tensor_dtype_to_np_dtype(kind)), "z": np.zeros(scale.shape, KINDS[name][1])}


@ALL
def test_every_number_is_rounded(name: str, tmp_path: Path) -> None:
    casts = [h.make_node("Cast", ["x"], ["q"], to=KINDS[name][0]), h.make_node("Cast", ["q"], ["y"], to=T.FLOAT)]
    want, have = both(model(casts, {}, ["n", 8]), every_f16(), tmp_path)
    np.testing.assert_array_equal(have, want)


@BOTH
@pytest.mark.parametrize(("kind", "channels"), [(T.FLOAT, True), (T.FLOAT16, False), (T.FLOAT16, True)])
def test_scales(name: str, kind: int, channels: bool, tmp_path: Path) -> None:
    scale = np.geomspace(1e-3, 2, 6) if channels else np.array(0.37)
    x = np.random.default_rng(0).standard_normal((40, 6)).astype(h.tensor_dtype_to_np_dtype(kind)) * 100
    x[0, :3] = np.nan, np.inf, -np.inf
    made = model(*rounding(name, scale, kind, axis=1), ["n", 6], kind)
    want, have = both(made, x, tmp_path)
    np.testing.assert_array_equal(have, want)
    assert not np.isnan(want[1:]).any()


@BOTH
def test_beyond_the_largest_without_saturation(name: str, tmp_path: Path) -> None:
    x = np.float32([[1e6, -1e6, np.inf, -np.inf, np.nan, 3]])
    want, have = both(model(*rounding(name, np.array(1.0), T.FLOAT, saturate=0), [1, 6]), x, tmp_path)
    assert not np.isfinite(want[0, :5]).any()
    np.testing.assert_array_equal(have, want)


@BOTH
@pytest.mark.parametrize("parameters", ["embed", "archive"])
def test_weights(name: str, parameters: str, tmp_path: Path) -> None:
    """Weights as such files have them: stored in eight bits, a scale for each column; rounded activations."""
    rng = np.random.default_rng(1)
    nodes, tensors = rounding(name, np.array(0.01), T.FLOAT)
    nodes[1].output[0] = "d"
    nodes += [
        h.make_node("DequantizeLinear", ["w", "c"], ["v"], axis=1),
        h.make_node("MatMul", ["d", "v"], ["y"]),
    ]
    tensors |= {"w": rng.standard_normal((64, 48)).astype(KINDS[name][1]), "c": rng.random(48).astype(np.float32)}
    path, made = tmp_path / "m.onnx", str(tmp_path / "m.vmfb")
    onnx.save(model(nodes, tensors, ["n", 64]), path)
    assert main(["compile", str(path), "-o", made, "--target", "cpu-host", "--parameters", parameters]) == 0
    x = rng.standard_normal((5, 64)).astype(np.float32)
    (have,) = onnx_fa.run(made, x)
    (want,) = ort_session(onnx.load(path), threads=1, optimise=False).run(None, {"x": x})
    np.testing.assert_allclose(have, want, rtol=1e-5, atol=1e-6)
