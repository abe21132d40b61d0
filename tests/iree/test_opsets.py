"""Models of old opsets, whose operators iree-compile does not know or takes for what they are today."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper as h

import onnx_fa
from onnx_fa.errors import ModelError
from onnx_fa.iree import opsets
from onnx_fa.iree.opsets import OPSET, raise_opset
from onnx_fa.models import build as zoo
from onnx_fa.models.export import export_onnx
from tests.support.ort_run import assert_same, run

OLD = {
    9: """g (float[4,6] x, float[1,2,4,4] image) => (float[4,3] a, float[4,6] b, float[1,2,8,8] c)
        <float[4] twice = {1,1,2,2}> {
            a = Slice<axes = [1], starts = [1], ends = [4]>(x)
            b = Clip<min = -0.5, max = 0.5>(x)
            c = Upsample<mode = "nearest">(image, twice) }""",
    11: """g (float[4,6] x, float[1,2,4,4] image, int64[4,2] at, float[2] some)
        => (float[4,2] a, float[4,4] b, bool[4,6] c, float[4,1] d, float[4,2] e, float[4,6] f, float[1,4,6] g0, float[4,1] h,
            float[4,6] i, float[1,2,4,4] j, float[1,2,2,2] k, float[4,3] l, int64[2,n] m, float[4,6] o)
        <int64[1] one = {1}, int64[1] four = {4}, float zero = {0}> {
            a, b = Split<axis = 1, split = [2, 4]>(x)
            c = Less(x, zero)
            d = ReduceMax<axes = [1]>(x)
            e = GatherElements<axis = 1>(x, at)
            f = Softmax<axis = 0>(x)
            g0 = Unsqueeze<axes = [0]>(x)
            h = ReduceSum<axes = [1]>(x)
            erf = Erf(x)
            whole = Floor(erf)
            i = Ceil(whole)
            j = BatchNormalization(image, some, some, some, some)
            k = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(image)
            l = Slice(x, one, four, one)
            m = NonZero(x)
            o = Dropout(x) }""",
    14: """g (float[4,6] x, float[6] z, bool yes) => (bool[4,6] a, bool[4,6] b, float[4,6] c) {
            a = GreaterOrEqual(x, z)
            b = LessOrEqual(x, z)
            c = If (yes) <then_branch = t () => (float[4,6] u) { u = Neg(x) }, else_branch = e () => (float[4,6] w) {
                low = GreaterOrEqual(x, z)
                w = Where(low, x, z) }> }""",
}


def parsed(opset: int, text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: {4 if opset < 11 else 7}, opset_import: ["" : {opset}]> {text}')


@pytest.mark.parametrize("opset", OLD)
def test_they_compute_what_they_did(opset: int, tmp_path: Path) -> None:
    model = parsed(opset, OLD[opset])
    rng = np.random.default_rng(0)
    given: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        kind = value.type.tensor_type.elem_type
        if kind == onnx.TensorProto.FLOAT:
            x = rng.standard_normal(shape).astype(np.float32)
            given[value.name] = np.abs(x) if value.name == "some" else x
        else:
            given[value.name] = rng.integers(0, 2, shape).astype(h.tensor_dtype_to_np_dtype(kind))
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    assert_same(run(model, given), onnx_fa.run(tmp_path / "m.vmfb", *given.values()), 1e-6)


def test_attention_of_an_old_opset(tmp_path: Path) -> None:
    """Its nodes keep their names and marks, free lengths their symbols."""
    model = parsed(
        12,
        """g (float[1,2,S,8] q, float[1,2,S,8] k, float[1,2,S,8] v) => (float[1,2,S,8] o) {
            t = Transpose<perm = [0, 1, 3, 2]>(k)
            s = MatMul(q, t)
            p = Softmax<axis = 3>(s)
            m = MatMul(p, v)
            e = Erf(m)
            o = Add(e, m) }""",
    )
    report = onnx_fa.compile(model, tmp_path / "m.vmfb")
    assert [site.fused for site in report.sites] == [True]
    given = {n: np.random.default_rng(i).standard_normal((1, 2, 5, 8)).astype(np.float32) for i, n in enumerate("qkv")}
    assert_same(run(model, given), onnx_fa.run(tmp_path / "m.vmfb", *given.values()), 1e-6)


@pytest.mark.parametrize(("name", "opset"), [("tiny_bert", 11), ("tiny_llama", 13)])
def test_exports_of_old_opsets(name: str, opset: int, tmp_path: Path) -> None:
    """As files of some years ago are: all sites fused, and what onnxruntime computes."""
    pytest.importorskip("torch")
    model = export_onnx(name, "torchscript", opset, attn="eager")
    given = zoo.inputs(zoo.find(name))
    report = onnx_fa.compile(model, tmp_path / "m.vmfb")
    assert report.sites and all(site.fused for site in report.sites)
    passed = [given[i.name] for i in model.graph.input]
    assert_same(run(model, given), onnx_fa.run(tmp_path / "m.vmfb", *passed), 2e-5)


def test_marks_stay() -> None:
    model = parsed(14, OLD[14])
    inner = model.graph.node[2].attribute[1].g.node[0]
    for node in (model.graph.node[0], inner):
        node.metadata_props.add(key="mark", value=node.output[0])
    raised = raise_opset(model)
    (branch,) = (a.g for a in raised.graph.node[2].attribute if a.name == "else_branch")
    assert [p.value for n in (raised.graph.node[0], branch.node[0]) for p in n.metadata_props] == ["a", "low"]
    assert raised.opset_import[0].version == OPSET


def test_what_is_new_stays() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Erf(x) }'
    )
    assert raise_opset(model) is model


def test_what_cannot_be_raised_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
        raise RuntimeError("No Adapter\nFor Foo")

    monkeypatch.setattr(opsets.onnx.version_converter, "convert_version", fail)
    with pytest.raises(ModelError, match="opset 14, and cannot be raised to 17 for IREE: No Adapter For Foo"):
        raise_opset(parsed(14, OLD[14]))
