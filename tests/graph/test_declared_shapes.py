"""Shapes that the model declares for its intermediate values, with symbols of the builder's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from onnx_fa.forms.replace import Form
from onnx_fa.forms.rewrite import FORMS, explain, rewrite
from onnx_fa.spec.attention import AttentionSpec
from tests.support.ort_run import assert_same, run

Dims = list[int | str]
SELF = {
    "sources": {"kt": ["b", 4, "source_sequence_length", 8], "vt": ["b", 4, "sequence_length", 8]},
    "batch of K": {"kt": ["batch", 4, "s", 8]},
    "batch of V": {"vt": ["batch", 4, "s", 8]},
    "scores": {"score": ["batch_size", 4, "q_len", "kv_len"], "p": ["B", 4, "q", "kv"]},
    "every value": {
        "qt": ["b1", 4, "s1", 8],
        "kt": ["b2", 4, "s2", 8],
        "ktt": ["b3", 4, 8, "s3"],
        "vt": ["b4", 4, "s4", 8],
        "score": ["b5", 4, "s5", "t5"],
        "p": ["b6", 4, "s6", "t6"],
    },
}
CACHED = {
    "keys": {"kk": ["b", 4, "total", 8]},
    "keys and values": {"kk": ["b", 4, "total", 8], "vv": ["b", 4, "other", 8]},
    "masked": {"score": ["b", 4, "s", "kv"], "masked": ["b", 4, "s", "total"]},
    "every value": {
        "kk": ["b1", 4, "t1", 8],
        "vv": ["b2", 4, "t2", 8],
        "ktt": ["b3", 4, 8, "t3"],
        "score": ["b4", 4, "s4", "t4"],
        "masked": ["b5", 4, "s5", "t5"],
        "p": ["b6", 4, "s6", "t6"],
    },
}


def _model(
    nodes: list[onnx.NodeProto], inputs: Mapping[str, Dims], declared: Mapping[str, Dims], **constants: Any
) -> onnx.ModelProto:
    def infos(shapes: Mapping[str, Dims]) -> list[onnx.ValueInfoProto]:
        return [h.make_tensor_value_info(n, T.FLOAT, d) for n, d in shapes.items()]

    nodes = [
        *nodes,
        h.make_node("Softmax", ["masked" if "mask" in inputs else "score"], ["p"], axis=-1),
        h.make_node("MatMul", ["p", "vv" if "mask" in inputs else "vt"], ["o"]),
    ]
    tensors = [nh.from_array(np.asarray(a, np.int64), n) for n, a in constants.items()]
    out = [h.make_tensor_value_info("o", T.FLOAT, None)]
    graph = h.make_graph(nodes, "g", infos(inputs), out, tensors, value_info=infos(declared))
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)


def _of_itself(declared: Mapping[str, Dims], keys: tuple[str, str] = ("b", "s")) -> onnx.ModelProto:
    """Heads split off a packed width, and one attention."""
    nodes = []
    for x in "qkv":
        nodes += [
            h.make_node("Reshape", [x, "heads"], [f"{x}r"]),
            h.make_node("Transpose", [f"{x}r"], [f"{x}t"], perm=[0, 2, 1, 3]),
        ]
    nodes += [
        h.make_node("Transpose", ["kt"], ["ktt"], perm=[0, 1, 3, 2]),
        h.make_node("MatMul", ["qt", "ktt"], ["score"]),
    ]
    inputs: dict[str, Dims] = {"q": ["b", "s", 32], "k": [*keys, 32], "v": ["b", keys[1], 32]}
    return _model(nodes, inputs, declared, heads=[0, 0, 4, 8])


def _with_cache(declared: Mapping[str, Dims]) -> onnx.ModelProto:
    """Past and new keys and values are joined; a mask of the caller's has a name of its own for their number."""
    nodes = [
        h.make_node("Concat", ["k_past", "k"], ["kk"], axis=2),
        h.make_node("Concat", ["v_past", "v"], ["vv"], axis=2),
        h.make_node("Transpose", ["kk"], ["ktt"], perm=[0, 1, 3, 2]),
        h.make_node("MatMul", ["q", "ktt"], ["score"]),
        h.make_node("Add", ["score", "mask"], ["masked"]),
    ]
    new: Dims = ["b", 4, "s", 8]
    past: Dims = ["b", 4, "past", 8]
    inputs: dict[str, Dims] = {"q": new, "k": new, "v": new, "k_past": past, "v_past": past}
    return _model(nodes, {**inputs, "mask": ["b", 1, "s", "total"]}, declared)


def _same_as_without(with_names: onnx.ModelProto, without: onnx.ModelProto, **sizes: int) -> AttentionSpec:
    (site,), (plain,) = explain(with_names).sites, explain(without).sites
    assert site.spec == plain.spec
    rng = np.random.default_rng(0)
    feeds = {}
    for i in with_names.graph.input:
        dims = [sizes.get(d.dim_param, d.dim_value) for d in i.type.tensor_type.shape.dim]
        feeds[i.name] = np.asarray(rng.standard_normal(dims), np.float32)
    for form in FORMS[::2]:
        new, report = rewrite(with_names, form)
        assert report.sites and not report.misses
        assert_same(run(with_names, feeds), run(new, feeds))
    return site.spec


@pytest.mark.parametrize("name", SELF)
def test_names_of_values_that_nodes_make_are_no_more_than_names(name: str) -> None:
    spec = _same_as_without(_of_itself(SELF[name]), _of_itself({}), b=2, s=5)
    assert (spec.batch, spec.Sq, spec.Skv) == (("b",), "s", "s")


@pytest.mark.parametrize("name", CACHED)
def test_names_of_joined_lengths(name: str) -> None:
    _same_as_without(_with_cache(CACHED[name]), _with_cache({}), b=2, s=3, past=4, total=7)


def test_names_of_the_callers_tensors_do_tell_lengths_apart() -> None:
    equal: Dims = ["b", 4, "s", 8]
    other = _of_itself({"kt": equal}, ("batch", "s"))
    assert explain(other).sites[0].spec.batch == ("broadcast(b, batch)",)


@pytest.mark.parametrize("wrong", [[2, 2, 8, 14], [2, 2, 8]])
def test_outputs_declared_otherwise_than_their_nodes_make_them(wrong: Dims) -> None:
    """onnxruntime only warns, but refuses a Loop that reads what was derived from the wrong number."""
    names = ("o", "keys", "values")
    node = h.make_node("Attention", ["q", "k", "v", "", "k_past", "v_past"], names, is_causal=1)
    inputs: dict[str, Dims] = {
        "q": [2, 4, 5, 8],
        "k": [2, 2, 5, 8],
        "v": [2, 2, 5, 6],
        "k_past": [2, 2, 3, 8],
        "v_past": [2, 2, 3, 6],
    }
    declared: dict[str, Dims] = {"o": [2, 4, 5, 6], "keys": [2, 2, 8, 8], "values": wrong}
    infos = [[h.make_tensor_value_info(n, T.FLOAT, d) for n, d in shapes.items()] for shapes in (inputs, declared)]
    model = h.make_model(h.make_graph([node], "g", *infos), opset_imports=[h.make_opsetid("", 23)], ir_version=10)
    rng = np.random.default_rng(0)
    feeds = {n: np.asarray(rng.standard_normal(d), np.float32) for n, d in inputs.items()}
    want = run(model, feeds)
    for form in FORMS:
        new, report = rewrite(model, form)
        assert report.sites and not report.misses
        assert_same(want, run(new, feeds))
        shapes = [[d.dim_value for d in o.type.tensor_type.shape.dim] for o in new.graph.output]
        assert form == "attention" or shapes == [[2, 4, 5, 6], [2, 2, 8, 8], [2, 2, 8, 6]]


def test_an_output_that_is_read_may_have_names_of_its_own() -> None:
    """Only numbers contradict each other: what the nodes do not know stays as it is declared."""
    model = _with_cache({})
    model.graph.output.append(h.make_tensor_value_info("kk", T.FLOAT, ["batch", 4, "total", 8]))
    model.graph.output.append(h.make_tensor_value_info("vv", T.FLOAT, ["batch", 4, "total", 8]))
    new, report = rewrite(model, "blocked")
    assert report.sites and new.graph.output[1:] == model.graph.output[1:]


def test_an_output_made_by_an_op_that_does_not_take_its_type() -> None:
    """ONNX's inference of an Einsum raises an error of its own for bfloat16."""
    text = """<ir_version: 10, opset_import: ["": 21]>
g (bfloat16[2,4] q, bfloat16[3,4] k, bfloat16[3,4] v) => (bfloat16[2,4] o, bfloat16[2,3] s)
{
  s = Einsum<equation = "id,jd->ij">(q, k)
  p = Softmax<axis = -1>(s)
  o = MatMul(p, v)
}"""
    report = explain(onnx.parser.parse_model(text))
    assert not report.misses and "the scores, 1x2x3, are an output too" in report.sites[0].beside


LOOPS = {"heads": ("float[2,1,2,2]", "float[2,2,2,2]"), "head dims": ("float[2,2,2,1]", "float[b,h,s,d]")}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("wrong", LOOPS)
def test_a_loop_whose_body_declares_another_shape_than_it_makes(form: Form, wrong: str) -> None:
    """The shape of the values follows from the body's, and an Attention op with other heads than its keys have does not run.
    That of the output follows too."""
    rows, result = LOOPS[wrong]
    text = f"""<ir_version: 10, opset_import: ["": 23]>
g (float[2,2,2,1] q, float[2,2,2,1] k, {rows} rows) => ({result} o)
<int64 turns = {{2}}, bool go = {{1}}, float nought = {{0}}>
{{
  kt = Transpose<perm = [0, 1, 3, 2]>(k)
  s = MatMul(q, kt)
  all = Loop(turns, go) <body = loop (int64 i, bool on) => (bool further, float[2,2,2] row) {{
    taken = Gather<axis = 2>(rows, i)
    row = Neg(taken)
    further = Identity(on)
  }}>
  v = Transpose<perm = [1, 2, 0, 3]>(all)
  p = Softmax<axis = -1>(s)
  o = MatMul(p, v)
}}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    sizes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    feeds = {n: np.asarray(rng.standard_normal(d), np.float32) for n, d in sizes.items()}
    new, report = rewrite(model, form)
    assert report.sites
    onnx.checker.check_model(new, full_check=True)
    assert_same(run(model, feeds), run(new, feeds))
