"""Products with weights of a network that become linear sites on CUDA, and those that do not."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from onnx_fa.iree.compile import import_model
from onnx_fa.iree.importer import infer_types
from onnx_fa.iree.legalise.linear_sites import LINEAR_SITE
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.kernels import triton
from onnx_fa.kernels.triton import ptx
from onnx_fa.spec.target import parse_target
from tests.iree.test_bits_product import model as bits_model

CUDA = parse_target("cuda")
WEIGHTS = {"w": (64, 48), "wt": (48, 64), "b": (48,), "row": (1, 48), "small": (64, 8), "three": (2, 64, 48)}


def graph_of(
    body: str, *, x: str = "float[2,n,64] x", outputs: str = "float[2,n,48] y", opset: int = 17
) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : {opset}]> g ({x}) => ({outputs}) {{ {body} }}'
    )
    rng = np.random.default_rng(0)
    kind = np.float16 if x.startswith("float16") else np.float32
    for name, shape in WEIGHTS.items():
        if f"{name}" in body.replace("=", " ").replace("(", " ").replace(",", " ").replace(")", " ").split():
            model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(kind), name))
    return model


def sites_of(model: onnx.ModelProto, target: object = CUDA) -> list[tuple[int, dict[str, int]]]:
    """The number of inputs and the attributes of every linear site."""
    infer_types(model, {})
    made = legalize(model, target=target)  # type: ignore[arg-type]
    nodes = [n for n in made.graph.node if f"{n.domain}.{n.op_type}" == LINEAR_SITE]
    return [(len(n.input), {a.name: a.i for a in n.attribute if a.i}) for n in nodes]


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("y = MatMul(x, w)", [(2, {})]),
        ("a = MatMul(x, w) y = Add(a, b)", [(3, {"bias": 1})]),
        ("a = MatMul(x, w) y = Add(b, a)", [(3, {"bias": 1})]),
        ("a = MatMul(x, w) c = Add(a, b) y = Relu(c)", [(3, {"bias": 1})]),
        ("a = MatMul(x, w) c = Add(a, b) y = Mul(a, c)", [(2, {})]),  # the product is read twice
        ("a = MatMul(x, w) y = Add(a, a)", [(2, {})]),
        ("a = MatMul(x, w) y = Add(a, row)", [(2, {})]),
    ],
)
def test_found(body: str, wanted: list[tuple[int, dict[str, int]]]) -> None:
    assert sites_of(graph_of(body)) == wanted


def test_gemm() -> None:
    rows = {"x": "float[n,64] x", "outputs": "float[n,48] y"}
    assert sites_of(graph_of("y = Gemm <transB = 1> (x, wt, b)", **rows)) == [(3, {"transposed": 1, "bias": 1})]
    assert sites_of(graph_of("y = Gemm (x, w)", **rows)) == [(2, {})]
    for body in ("y = Gemm <alpha = 0.5> (x, w)", "y = Gemm <beta = 0.5> (x, w, b)", "y = Gemm (x, w, row)"):
        assert sites_of(graph_of(body, **rows)) == []


def test_left_alone() -> None:
    """Weights of the run, of three dims, or so small that nothing is won; other targets, and a target without Triton."""
    run = "float[2,n,64] x, float[64,48] r"
    assert sites_of(graph_of("y = MatMul(x, r)", x=run)) == []
    assert sites_of(graph_of("y = MatMul(x, three)")) == []
    assert sites_of(graph_of("y = MatMul(x, small)", outputs="float[2,n,8] y")) == []
    model = graph_of("y = MatMul(x, w)")
    for other in (None, parse_target("cpu-host"), parse_target("vulkan"), parse_target("cuda", "iree")):
        assert sites_of(model, other) == []


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptx, "available", lambda: False)
    assert triton.missing(CUDA) and sites_of(graph_of("y = MatMul(x, w)")) == []


def test_an_output_is_no_bias_to_come() -> None:
    """A product that the model gives out stays one."""
    model = graph_of("a = MatMul(x, w) y = Add(a, b)", outputs="float[2,n,48] a, float[2,n,48] y")
    assert sites_of(model) == [(2, {})]


def test_a_bias_that_is_made_behind_the_product() -> None:
    """The site stands where its last operand is there."""
    model = graph_of(
        "a = MatMul(x, w) c = Constant <value = float[48] {BIAS}> () y = Add(a, c)".replace(
            "BIAS", ", ".join(["1"] * 48)
        )
    )
    assert sites_of(model) == [(3, {"bias": 1})]
    assert import_model(model, "cuda").text.count("util.call @linear_") == 1


def test_a_few_bits() -> None:
    text = import_model(bits_model("n", 4), "cuda").text
    assert text.count("util.call @linear_") == 2 and "accuracy" not in text


def test_calls() -> None:
    """A call with the operands as they are, rows free or known."""
    for x, shape in (("float16[2,n,64] x", "2x?x64xf16"), ("float[3,64] x", "3x64xf32")):
        out = x.replace("64] x", "48] y")
        text = import_model(graph_of("a = MatMul(x, w) y = Add(a, b)", x=x, outputs=out), "cuda").text
        assert f"(tensor<{shape}>, tensor<64x48x{shape[-3:]}>, tensor<48x{shape[-3:]}>)" in text
        assert ("scf.if" in text) == ("?" in shape)
