"""MatMulNBits compiled for a CPU: a kernel that keeps the integers, and onnxruntime's numbers at either accuracy level."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from onnx_fa.iree.compile import import_model
from onnx_fa.iree.compiler import iree_compile
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target
from tests.support.ort_run import run

N, K, BLOCK = 48, 96, 32


def model(rows: int | str, level: int) -> onnx.ModelProto:
    """Two products of the same x, one with zero points and a bias."""
    rng = np.random.default_rng(3)
    arrays = {
        "w1": rng.integers(0, 256, (N, K // BLOCK, BLOCK // 2)).astype(np.uint8),
        "w2": rng.integers(0, 256, (N, K // BLOCK, BLOCK // 2)).astype(np.uint8),
        "s1": rng.standard_normal((N, K // BLOCK)).astype(np.float32),
        "s2": rng.standard_normal(N * (K // BLOCK)).astype(np.float32),
        "z": rng.integers(0, 256, (N, 2)).astype(np.uint8),
        "bias": rng.standard_normal(N).astype(np.float32),
    }
    sizes = {"N": N, "K": K, "bits": 4, "block_size": BLOCK, "accuracy_level": level}
    nodes = [
        h.make_node("MatMulNBits", ["x", "w1", "s1"], ["y1"], "plain", domain="com.microsoft", **sizes),
        h.make_node("MatMulNBits", ["x", "w2", "s2", "z", "", "bias"], ["y2"], "all", domain="com.microsoft", **sizes),
    ]
    values = [h.make_tensor_value_info(n, T.FLOAT, [1, rows, w]) for n, w in (("x", K), ("y1", N), ("y2", N))]
    weights = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    graph = h.make_graph(nodes, "main_graph", values[:1], values[1:], weights)
    imports = [h.make_opsetid("", 17), h.make_opsetid("com.microsoft", 1)]
    return h.make_model(graph, opset_imports=imports, ir_version=9)


@pytest.mark.parametrize(("rows", "level"), [(1, 0), ("n", 4)])
def test_compiled(rows: int | str, level: int, tmp_path: Path) -> None:
    target = parse_target("cpu-host")
    proto = model(rows, level)
    made = import_model(proto, target)
    rounded = level == 4 and target.byte_dots
    assert (f"x{N}x{K}_{BLOCK}_f32_rounded" if rounded else f"x{N}x{K}_{BLOCK}_f32") in made.text
    iree_compile(made.text, tmp_path / "m.vmfb", target, flags=made.flags, timeout_s=120)
    x = np.random.default_rng(4).standard_normal((1, 1 if rows == 1 else 5, K)).astype(np.float32)
    wanted = run(model(rows, level if rounded else 0), {"x": x})
    for got, want in zip(load_module(tmp_path / "m.vmfb")(x), wanted, strict=True):
        assert np.abs(got - want).max() <= 2e-6 * np.abs(want).max()


def test_gpus_have_no_such_kernel() -> None:
    assert "util.call @bits" not in import_model(model(1, 0), "cuda").text
