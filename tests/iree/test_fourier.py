"""DFT and STFT, compiled: against numpy in f64, and against onnxruntime where that agrees with ONNX."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import onnx_fa
from onnx_fa.errors import ModelError
from onnx_fa.iree.legalise.rules import legalize
from tests.support.joined_models import join_models
from tests.support.ort_run import run
from tests.support.sampled import sampled

COUNT, FIRST = int(os.environ.get("ONNX_FA_FOURIER", "0")), int(os.environ.get("ONNX_FA_SEED", "0"))
"""0: of 10 one of each kind, and all with `--whole`."""
TYPES: dict[int, Any] = {1: np.float32, 10: np.float16, 11: np.float64}
TOLERANCE = {1: 2e-6, 10: 2e-3, 11: 1e-13}
Drawn = tuple[onnx.ModelProto, np.ndarray]


def model_of(
    op: str, kind: int, dims: list[int | str], given: list[Any], opset: int = 20, **attributes: int
) -> onnx.ModelProto:
    """A node of x and of constants, None for one that is left out."""
    constants = [numpy_helper.from_array(np.asarray(c), f"c{i}") for i, c in enumerate(given) if c is not None]
    names = ["x", *("" if c is None else f"c{i}" for i, c in enumerate(given))]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], op, **attributes)],
        "g",
        [helper.make_tensor_value_info("x", kind, dims)],
        [helper.make_tensor_value_info("y", kind, None)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def draw(rng: np.random.Generator) -> Drawn:
    kind = int(rng.choice([1, 1, 11, 10]))
    if rng.random() < 0.6:
        rank = int(rng.integers(2, 5))
        shape = [*map(int, rng.integers(1, 9, rank - 1)), int(rng.integers(1, 3))]
        axis, inverse, onesided = int(rng.integers(rank - 1)), int(rng.integers(2)), int(rng.integers(2))
        if onesided:
            shape[-1] = 1 + inverse
        length = None if rng.random() < 0.5 else np.int64(rng.integers(1, 10))
        may_be_free = [True] * (rank - 1)
        if inverse and onesided:
            length = np.int64(2 * shape[axis] - 1)
            may_be_free[axis] = False
        given = [length, np.int64(axis - rank if rng.random() < 0.5 else axis)]
        dims = [
            f"d{i}" if f and rng.random() < 0.4 else d for i, (d, f) in enumerate(zip(shape, may_be_free, strict=False))
        ]
        model = model_of("DFT", kind, [*dims, shape[-1]], given, inverse=inverse, onesided=onesided)
    else:
        frame = int(rng.integers(1, 12))
        shape = [int(rng.integers(1, 3)), frame + int(rng.integers(30)), int(rng.integers(1, 3))]
        kind = 1 if kind == 10 else kind  # onnxruntime's STFT has none of f16
        window = rng.random(frame).astype(TYPES[kind]) if rng.random() < 0.6 else None
        length = np.int64(frame) if window is None or rng.random() < 0.5 else None
        attributes = {"onesided": int(rng.integers(2))} if rng.random() < 0.6 else {}
        dims = [f"d{i}" if rng.random() < 0.4 else d for i, d in enumerate(shape[:2])]
        given = [np.int64(rng.integers(1, 7)), window, length]
        model = model_of("STFT", kind, [*dims, shape[-1]], given, **attributes)
    return model, rng.standard_normal(shape).astype(TYPES[kind])


def hold(models: list[Drawn], folder: Path) -> None:
    """Compiles all models as one, and compares with onnxruntime and with ONNX's evaluator in f64."""
    onnx_fa.compile(join_models([m for m, _ in models], own_dims=True), folder / "m.vmfb")
    for (model, x), got in zip(models, onnx_fa.run(folder / "m.vmfb", *(x for _, x in models)), strict=True):
        exact = ReferenceEvaluator(model).run(None, {"x": x.astype(np.float64)})[0]
        theirs = run(model, {"x": x})[0]
        assert got.shape == theirs.shape == exact.shape
        assert got.dtype == x.dtype
        kind = model.graph.input[0].type.tensor_type.elem_type
        size = max(float(np.linalg.norm(exact)), 1e-30)
        what = onnx.printer.to_text(model.graph)
        assert np.linalg.norm(got.astype(np.float64) - exact) <= TOLERANCE[kind] * size, what
        # They mean the same: of 400 numbers in f32 onnxruntime's own are off by 2.3e-5, ours by 2e-7.
        assert np.linalg.norm(theirs.astype(np.float64) - exact) <= max(TOLERANCE[kind], 1e-4) * size, what


def kinds_of(model: onnx.ModelProto) -> set[str]:
    (node,), x = model.graph.node, model.graph.input[0].type.tensor_type
    free = any(d.dim_param for d in x.shape.dim)
    how = (f"{node.op_type} {a.name} {a.i}" for a in node.attribute)
    return {f"type {x.elem_type}", f"{node.op_type} {free}", f"{node.op_type} of {len(node.input)}", *how}


def test_drawn(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    rng = np.random.default_rng(FIRST)
    models = [draw(rng) for _ in range(COUNT or 10)]
    if not COUNT and not pytestconfig.getoption("whole"):
        models = [models[i] for i in sampled([kinds_of(model) for model, _ in models], None)]
    hold(models, tmp_path)


def test_an_audio_front_end(tmp_path: Path) -> None:
    """400 samples by steps of 160, of a sound of any length, as exported log-mel features have them; and DFTs along a free axis."""
    rng = np.random.default_rng(1)
    sound = rng.standard_normal((2, 16000, 1)).astype(np.float32)
    window = np.hanning(400).astype(np.float32)
    tokens = rng.standard_normal((2, 96, 24, 1)).astype(np.float32)
    hold(
        [
            (model_of("STFT", 1, ["b", "samples", 1], [np.int64(160), window, np.int64(400)]), sound),
            (model_of("DFT", 1, ["b", "tokens", 24, 1], [None, np.int64(1)]), tokens),
            (model_of("DFT", 1, [2, 96, 24, 1], [None, np.int64(2)]), tokens),
        ],
        tmp_path,
    )


def test_what_is_refused() -> None:
    for model, reason in [
        (model_of("DFT", 1, [2, 8, 2], [], onesided=1), "one-sided of complex numbers"),
        (model_of("DFT", 1, [2, 8, "c"], []), "real or complex"),
        (model_of("DFT", 1, [2, 8, 2], [np.int64(9)], inverse=1, onesided=1), "read differently"),
        (model_of("DFT", 1, [2, 16384, 1], []), "its matrix is too large"),
        (model_of("STFT", 1, [2, 5, 1], [np.int64(1), None, np.int64(8)]), "a signal of 5 elements with frames of 8"),
        (model_of("STFT", 1, [2, "n", 1], [np.int64(1)]), "frames whose length only a run knows"),
    ]:
        with pytest.raises(ModelError, match=reason):
            legalize(model)
