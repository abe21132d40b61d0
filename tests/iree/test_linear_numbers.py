"""Models whose products with weights are sites give onnxruntime's numbers, whatever stands around the products."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from onnx_fa.iree.compile import compile_model, import_model
from onnx_fa.iree.run import function_of, load_module
from onnx_fa.spec.target import foreign_cpu, parse_target
from tests.iree.test_linear_sites import graph_of
from tests.support.joined_models import join_models
from tests.support.kernel_harness import asked_for

HOST, AMX = parse_target("cpu-host"), parse_target("cpu-amx")
ROOM = "i = Constant <value = int64[2] {-1, 64}> () o = Constant <value = int64[3] {2, 5, 48}> () "
BODIES = (
    "a = MatMul(x, w) c = Add(a, b) y = Gelu(c)",
    "a = MatMul(x, w) c = Add(a, b) s = Sigmoid(c) g = Mul(c, s) u = MatMul(x, w) y = Mul(u, g)",
    "a = MatMul(x, w) c = Add(a, b) s = Softmax(c) y = Add(c, s)",
    "a = MatMul(x, w) t = Tanh(a) d = MatMul(x, w) e = Add(t, d) y = Sub(e, a)",
    "a = MatMul(x, w) c = Mul(a, row) d = Add(b, c) y = Sub(row, d)",
    ROOM + "f = Reshape(x, i) a = Gemm (f, w, row) r = Relu(a) y = Reshape(r, o)",
    ROOM + "f = Reshape(x, i) a = Gemm <transB = 1> (f, wt, b) q = Reshape(a, o) y = Relu(q)",
    ROOM + "f = Reshape(x, i) a = Gemm (f, w, b) r = Abs(a) y = Reshape(r, o)",
)
_UNARY = ("Tanh", "Sigmoid", "Relu", "Neg", "Abs", "Erf", "Softmax", "Identity", "Softplus")


def compare(model: onnx.ModelProto, x: np.ndarray, got: Sequence[np.ndarray]) -> None:
    """The model's results with onnxruntime's."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    want = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5 * max(1.0, float(np.abs(b).max())))


MODELS = {body: graph_of(body, x="float[2,5,64] x", outputs="float[2,5,48] y", opset=20) for body in BODIES}
X = np.random.default_rng(1).standard_normal((2, 5, 64)).astype(np.float32)


@pytest.fixture(scope="module")
def numbers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Of all models that are tried, compiled as one."""
    path, bodies = tmp_path_factory.mktemp("numbers") / "m.vmfb", asked_for(request, "body") or list(MODELS)
    compile_model(join_models([MODELS[body] for body in bodies]), path, HOST, parameters="embed")
    return dict(zip(bodies, load_module(path)(*[X] * len(bodies)), strict=True))


@pytest.mark.parametrize("body", BODIES)
def test_numbers(body: str, numbers: dict[str, np.ndarray]) -> None:
    compare(MODELS[body], X, [numbers[body]])
    assert HOST.lanes < 16 or "linear_" in import_model(MODELS[body], HOST).text


@pytest.mark.skipif(bool(foreign_cpu(AMX)), reason=foreign_cpu(AMX))
@pytest.mark.parametrize("body", [BODIES[0], BODIES[1], BODIES[5], BODIES[6], "a = MatMul(x, w) y = Add(a, b)"])
def test_bf16(body: str, tmp_path: Path) -> None:
    """Weights become pairs on their way into a module. What follows a product is computed in f32, so that the numbers are those of
    the same model in f32, rounded once for each site or operation."""
    shapes = {"x": "bfloat16[2,5,64] x", "outputs": "bfloat16[2,5,48] y", "opset": 20}
    model = graph_of(body, **shapes)
    single = onnx.ModelProto.FromString(model.SerializeToString())
    for value in (*single.graph.input, *single.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    for tensor in single.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    x = np.random.default_rng(2).standard_normal((2, 5, 64)).astype(ml_dtypes.bfloat16)
    (want,) = onnxruntime.InferenceSession(single.SerializeToString()).run(None, {"x": x.astype(np.float32)})
    compile_model(model, tmp_path / "m.vmfb", AMX, parameters="embed")
    import iree.runtime as rt

    got = rt.load_vm_flatbuffer_file(str(tmp_path / "m.vmfb"), driver="local-task")[function_of(tmp_path / "m.vmfb")](x)
    np.testing.assert_allclose(got.to_host().astype(np.float32), want, rtol=2**-7, atol=2**-7 * np.abs(want).max())
    assert import_model(model, AMX).text.count("util.call @linear_") == body.count("MatMul") + body.count("Gemm")


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """Two products and ops of their numbers, which read each other, outputs in between."""
    lines, values = ["v0 = MatMul(x, w)", "v1 = MatMul(x, w)"], ["v0", "v1"]
    for n in range(draw(st.integers(1, 7))):
        name, recent = f"v{n + 2}", st.sampled_from(values[-4:])
        if draw(st.booleans()):
            lines.append(f"{name} = {draw(st.sampled_from(_UNARY))}({draw(recent)})")
        else:
            other = draw(st.one_of(recent, st.sampled_from(("b", "row", "each"))))
            lines.append(f"{name} = {draw(st.sampled_from(('Add', 'Sub', 'Mul', 'Max')))}({draw(recent)}, {other})")
        values.append(name)
    given_out = sorted({values[-1], *draw(st.lists(st.sampled_from(values), max_size=2))})
    outputs = ", ".join(f"float[2,n,48] {v}" for v in given_out)
    return graph_of(" ".join(lines), outputs=outputs)


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graphs(), st.integers(1, 9))
def test_random_graphs(tmp_path: Path, model: onnx.ModelProto, n: int) -> None:
    x = np.random.default_rng(n).standard_normal((2, n, 64)).astype(np.float32)
    compile_model(model, tmp_path / "m.vmfb", HOST, parameters="embed")
    compare(model, x, load_module(tmp_path / "m.vmfb")(x))
