"""Models of f16, and those that store weights in f16 or bf16 and compute in f32, on CPUs: sites with onnxruntime's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper

from onnx_fa.iree.compile import compile_model, import_model
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target
from tests.iree.test_linear_sites import graph_of, sites_of
from tests.support.joined_models import join_models
from tests.support.kernel_harness import asked_for

HOST, AVX512, AVX2, NEON = (parse_target(name) for name in ("cpu-host", "cpu-avx512", "cpu-avx2", "cpu-neon"))
STORED = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def stored_graph(body: str, kind: str, **options: Any) -> onnx.ModelProto:
    """A graph in f32 with constants `v` (64, 48) and `vt` of a shorter type."""
    model = graph_of(body, opset=20, **options)
    rng = np.random.default_rng(5)
    for name, shape in (("v", (64, 48)), ("vt", (48, 64))):
        array = rng.standard_normal(shape).astype(STORED[kind])
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def outputs_of(
    models: Mapping[str, onnx.ModelProto], folder: Path, xs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What the models give in IREE, compiled as one."""
    compile_model(join_models(list(models.values())), folder / "m.vmfb", HOST, parameters="embed")
    results = load_module(folder / "m.vmfb")(*(xs[name] for name in models))
    return dict(zip(models, results, strict=True))


def reference(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    found: list[np.ndarray] = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})
    return found


CASTS = (
    "c = Cast <to = 1> (v) a = MatMul(x, c) y = Add(a, b)",
    "c = Cast <to = 1> (vt) t = Transpose <perm = [1, 0]> (c) a = MatMul(x, t) y = Gelu(a)",
    "t = Transpose <perm = [1, 0]> (vt) c = Cast <to = 1> (t) y = MatMul(x, c)",
)


@dataclass(frozen=True)
class Stored:
    body: str
    kind: str
    rows: int | str

    def model(self) -> onnx.ModelProto:
        return stored_graph(self.body, self.kind, x=f"float[2,{self.rows},64] x", outputs=f"float[2,{self.rows},48] y")

    def draw(self) -> np.ndarray:
        rows = 7 if isinstance(self.rows, str) else self.rows
        return np.random.default_rng(1).standard_normal((2, rows, 64)).astype(np.float32)


CASES = {
    f"{rows}-{CASTS.index(body)}-{kind}": Stored(body, kind, rows)
    for rows in (1, 5, "n")
    for body in CASTS
    for kind in STORED
}


@pytest.fixture(scope="module")
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    names = asked_for(request, "name") or CASES
    models, xs = {name: CASES[name].model() for name in names}, {name: CASES[name].draw() for name in names}
    return outputs_of(models, tmp_path_factory.mktemp("stored"), xs)


@pytest.mark.parametrize("name", CASES)
def test_stored_weights(name: str, stored: dict[str, np.ndarray]) -> None:
    """The weight stays in its type until a kernel reads it, whose numbers are those of f32."""
    case = CASES[name]
    text, short = import_model(case.model(), AVX512).text, {"float16": "f16", "bfloat16": "bf16"}[case.kind]
    assert text.count("util.call @linear_") == 1 and f"tensor<2x64x32x{short}>" in text
    (want,) = reference(case.model(), case.draw())
    np.testing.assert_allclose(stored[name], want, rtol=1e-5, atol=2e-5 * np.abs(want).max())


def test_a_gemm_of_a_stored_weight() -> None:
    """Turned by the Cast's reader, and by the op itself."""
    rows = {"x": "float[n,64] x", "outputs": "float[n,48] y"}
    for body in ("c = Cast <to = 1> (vt) y = Gemm <transB = 1> (x, c, b)", "c = Cast <to = 1> (v) y = Gemm (x, c, b)"):
        assert "tensor<2x64x32xf16>" in import_model(stored_graph(body, "float16", **rows), AVX512).text


@pytest.mark.parametrize(
    ("body", "x"),
    [
        ("y = MatMul(x, w)", "float[2,n,64] x"),
        ("h = Cast <to = 10> (x) i = Cast <to = 1> (h) y = MatMul(i, w)", "float[2,n,64] x"),
        ("c = Cast <to = 1> (r) y = MatMul(x, c)", "float[2,n,64] x, float16[64,48] r"),
    ],
)
def test_what_is_stored_as_f32(body: str, x: str) -> None:
    """Casts of x, and of what the run brings, are none of a weight."""
    model = stored_graph(body, "float16", x=x)
    text = import_model(model, AVX512).text
    assert "x32xf16>" not in text and text.count("util.call @linear_") == body.count("w)")


def test_other_processors() -> None:
    """Without a kernel the Cast stays in front of the product."""
    model = stored_graph(CASTS[0], "float16")
    assert sites_of(model, NEON) == [] and len(sites_of(model, AVX2)) == len(sites_of(model, AVX512)) == 1


BODIES = (
    "a = MatMul(x, w) y = Add(a, b)",
    "a = MatMul(x, w) c = Add(a, b) y = Tanh(c)",
    "a = MatMul(x, w) c = Add(a, b) s = Sigmoid(c) g = Mul(c, s) u = MatMul(x, w) y = Mul(u, g)",
)


@dataclass(frozen=True)
class Half:
    body: str
    rows: int | str

    def model(self) -> onnx.ModelProto:
        x, y = f"float16[2,{self.rows},64] x", f"float16[2,{self.rows},48] y"
        return graph_of(self.body, x=x, outputs=y, opset=20)

    def draw(self) -> np.ndarray:
        rows = 11 if isinstance(self.rows, str) else self.rows
        return np.random.default_rng(2).standard_normal((2, rows, 64)).astype(np.float16)


HALVES = {f"{rows}-{BODIES.index(body)}": Half(body, rows) for rows in (1, 9, "n") for body in BODIES}


@pytest.fixture(scope="module")
def halves(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    names = asked_for(request, "name") or HALVES
    models, xs = {name: HALVES[name].model() for name in names}, {name: HALVES[name].draw() for name in names}
    return outputs_of(models, tmp_path_factory.mktemp("halves"), xs)


@pytest.mark.parametrize("name", HALVES)
def test_models_of_f16(name: str, halves: dict[str, np.ndarray]) -> None:
    """What follows a product is computed in f32, so that the numbers are those of the same model in f32, rounded once."""
    model, x, got = HALVES[name].model(), HALVES[name].draw(), halves[name]
    assert import_model(model, AVX512).text.count("util.call @linear_") == HALVES[name].body.count("MatMul")
    single = onnx.ModelProto.FromString(model.SerializeToString())
    for value in (*single.graph.input, *single.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    for tensor in single.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    (want,) = reference(single, x.astype(np.float32))
    assert got.dtype == np.float16
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=2**-10, atol=2**-10 * np.abs(want).max())
    (rounded,) = reference(model, x)
    np.testing.assert_allclose(
        got.astype(np.float32), rounded.astype(np.float32), rtol=2**-8, atol=2**-8 * np.abs(want).max()
    )
