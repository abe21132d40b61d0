"""What of a prompt only the last token needs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from onnx_fa.generate.last_row import keep_last_row
from tests.support.ort_run import run

WEIGHTS = {"w": (16, 24), "u": (24, 24), "b": (24,), "wide": (5, 24), "scale": (16,)}


def model_of(body: str, outputs: str = "float[b,s,24] logits") -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 17]> g (float[b,s,16] x) => ({outputs}) {{ {body} }}'
    )
    rng = np.random.default_rng(0)
    for name, shape in WEIGHTS.items():
        if name in body:
            model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    return model


def cut_at(model: onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """The changed model, and what is cut; "" for nothing."""
    made = ir.from_proto(model)
    if not keep_last_row(made, "logits"):
        return ir.to_proto(made), ""
    (cut,) = (n for n in made.graph if n.op_type == "Slice")
    assert cut.inputs[0] is not None
    return ir.to_proto(made), str(cut.inputs[0].name)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ("h = Sin(x) logits = MatMul(h, w)", "h"),
        ("h = Sin(x) n = LayerNormalization <axis = -1> (h, scale) a = MatMul(n, w) logits = Add(a, b)", "h"),
        (
            "h = Sin(x) a = MatMul(h, w) c = MatMul(a, u) t = Tanh(c) two = Constant <value_float = 2.0> () logits = Mul(t, two)",
            "h",
        ),
        ("h = Sin(x) n = LayerNormalization <axis = -2> (h, scale) logits = MatMul(n, w)", "n"),  # over the tokens, too
        ("h = MatMul(x, w) a = Sin(h) c = Add(a, h) logits = Add(c, b)", "c"),  # two things read h
        ("h = MatMul(x, w) logits = Add(h, wide)", ""),  # another number for every token
        ("logits = Sin(x)", ""),
    ],
)
def test_cut(body: str, wanted: str) -> None:
    model = model_of(body, "float[b,s,16] logits" if body.startswith("logits") else "float[b,s,24] logits")
    if "axis = -2" in body:
        return assert_same_cut(model, wanted)
    changed, cut = cut_at(model)
    assert cut == wanted
    if not cut:
        return
    onnx.checker.check_model(changed, full_check=True)
    assert changed.graph.output[0].type.tensor_type.shape.dim[1].dim_value == 1
    for length in (1, 5):
        x = np.random.default_rng(1).standard_normal((2, length, 16)).astype(np.float32)
        (want,), (got,) = run(model, {"x": x}), run(changed, {"x": x})
        assert got.shape == (2, 1, 24) and np.allclose(got, want[:, -1:], atol=1e-6)


def assert_same_cut(model: onnx.ModelProto, wanted: str) -> None:
    assert cut_at(model)[1] == wanted


def test_what_else_is_given_out_stays_whole() -> None:
    model = model_of("h = Sin(x) a = MatMul(h, w) logits = Add(a, b)", "float[b,s,24] logits, float[b,s,24] a")
    changed, cut = cut_at(model)
    assert cut == "a"
    x = np.random.default_rng(1).standard_normal((1, 4, 16)).astype(np.float32)
    want, got = run(model, {"x": x}), run(changed, {"x": x})
    assert np.allclose(got[0], want[0][:, -1:], atol=1e-6) and np.array_equal(got[1], want[1])
