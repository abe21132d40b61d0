"""Products of u8 by i8 that onnxruntime cannot cut off, whatever the processor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from onnx_fa import machine as machines
from onnx_fa.machine import saturates_bytes
from onnx_fa.ort_session import ort_session
from onnx_fa.verifier.unsigned_weights import has_products_of_bytes, with_unsigned_weights
from tests.support import spellings_ops as ops
from tests.support.ort_run import run

RNG = np.random.default_rng(3)
X, W = RNG.integers(128, 256, (5, 64)).astype(np.uint8), RNG.integers(64, 128, (64, 6)).astype(np.int8)
"""So large that two products pass 16 bits."""
F = np.float32
SCALES = {"xs": F(0.1), "ws": F(0.2), "ys": F(50), "yz": np.uint8(9)}
MICROSOFT = "com.microsoft"


def _sums(x_zero: int, w_zero: int) -> np.ndarray[Any, Any]:
    return (X.astype(np.int64) - x_zero) @ (W.astype(np.int64) - w_zero)


def _bytes(sums: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.clip(np.rint(sums * 0.02 / 50) + 9, 0, 255)


CASES = {  # the node, its domain, constants beside SCALES, what it gives
    "MatMulInteger": ("MatMulInteger x w", "", {}, _sums(0, 0)),
    "MatMulInteger, zero points": ("MatMulInteger x w xz wz", "", {"xz": np.uint8(7), "wz": np.int8(-5)}, _sums(7, -5)),
    "QLinearMatMul": (
        "QLinearMatMul x xs xz w ws wz ys yz", "", {"xz": np.uint8(7), "wz": np.int8(3)}, _bytes(_sums(7, 3))
    ),
    "MatMulIntegerToFloat": (
        "MatMulIntegerToFloat x w xs ws xz", MICROSOFT, {"xz": np.uint8(7)}, _sums(7, 0) * 0.02
    ),
    "QGemm": (
        "QGemm x xs xz w ws wz  ys yz", MICROSOFT, {"xz": np.uint8(7), "wz": np.int8(3)}, _bytes(_sums(7, 3))
    ),
}  # fmt: skip


def _model(name: str, *, weight: str) -> Any:
    said, domain, constants, want = CASES[name]
    op, *inputs = said.split(" ")
    kind = {"MatMulInteger": T.INT32, "MatMulIntegerToFloat": T.FLOAT}.get(op, T.UINT8)
    info = [h.make_tensor_value_info("x", T.UINT8, X.shape)]
    given: dict[str, Any] = SCALES | constants
    if weight == "of the run":
        info.append(h.make_tensor_value_info("w", T.INT8, W.shape))
    else:
        given |= {"w": W}
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in given.items() if n in inputs]
    result = h.make_tensor_value_info("y", kind, want.shape)
    graph = h.make_graph([h.make_node(op, inputs, ["y"], "node", domain=domain)], "g", info, [result], tensors)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17), h.make_opsetid(MICROSOFT, 1)], ir_version=9)


@pytest.mark.parametrize("weight", ["of the model", "of the run"])
@pytest.mark.parametrize("name", CASES)
def test_exact(name: str, weight: str) -> None:
    model = ir.from_proto(_model(name, weight=weight))
    assert has_products_of_bytes(model)
    new = ir.to_proto(with_unsigned_weights(model))
    feeds = {"x": X} | ({"w": W} if weight == "of the run" else {})
    for optimise in (False, True):
        (got,) = ort_session(new, threads=1, optimise=optimise).run(None, feeds)
        np.testing.assert_allclose(got, CASES[name][3], rtol=1e-6)


@pytest.mark.parametrize("zeros", ["xw", "x", ""])
def test_attention_of_bytes(zeros: str) -> None:
    """QAttention's own product, against onnxruntime's op on the same numbers as floats."""
    model = ops.projected_integers(zeros=zeros)
    feeds = ops.feeds(model)
    feeds["q"] = RNG.integers(128, 256, feeds["q"].shape).astype(np.uint8)
    feeds["weights"] = RNG.integers(64, 128, feeds["weights"].shape).astype(np.int8)
    x = (feeds["q"] - F(feeds.get("x_zero", 0))) * feeds["x_scale"]
    weights = (feeds["weights"] - F(feeds.get("zero", 0))) * feeds["scale"]
    (want,) = run(ops.projected(), {"q": x, "weights": weights, "bias": feeds["bias"]})
    copy = with_unsigned_weights(ir.from_proto(model))
    (got,) = ort_session(ir.to_proto(copy), threads=1).run(None, feeds)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_windows() -> None:
    x, w = RNG.integers(128, 256, (1, 4, 6, 6)).astype(np.uint8), RNG.integers(64, 128, (3, 4, 3, 3)).astype(np.int8)
    info = [h.make_tensor_value_info("x", T.UINT8, x.shape)]
    result = h.make_tensor_value_info("y", T.INT32, [1, 3, 4, 4])
    graph = h.make_graph(
        [h.make_node("ConvInteger", ["x", "w"], ["y"])], "g", info, [result], [numpy_helper.from_array(w, "w")]
    )
    model = ir.from_proto(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9))
    (got,) = ort_session(ir.to_proto(with_unsigned_weights(model)), threads=1, optimise=False).run(None, {"x": x})
    seen = np.lib.stride_tricks.sliding_window_view(x[0].astype(np.int64), (3, 3), axis=(1, 2))
    np.testing.assert_array_equal(got[0], np.einsum("cyxij,ncij->nyx", seen, w.astype(np.int64)))


@pytest.mark.parametrize(("x", "w"), [(np.int8, np.int8), (np.uint8, np.uint8)])
def test_others_stay(x: Any, w: Any) -> None:
    """What onnxruntime multiplies exactly, or not at all with a u8 weight."""
    kinds = [h.np_dtype_to_tensor_dtype(np.dtype(t)) for t in (x, w)]
    info = [h.make_tensor_value_info(n, k, s) for n, k, s in zip("xw", kinds, ([5, 64], [64, 6]), strict=True)]
    result = h.make_tensor_value_info("y", T.INT32, [5, 6])
    graph = h.make_graph([h.make_node("MatMulInteger", ["x", "w"], ["y"])], "g", info, [result])
    model = ir.from_proto(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9))
    assert [n.op_type for n in with_unsigned_weights(model).graph] == ["MatMulInteger"]


def test_a_node_without_a_weight_stays() -> None:
    """onnxruntime says what is wrong with it."""
    info, result = h.make_tensor_value_info("x", T.UINT8, [5, 64]), h.make_tensor_value_info("y", T.INT32, None)
    graph = h.make_graph([h.make_node("MatMulInteger", ["x"], ["y"])], "g", [info], [result])
    model = ir.from_proto(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=9))
    assert [n.op_type for n in with_unsigned_weights(model).graph] == ["MatMulInteger"]


@pytest.mark.parametrize(
    ("flags", "machine", "cuts"),
    [
        ("fma avx2", "x86_64", True),
        ("avx2 avx512f avx512bw", "x86_64", True),
        ("avx2 avx_vnni", "x86_64", False),
        ("avx512f avx512_vnni", "x86_64", False),
        ("asimd", "aarch64", False),
    ],
)
def test_which_processors(monkeypatch: pytest.MonkeyPatch, flags: str, machine: str, cuts: bool) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(machines, "_cpu_facts", machines._cpu_facts.__wrapped__)
    monkeypatch.setattr(Path, "read_text", lambda self: f"flags : {flags}")
    assert saturates_bytes() is cuts
