"""The least and the largest of narrow integers, and their places, on GPUs: compared in 64 bits, of the type that the graph has."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.rules import legalize
from onnx_fa.spec.target import Target, parse_target
from tests.support.ort_run import run

CUDA, HOST = parse_target("cuda"), parse_target("cpu-host")


def reducing(kind: str, node: str, result: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g ({kind}[n, m] x) => ({result}[p, q] y) <int64[1] k = {{0}}> {{ y = {node} }}"""
    )


@pytest.mark.parametrize("kind", ["int8", "int32", "uint8"])
@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin", "ArgMax", "ArgMin"])
def test_compared_in_64_bits(kind: str, op: str) -> None:
    is_place = op.startswith("Arg")
    model = reducing(kind, f"{op}<axis=0>(x)" if is_place else f"{op}(x, k)", "int64" if is_place else kind)
    x = np.array([[3, 5, 2], [1, 5, 4]], {"int8": np.int8, "int32": np.int32, "uint8": np.uint8}[kind])
    (want,) = run(model, {"x": x})
    infer_types(model, {})
    model = legalize(model, target=CUDA)
    made = {o: n for n in model.graph.node for o in n.output}
    compared = [made[n.input[0]] for n in model.graph.node if op_of(n) in ("ReduceMax", "ReduceMin")]
    assert compared
    assert all(op_of(n) != "Cast" or n.attribute[0].i == onnx.TensorProto.INT64 for n in compared)
    assert any(op_of(n) == "Cast" for n in compared)
    (got,) = run(model, {"x": x})
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("kind", "target"), [("int32", HOST), ("int64", CUDA), ("float", CUDA)])
def test_others_stay(kind: str, target: Target) -> None:
    model = reducing(kind, "ReduceMin(x, k)", kind)
    infer_types(model, {})
    model = legalize(model, target=target)
    assert [op_of(n) for n in model.graph.node] == ["ReduceMin"]
