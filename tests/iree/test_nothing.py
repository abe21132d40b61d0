"""Sizes of 0 that are written in the file: onnxruntime's shapes and numbers, where the compiler ends by SIGFPE."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

import onnx_fa
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.inference import infer_types
from onnx_fa.iree.legalise.nothing import write_nothing
from tests.support.ort_run import assert_same, run

CASES = {
    "a convolution of one tap": ("float[0,64,8,8] x, float[64,64,1,1] w", "c = Conv(x, w) y = Relu(c)"),
    "a product over nothing": ("float[3,0] x, float[0,4] w", "y = MatMul(x, w)"),
    "of many such": ("float[2,3,0] x, float[2,0,4] w", "y = MatMul(x, w)"),
    "of free rows": ("float[N,0] x, float[0,4] w", "y = MatMul(x, w)"),
    "a Gemm over nothing": ("float[0,3] x, float[0,4] w, float[4] b", "y = Gemm<transA = 1>(x, w, b)"),
    "an Einsum": ("float[0,4] x, float[4,5] w", 'y = Einsum<equation = "ij,jk->ik">(x, w)'),
    "a shuffle": ("float[0,8,4,4] x", "y = DepthToSpace<blocksize = 2>(x)"),
    "booleans": ("float[0,8] x", "n = IsNaN(x) y = Not(n)"),
    "what is joined with numbers": ("float[0,4] x, float[3,4] w", "z = Exp(x) y = Concat<axis = 0>(z, w)"),
    "a body's": (
        "float[0,4] x, bool b",
        "y = If(b) <then_branch = g1 () => (float[0,4] z) { z = Exp(x) }, else_branch = g2 () => (float[0,4] z) { z = Neg(x) }>",
    ),
}


def model_of(inputs: str, nodes: str) -> onnx.ModelProto:
    text = f'<ir_version: 10, opset_import: ["": 21]> g ({inputs}) => (float[] y) {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    (output,) = model.graph.output
    output.type.tensor_type.ClearField("shape")
    if "IsNaN" in nodes:
        output.type.tensor_type.elem_type = onnx.TensorProto.BOOL
    return model


def feeds_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    found, rng = dict[str, np.ndarray](), np.random.default_rng(0)
    for value in model.graph.input:
        of = value.type.tensor_type
        numbers = np.asarray(rng.standard_normal([3 if d.dim_param else d.dim_value for d in of.shape.dim]))
        found[value.name] = numbers.astype(onnx.helper.tensor_dtype_to_np_dtype(of.elem_type))
    return found


@pytest.mark.parametrize("case", CASES)
def test_compiled(case: str, tmp_path: Path) -> None:
    model = model_of(*CASES[case])
    feeds = feeds_of(model)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    have = [np.asarray(v) for v in onnx_fa.run(tmp_path / "m.vmfb", *feeds.values())]
    assert_same(run(model, feeds), have)


def test_a_summand_has_its_factor() -> None:
    """As ONNX says; onnxruntime 1.31 leaves it out of sums of none."""
    model = model_of("float[0,3] x, float[0,4] w, float[4] b", "y = Gemm<transA = 1, beta = 0.5>(x, w, b)")
    infer_types(model, {})
    write_nothing(model)
    feeds = feeds_of(model)
    np.testing.assert_array_equal(run(model, feeds)[0], np.tile(feeds["b"] / 2, (3, 1)))


def test_what_onnxruntime_refuses(tmp_path: Path) -> None:
    """A norm of groups and attention of no heads: there is nothing to compute."""
    for inputs, nodes, shape in (
        ("float[0,4,8,8] x, float[4] s", "y = GroupNormalization<num_groups = 2>(x, s, s)", (0, 4, 8, 8)),
        (
            "float[1,0,5,8] x",
            "t = Transpose<perm = [0,1,3,2]>(x) s = MatMul(x, t) p = Softmax(s) y = MatMul(p, x)",
            (1, 0, 5, 8),
        ),
    ):
        model = model_of(inputs, nodes)
        onnx_fa.compile(model, tmp_path / "m.vmfb")
        (have,) = onnx_fa.run(tmp_path / "m.vmfb", *feeds_of(model).values())
        assert np.asarray(have).shape == shape


def test_what_stays() -> None:
    """Results of which one has numbers, or of whose sizes a run knows some."""
    model = model_of(
        "float[0,4] x, float[N,0] f", "s = ReduceSum<keepdims = 0>(x) e = Exp(f) n = Neg(x) y = Identity(s)"
    )
    infer_types(model, {})
    write_nothing(model)
    assert [op_of(node) for node in model.graph.node] == ["ReduceSum", "Exp", "ConstantOfShape", "Identity"]
