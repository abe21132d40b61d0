"""RotaryEmbedding, onnx's and onnxruntime's, compiled for this machine and compared with onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper as h

from onnx_fa.errors import ModelError
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.run import load_module
from tests.support import spellings_ops as so
from tests.support.ort_run import run

HEADS, LENGTH, WIDTH, ROWS = 3, 5, 16, 32
Feeds = dict[str, np.ndarray]


def build(domain: str, *, flat: bool, half: int = WIDTH // 2, offset: bool = False, **attrs: Any) -> tuple[Any, Feeds]:
    rng = np.random.default_rng(0)
    shape: so.Dims = [2, LENGTH, HEADS * WIDTH] if flat else [2, HEADS, LENGTH, WIDTH]
    ids = np.asarray([3]) if offset else np.asarray([[0, 1, 2, 3, 4], [3, 4, 9, 6, 7]])
    inputs: Feeds = {
        "x": rng.standard_normal([int(d) for d in shape]).astype(np.float32),
        "ids": ids.astype(np.int64),
        "cos": rng.standard_normal((ROWS, half)).astype(np.float32),
        "sin": rng.standard_normal((ROWS, half)).astype(np.float32),
    }
    order = ["x", "ids", "cos", "sin"] if domain else ["x", "cos", "sin", "ids"]
    node = h.make_node("RotaryEmbedding", order, ["o"], name="rotary", domain=domain, **attrs)
    given: list[so.Input] = [(n, list(a.shape), T.INT64 if n == "ids" else T.FLOAT) for n, a in inputs.items()]
    return so.model([node], given, [("o", shape, T.FLOAT)]), inputs


MS = "com.microsoft"
CASES: dict[str, dict[str, Any]] = {
    "onnx-4d": {"domain": "", "flat": False},
    "onnx-4d-interleaved": {"domain": "", "flat": False, "interleaved": 1},
    "onnx-3d": {"domain": "", "flat": True, "num_heads": HEADS},
    "onnxruntime-4d": {"domain": MS, "flat": False},
    "onnxruntime-4d-interleaved": {"domain": MS, "flat": False, "interleaved": 1},
    "onnxruntime-3d": {"domain": MS, "flat": True},
    "onnxruntime-3d-part": {"domain": MS, "flat": True, "half": 4, "num_heads": HEADS, "rotary_embedding_dim": 8},
    "onnxruntime-offset": {"domain": MS, "flat": False, "offset": True},
    "onnxruntime-offset-3d": {"domain": MS, "flat": True, "offset": True},
}


@pytest.mark.parametrize("name", CASES)
def test_compiles_to_the_same(name: str, tmp_path: Path) -> None:
    model, inputs = build(**CASES[name])
    (want,) = run(model, inputs)
    compile_model(model, tmp_path / "m.vmfb", timeout_s=120, memory_bytes=4 << 30)
    (have,) = load_module(tmp_path / "m.vmfb")(*inputs.values())
    np.testing.assert_allclose(have, want, rtol=1e-6, atol=1e-6)


def test_what_cannot_be_written_otherwise_is_not_compiled(tmp_path: Path) -> None:
    model, _ = build(MS, flat=False, scale=0.5)
    with pytest.raises(ModelError, match="with unknown shapes or a scale"):
        compile_model(model, tmp_path / "m.vmfb")
    with pytest.raises(ModelError, match="could not be written in standard operators"):
        compile_model(so.NOT_CONTRIB["gqa-window-cache"](), tmp_path / "m.vmfb")
