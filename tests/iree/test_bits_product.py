"""MatMulNBits compiled for a CPU: a kernel that keeps the integers, and onnxruntime's numbers at either accuracy level."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

from onnx_fa.iree.compile import compile_model, import_model
from onnx_fa.iree.compiler import iree_compile
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target
from tests.support.joined_models import join_models
from tests.support.ort_run import run
from tests.support.triton_sources import triton_sources

N, K, BLOCK = 48, 96, 32


def model(
    lead: Sequence[int | str], level: int, dtype: int = T.FLOAT, width: int = K, said: int | str = 0
) -> onnx.ModelProto:
    """Two products of the same x (.., width), whose graph says `said` of that, one with zero points and a bias."""
    rng = np.random.default_rng(3)
    as_type = np.float32 if dtype == T.FLOAT else np.float16
    arrays = {
        "w1": rng.integers(0, 256, (N, K // BLOCK, BLOCK // 2)).astype(np.uint8),
        "w2": rng.integers(0, 256, (N, K // BLOCK, BLOCK // 2)).astype(np.uint8),
        "s1": rng.standard_normal((N, K // BLOCK)).astype(as_type),
        "s2": rng.standard_normal(N * (K // BLOCK)).astype(as_type),
        "z": rng.integers(0, 256, (N, 2)).astype(np.uint8),
        "bias": rng.standard_normal(N).astype(as_type),
    }
    sizes = {"N": N, "K": width, "bits": 4, "block_size": BLOCK, "accuracy_level": level}
    nodes = [
        h.make_node("MatMulNBits", ["x", "w1", "s1"], ["y1"], "plain", domain="com.microsoft", **sizes),
        h.make_node("MatMulNBits", ["x", "w2", "s2", "z", "", "bias"], ["y2"], "all", domain="com.microsoft", **sizes),
    ]
    values = [h.make_tensor_value_info(n, dtype, [*lead, w]) for n, w in (("x", said or width), ("y1", N), ("y2", N))]
    weights = [numpy_helper.from_array(a, n) for n, a in arrays.items()]
    graph = h.make_graph(nodes, "main_graph", values[:1], values[1:], weights)
    imports = [h.make_opsetid("", 17), h.make_opsetid("com.microsoft", 1)]
    return h.make_model(graph, opset_imports=imports, ir_version=9)


COMPILED: tuple[tuple[tuple[int | str, ...], tuple[int, ...], int, int, int], ...] = (
    ((1, 1), (1, 1), 0, T.FLOAT, K),
    ((1, "n"), (1, 5), 4, T.FLOAT, K),
    (("batch", "n"), (2, 3), 4, T.FLOAT, K),
    (("batch", 2, "n"), (2, 2, 3), 0, T.FLOAT, K - 7),
    (("batch", "n"), (0, 3), 0, T.FLOAT, K),
    ((1, "n"), (1, 5), 0, T.FLOAT16, K),
)
"""(leading dims, and those of a run, accuracy level, element type, width): whatever dims are free, in f16, and where the last block
is not whole."""


def test_compiled(tmp_path: Path) -> None:
    """All in one module."""
    target = parse_target("cpu-host")
    models, inputs, wanted = [], [], list[tuple[np.ndarray, float]]()
    for lead, shape, level, dtype, width in COMPILED:
        models.append(model(lead, level, dtype, width))
        rounded = level == 4 and target.multiplies_bytes
        scales = "f32" if dtype == T.FLOAT else "f16"
        text = import_model(models[-1], target).text
        assert (f"x{N}x{K}_{BLOCK}_{scales}_rounded" if rounded else f"x{N}x{K}_{BLOCK}_{scales}") in text
        as_type = np.float32 if dtype == T.FLOAT else np.float16
        inputs.append(np.random.default_rng(4).standard_normal((*shape, width)).astype(as_type))
        bound = 2e-6 if dtype == T.FLOAT else 2e-3
        results = run(model(lead, level if rounded else 0, dtype, width), {"x": inputs[-1]})
        wanted += [(want, bound) for want in results]
    made = import_model(join_models(models, own_dims=True), target)
    iree_compile(made.text, tmp_path / "m.vmfb", target, flags=made.flags, timeout_s=120)
    for got, (want, bound) in zip(load_module(tmp_path / "m.vmfb")(*inputs), wanted, strict=True):
        assert got.shape == want.shape
        assert np.abs(got - want).max(initial=0) <= bound * np.abs(want).max(initial=0)


def test_an_unknown_width(tmp_path: Path) -> None:
    """Where the graph does not say how long rows are, torch-mlir would take other dims for that."""
    target, proto = parse_target("cpu-host"), model(("batch", 37), 0, said="k")
    compile_model(proto, tmp_path / "m.vmfb", target, parameters="embed")
    x = np.random.default_rng(4).standard_normal((2, 37, K)).astype(np.float32)
    for got, want in zip(load_module(tmp_path / "m.vmfb")(x), run(proto, {"x": x}), strict=True):
        assert np.abs(got - want).max() <= 2e-6 * np.abs(want).max()


def test_gpus_have_no_such_kernel() -> None:
    with triton_sources():
        assert "util.call @bits" not in import_model(model((1, 1), 0), "cuda").text
