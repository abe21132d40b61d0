"""Score expressions and sinks: every form of a spec that has them equals the float64 reference in onnxruntime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from onnx_fa.forms import blocked, decomposed
from onnx_fa.graph.builder import OnnxBuilder
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import (
    SCORE,
    SKV,
    SQ,
    Apply,
    Float,
    Int,
    K,
    Q,
    ScoreExpr,
    Tensor,
    compose,
    evaluate,
    kind_of,
    words,
)
from onnx_fa.spec.reference import attention
from onnx_fa.spec.terms import Causal, Elementwise, Softcap, TensorArg

NEG_INF = Float(float("-inf"))
SPEC = AttentionSpec("f32", Hq=4, Hkv=2, Sq=7, Skv=9, D=8, Dv=6, batch=(2,), scale=0.3)


def keep(condition: ScoreExpr) -> ScoreExpr:
    return Apply("Where", condition, SCORE, NEG_INF)


PREFIX = Elementwise(keep(Apply("Or", Apply("LessOrEqual", K, Q), Apply("Less", K, Int(3)))), label="prefix")
DOCUMENT = Elementwise(
    keep(Apply("Equal", Tensor(0), Tensor(1))),
    (TensorArg((2, 1, 7, 1), "i64"), TensorArg((2, 1, 1, 9), "i32")),
    "document",
)
LENGTHS = Elementwise(keep(Apply("Less", K, Tensor(0))), (TensorArg((2, 1, 1, 1), "i64"),), "lengths")
CHUNKED = Elementwise(keep(Apply("Equal", Apply("Div", K, Int(4)), Apply("Div", Q, Int(4)))), label="chunked")
DILATED = Elementwise(
    keep(Apply("Equal", Apply("Mod", Apply("Add", Apply("Sub", Q, K), Int(12)), Int(2)), Int(0))), label="dilated"
)
ALIBI = Elementwise(
    Apply("Add", SCORE, Apply("Mul", Tensor(0), Apply("ToFloat", Apply("Sub", K, Q)))),
    (TensorArg((4, 1, 1), "f32"),),
    "alibi",
)
SHAPED = Elementwise(Apply("Mul", Apply("Sigmoid", SCORE), Apply("Softplus", Apply("Abs", SCORE))))
FROM_END = Elementwise(keep(Apply("LessOrEqual", K, Apply("Add", Q, Apply("Sub", SKV, SQ)))))
HEAD_SINK = TensorArg((4, 1, 1), "f32")

SPECS: dict[str, AttentionSpec] = {
    "prefix": replace(SPEC, masks=(PREFIX,)),
    "document": replace(SPEC, masks=(DOCUMENT,), empty_row="zero"),
    "lengths after causal": replace(SPEC, masks=(Causal(), LENGTHS)),
    "chunked": replace(SPEC, masks=(CHUNKED,), empty_row="guarded"),
    "dilated alibi": replace(SPEC, masks=(ALIBI, DILATED)),
    "any function": replace(SPEC, mods=(Softcap(3.0),), masks=(SHAPED, FROM_END)),
    "sink": replace(SPEC, masks=(Causal(),), sink=HEAD_SINK),
    "sink, one head": replace(SPEC, Hq=1, Hkv=1, sink=TensorArg((), "f32")),
    "sink, half": replace(SPEC, dtype="f16", Hkv=4, masks=(DOCUMENT,), sink=replace(HEAD_SINK, dtype="f16")),
}


def operands(spec: AttentionSpec, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    types: dict[str, Any] = {"f32": np.float32, "f16": np.float16}
    return [
        rng.integers(0, 3, s).astype(np.int64 if d == "i64" else np.int32)
        if d in ("i32", "i64")
        else rng.standard_normal(s).astype(types[d])
        for s, d in zip(spec.operand_shapes, spec.operand_dtypes, strict=True)
    ]


@pytest.mark.parametrize("form", [decomposed, blocked], ids=["decomposed", "blocked"])
@pytest.mark.parametrize("name", SPECS)
def test_forms_equal_the_reference(name: str, form: Any) -> None:
    spec = SPECS[name]
    arrays = operands(spec)
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 18}, name="g")
    values = [
        ir.Value(name=f"x{i}", shape=ir.Shape(a.shape), type=ir.TensorType(ir.DataType.from_numpy(a.dtype)))
        for i, a in enumerate(arrays)
    ]
    graph.inputs.extend(values)
    b = OnnxBuilder(graph, 18, "site", set(), {})
    out, *_ = form.emit(b, spec, values)
    graph.extend(b.nodes)
    out.type, out.shape = ir.TensorType(values[0].dtype or ir.DataType.FLOAT), ir.Shape(spec.out_shape)
    graph.outputs.append(out)
    proto = ir.to_proto(ir.Model(graph, ir_version=10))
    onnx.checker.check_model(proto, full_check=True)
    session = ort.InferenceSession(proto.SerializeToString())
    (have,) = session.run(None, {f"x{i}": a for i, a in enumerate(arrays)})
    want = attention(spec, *arrays)
    np.testing.assert_array_equal(np.isnan(have), np.isnan(want))
    error = np.linalg.norm(np.nan_to_num(have) - np.nan_to_num(want)) / np.linalg.norm(np.nan_to_num(want))
    assert error <= (2e-3 if spec.dtype == "f16" else 2e-6)


@pytest.mark.parametrize("name", SPECS)
def test_json_and_back(name: str) -> None:
    spec = SPECS[name]
    assert AttentionSpec.from_dict(spec.to_dict()) == spec


def test_a_sink_is_a_column_without_a_value() -> None:
    spec = replace(SPEC, Hkv=4, sink=HEAD_SINK)
    q, k, v, sink = operands(spec)
    s = 0.3 * (q.astype(np.float64) @ np.swapaxes(k, -1, -2))
    e = np.exp(np.concatenate([s, np.broadcast_to(sink, (2, 4, 7, 1))], axis=-1))
    p = (e / e.sum(-1, keepdims=True))[..., :-1]
    np.testing.assert_allclose(attention(spec, q, k, v, sink), p @ v)


def test_integer_division_and_modulo_are_those_of_onnx() -> None:
    score = np.zeros((1, 4))
    shifted = Apply("Sub", K, Int(3))
    np.testing.assert_array_equal(evaluate(Apply("Div", shifted, Int(2)), score, []), [[-1, -1, 0, 0]])
    np.testing.assert_array_equal(evaluate(Apply("Mod", shifted, Int(2)), score, []), [[1, 0, 1, 0]])


@pytest.mark.parametrize(
    ("expr", "reason"),
    [
        (Apply("Add", K, SCORE), "Add of different kinds: int, float"),
        (Apply("Tanh", K), "Tanh of a int, where it takes a float"),
        (Apply("Where", SCORE, SCORE, SCORE), "Where of a float, where it takes a bool"),
        (Tensor(1), "an expression reads tensor 1 of 0"),
        (Apply("MatMul", SCORE, SCORE), "'MatMul' with 2 arguments is not an op"),
    ],
)
def test_kinds_are_checked(expr: ScoreExpr, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace("(", r"\(")):
        kind_of(expr, [])


def test_an_elementwise_term_is_a_float_that_reads_all_its_tensors() -> None:
    with pytest.raises(ValueError, match="not a float"):
        Elementwise(Apply("Less", K, Q))
    with pytest.raises(ValueError, match="reads tensors"):
        Elementwise(SCORE, (TensorArg(()),))


def test_compose_and_words() -> None:
    expr = compose(Apply("Tanh", SCORE), Apply("Mul", SCORE, Float(2.0)))
    assert words(expr) == "tanh((score * 2))"
    assert words(PREFIX.expr) == "where(((k <= q) or (k < 3)), score, -inf)"
