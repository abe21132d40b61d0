"""Norms, products and attentions of constants alone, as of the queries that a detector has learned: the compiler computes what is
constant itself, on the machine that compiles, where a GPU's kernels do not run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnx_fa
from onnx_fa.iree.compile import import_model
from onnx_fa.iree.legalise.writer import values_of_constants
from tests.support.text_graphs import TextGraph
from tests.support.triton_sources import triton_sources

BARRIER = "util.optimization_barrier"
BODY = """n = LayerNormalization (q, ones, few)
    a = MatMul (n, w)
    b = Add (a, few)
    split = Reshape (b, heads)
    t = Transpose <perm = [0, 2, 1, 3]> (split)
    k = Transpose <perm = [0, 2, 3, 1]> (split)
    s = MatMul (t, k)
    p = Softmax (s)
    o = MatMul (p, t)
    back = Transpose <perm = [0, 2, 1, 3]> (o)
    flat = Reshape (back, rows)
    y = Add (flat, x)"""


def learned(rows: int = 300) -> onnx.ModelProto:
    """A first layer over queries that are weights."""
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    weights = {"q": draw(1, rows, 64), "ones": np.ones(64, np.float32), "few": draw(64), "w": draw(64, 64)}
    shapes = {"heads": np.array([1, rows, 4, 16]), "rows": np.array([1, rows, 64])}
    return TextGraph(f"float[1, {rows}, 64] x", BODY, **weights, **shapes).proto


@pytest.mark.parametrize("target", ["cuda", "vulkan", "rocm-gfx942"])
def test_they_compile_for_gpus(target: str, tmp_path: Path) -> None:
    with triton_sources():
        report = onnx_fa.compile(learned(), tmp_path / "m.vmfb", target)
    assert len(report.sites) == 1 and (tmp_path / "m.vmfb").is_file()


def test_only_what_is_constant_is_hidden() -> None:
    assert BARRIER in import_model(learned(), "vulkan").text
    model = learned()
    model.graph.input[0].name = "q"
    model.graph.node[-1].input[1] = "q"
    del model.graph.initializer[next(i for i, t in enumerate(model.graph.initializer) if t.name == "q")]
    assert BARRIER not in import_model(model, "vulkan").text
    assert BARRIER not in import_model(learned(), "cpu-host").text


def test_values_of_constants() -> None:
    found = values_of_constants(learned().graph)
    assert {"q", "w", "n", "p", "flat"} <= found and not {"x", "y"} & found
