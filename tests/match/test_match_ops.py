"""Attention that is one op, in containers, or quantised: recognised or refused, and equal to what onnxruntime, or onnx's reference
evaluator where onnxruntime has no such op, makes of the original."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static

from onnx_fa.forms.replace import Form
from onnx_fa.forms.rewrite import FORMS, explain, rewrite
from onnx_fa.spec.expr import words
from onnx_fa.spec.terms import Causal, Elementwise, SlidingWindow, Softcap
from tests.support import spellings_ops as so
from tests.support.ort_run import TOLERANCE, assert_same, run

Feeds = dict[str, np.ndarray]

LARGE_TOLERANCE = 2e-4
"""The same with scores in the hundreds, whose rounding exp turns into a relative error."""

F16_TOLERANCE = 2e-3
"""f16 against a reference that rounds every intermediate result to f16 (half an ulp is 5e-4)."""


def reference(model: onnx.ModelProto, inputs: Feeds) -> list[np.ndarray]:
    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(model).run(None, inputs))


def rewritten(model: onnx.ModelProto, form: Form, *, sites: int | None = None) -> onnx.ModelProto:
    """The model in `form`: valid, with every site that `explain` sees, and not changed by a second rewrite."""
    found = explain(model)
    new, report = rewrite(model, form)
    onnx.checker.check_model(new, full_check=True)
    assert sites is None or len(found.sites) == sites, found.misses
    assert sorted(s.name for s in found.sites) == sorted([*(s.name for s in report.sites), *_lost(report, found)])
    again, _ = rewrite(new, form)
    assert again.SerializeToString() == new.SerializeToString(), "rewriting twice changed something"
    return new


def _lost(report: Any, found: Any) -> list[str]:
    """Sites that the `attention` form cannot express."""
    return [m.node for m in report.misses if m.reason.startswith("form ") and m not in found.misses]


@pytest.mark.parametrize("name", so.STANDARD)
def test_attention_op(name: str) -> None:
    model = so.STANDARD[name]()
    for form in FORMS:
        new = rewritten(model, form, sites=1)
        assert any(n.op_type == "Attention" for n in new.graph.node) == (form == "attention")
        for large, empty in ((False, False), (True, False), (False, True)):
            inputs = so.feeds(model, large=large, empty_rows=empty)
            assert_same(run(model, inputs), run(new, inputs), LARGE_TOLERANCE if large else TOLERANCE)


@pytest.mark.parametrize(("name", "builder"), [*so.REFERENCE, *so.FLEX], ids=lambda x: x if isinstance(x, str) else "")
def test_against_the_reference_evaluator(name: str, builder: so.Builder) -> None:
    model = builder()
    half = "f16" in name
    for form in ("decomposed", "blocked"):
        new = rewritten(model, form, sites=1)
        assert not {"Attention", "FlexAttention"} & {n.op_type for n in new.graph.node}
        for large, empty in ((False, False), (False, True), *(() if half else ((True, False),))):
            inputs = so.feeds(model, large=large, empty_rows=empty)
            tolerance = F16_TOLERANCE if half else LARGE_TOLERANCE if large else TOLERANCE
            assert_same(reference(model, inputs), run(new, inputs), tolerance)


@pytest.mark.parametrize(("name", "builder"), so.CONTRIB, ids=[name for name, _ in so.CONTRIB])
def test_onnxruntime_op(name: str, builder: so.Builder) -> None:
    model = builder()
    for form in ("decomposed", "blocked"):
        new = rewritten(model, form, sites=1)
        assert not any(n.domain for n in new.graph.node)
        for large, empty in ((False, False), (True, False), (False, True)):
            inputs = so.feeds(model, large=large, empty_rows=empty)
            # Attention multiplies a random input by random weights, so that its scores are in the hundreds.
            loose = large or name.startswith("attention")
            assert_same(run(model, inputs), run(new, inputs), LARGE_TOLERANCE if loose else TOLERANCE)


@pytest.mark.parametrize("count", [2, 3])
def test_packed_heads(count: int) -> None:
    """K and V, or all three, of each head side by side, which onnxruntime has for CUDA alone: equal to the op on its parts."""
    rows = so.L if count == 2 else so.S
    first = [("q", [so.B, so.S, so.HQ * so.D], TensorProto.FLOAT)] if count == 2 else []
    packed = ("packed", [so.B, rows, so.HQ, count, so.D], TensorProto.FLOAT)
    result = ("o", [so.B, so.S, so.HQ * so.D], TensorProto.FLOAT)
    given = [*first, packed, *([None] * (4 - len(first) - 1)), ("mask", [so.B, rows], TensorProto.INT32)]
    model = so.contrib("MultiHeadAttention", given, [result], num_heads=so.HQ)
    names = [("q", so.S), ("k", rows), ("v", rows)]
    parts = [(n, [so.B, length, so.HQ * so.D], TensorProto.FLOAT) for n, length in names]
    plain = so.contrib("MultiHeadAttention", [*parts, None, given[-1]], [result], num_heads=so.HQ)
    inputs = so.feeds(model)
    split = {n: inputs["packed"][:, :, :, i].reshape(so.B, rows, -1) for i, n in enumerate("qkv"[3 - count :])}
    for form in ("decomposed", "blocked"):
        new = rewritten(model, form, sites=1)
        assert_same(run(plain, {i.name: (inputs | split)[i.name] for i in plain.graph.input}), run(new, inputs))


def test_the_first_step_of_a_decoder() -> None:
    """An empty cache: the one key gets all the weight, and becomes the first row. Before 1.31, onnxruntime takes 0 rows for a full
    cache, writes each row behind its head's, and the last one behind the tensor: that is no result to compare with."""
    model = so.decoder(held=0)
    for large in (False, True):
        inputs = so.feeds(model, large=large)
        want = [inputs["v"], inputs["pk"].copy(), inputs["pv"].copy()]
        for buffer, row in zip(want[1:], ("k", "v"), strict=True):
            buffer[:, :, 0] = inputs[row].reshape(so.B, so.HQ, so.D)
        for form in ("decomposed", "blocked"):
            assert_same(want, run(rewritten(model, form, sites=1), inputs))
        if tuple(int(n) for n in ort.__version__.split(".")[:2]) >= (1, 31):
            assert_same(want, run(model, inputs))


@pytest.mark.parametrize("options", [{}, {"s": 1, "past": 8, "lengths": (6, 4), "qk_norm_epsilon": 0.5}, {"rotary": 8}])
def test_norms_of_q_and_k_inside_the_op(options: dict[str, Any]) -> None:
    """The CPU provider refuses them: the same with the norms in front of the op, as its description says, is what they give."""
    model = so.gqa(norms=True, **options)
    inputs = so.feeds(model)
    plain = so.gqa(**{k: v for k, v in options.items() if k != "qk_norm_epsilon"})
    for name, size in (("q", so.HQ), ("k", so.HKV)):
        heads = inputs[name].astype(np.float64).reshape(*inputs[name].shape[:2], size, 16)
        root = np.sqrt((heads**2).mean(-1, keepdims=True) + options.get("qk_norm_epsilon", 1e-6))
        inputs[f"plain_{name}"] = (heads / root * inputs[f"{name}_norm"]).reshape(inputs[name].shape)
    given = {i.name: inputs[i.name] for i in plain.graph.input}
    given |= {name: inputs[f"plain_{name}"].astype(np.float32) for name in "qk"}
    for form in ("decomposed", "blocked"):
        new = rewritten(model, form, sites=1)
        have = run(new, {i.name: inputs[i.name] for i in model.graph.input})
        assert_same(run(plain, given), have, 2 * TOLERANCE)


def test_one_norm_alone_is_an_error_of_the_model() -> None:
    model = so.gqa(norms=True)
    model.graph.node[0].input[14] = ""
    assert "must come together" in explain(model).misses[0].reason


def test_a_cache_of_bf16() -> None:
    """onnxruntime's CPU provider has no bf16: f32 of the same numbers, to the digits that bf16 has."""
    model, wide = (so.gqa(1, 8, (6, 4), rotary=8, kind=kind) for kind in (TensorProto.BFLOAT16, TensorProto.FLOAT))
    for made in (model, wide):
        for name in ("cos", "sin"):
            next(i for i in made.graph.input if i.name == name).type.tensor_type.elem_type = made.graph.input[
                0
            ].type.tensor_type.elem_type
    inputs = so.feeds(wide)
    narrow = {k: x.astype(ml_dtypes.bfloat16) if x.dtype == np.float32 else x for k, x in inputs.items()}
    want = run(wide, {k: x.astype(np.float32) if x.dtype == ml_dtypes.bfloat16 else x for k, x in narrow.items()})
    new = rewritten(model, "decomposed", sites=1)
    for have, exact in zip(reference(new, narrow), want, strict=True):
        assert np.abs(have.astype(np.float32) - exact).max() < 0.05


@pytest.mark.parametrize("dims", [["b", 1, "n", "m"], [1, so.HQ, "n", "m"]])
def test_a_bias_whose_lengths_have_other_names(dims: list[int | str]) -> None:
    """By the op's definition they are those of the queries and of all keys."""
    model = so.mha(extra=[so.B, 1, so.S, so.S], past=0)
    sizes = {"b": so.B, "n": so.S, "m": so.S + 3, "s": so.S, "p": 3}
    for value in (*model.graph.input, *model.graph.output):
        shape = value.type.tensor_type.shape.dim
        named = {
            "q": ["b", "s"],
            "k": ["b", "s"],
            "v": ["b", "s"],
            "pk": ["b", 0, "p"],
            "pv": ["b", 0, "p"],
            "extra": dims,
        }
        for dim, name in zip(shape, named.get(value.name, ["b", "s"] if value.name == "o" else []), strict=False):
            if isinstance(name, str):
                dim.dim_param = name
            elif name:
                dim.dim_value = name
        if value.name in ("nk", "nv"):
            shape[2].dim_param = "r"
    rng = np.random.default_rng(0)
    inputs = {
        i.name: rng.standard_normal([sizes.get(d.dim_param, d.dim_value) for d in i.type.tensor_type.shape.dim]).astype(
            np.float32
        )
        for i in model.graph.input
    }
    for form in ("decomposed", "blocked"):
        assert_same(run(model, inputs), run(rewritten(model, form, sites=1), inputs), TOLERANCE)


def test_padding_behind_a_ragged_prompt_may_differ_with_a_window() -> None:
    """onnxruntime's own paths differ there; rows that count are equal."""
    model = so.gqa(lengths=(5, 3), local_window_size=3, sink=True)
    new = rewritten(model, "decomposed", sites=1)
    inputs = so.feeds(model)
    want, have = run(model, inputs)[0], run(new, inputs)[0]
    assert_same([want[0], want[1, :3]], [have[0], have[1, :3]], TOLERANCE)


@pytest.mark.parametrize("name", so.CONTAINERS)
def test_container(name: str) -> None:
    model = so.CONTAINERS[name]()
    for form in FORMS:
        new = rewritten(model, form)
        assert not any(f.name != "Gate" for f in new.functions)
        for flag in (True, False):
            for large in (False, True):
                inputs = so.feeds(model, large=large)
                if "mask_on" in inputs:
                    inputs["mask_on"] = np.asarray(flag)
                tolerance = LARGE_TOLERANCE if large else 2 * TOLERANCE
                assert_same(run(model, inputs), run(new, inputs), tolerance)


def test_counts_sites_in_containers() -> None:
    counts = {name: len(explain(build()).sites) for name, build in so.CONTAINERS.items()}
    assert counts == {
        "if": 2,
        "if-op": 2,
        "if-split": 2,
        "if-shared": 3,
        "loop": 1,
        "loop-undeclared": 1,
        "loop-if": 1,
        "scan": 1,
        "function": 1,
        "function-twice": 2,
        "function-nested": 3,
        "function-softmax": 1,
        "function-op": 1,
        "function-attribute": 1,
        "function-in-if": 1,
        "siblings": 3,
        "siblings-present": 3,
    }


def test_functions_without_attention_stay() -> None:
    new, _ = rewrite(so.in_function())
    assert [f.name for f in new.functions] == ["Gate"]
    model = so.plain_function()
    new, report = rewrite(model)
    assert [f.SerializeToString() for f in new.functions] == [f.SerializeToString() for f in model.functions]
    assert [m.reason for m in report.misses] == ["the softmax result is a graph output"]


@pytest.mark.parametrize(
    ("body", "sites"), [("c = Constant<value_float = 0.5>() y = Mul(x, c)", 1), ("y = LpNormalization(x)", 0)]
)
def test_a_function_between_the_products(body: str, sites: int) -> None:
    """It is taken in where it is a part of the attention; else it stays, and the miss names it."""
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21, "my": 1]>
g (float[2,3,4] q, float[2,4,5] kt, float[2,5,6] v) => (float[2,3,6] o) {{
  a = my.Before(q)
  s = MatMul(a, kt)
  t = my.Layer(s)
  p = Softmax<axis = -1>(t)
  o = MatMul(p, v)
}}
<domain: "my", opset_import: ["": 21]> Before (x) => (y) {{ y = Tanh(x) }}
<domain: "my", opset_import: ["": 21]> Layer (x) => (y) {{ {body} }}""")
    new, report = rewrite(model)
    assert len(report.sites) == sites
    assert [f.name for f in new.functions] == ["Before", "Layer"][: 2 - sites]
    if sites:
        inputs = so.feeds(model)
        assert_same(run(model, inputs), run(new, inputs))
    else:
        assert "my.Layer" in report.misses[0].reason


def test_function_of_another_opset_is_refused() -> None:
    model = so.in_function()
    model.functions[0].opset_import[0].version = 18
    report = explain(model)
    assert not report.sites
    assert "cannot be inlined" in report.misses[0].reason and "version 18" in report.misses[0].reason


@pytest.mark.parametrize("name", so.QUANTISED)
def test_quantised(name: str) -> None:
    model = so.QUANTISED[name]()
    for form in ("decomposed", "blocked"):
        new = rewritten(model, form, sites=1)
        inputs = so.feeds(model)
        # Behind a quantised result one step is the least difference; onnxruntime's optimiser aborts where a Loop reads
        # a DequantizeLinear outside of it.
        (want,), (have,) = run(model, inputs, optimise=False), run(new, inputs, optimise=False)
        step = 0.03 if "cache" not in name else 0.0
        assert np.abs(want - have).max() <= step * 1.01 + 1e-5
        assert np.mean(want != have) < 0.01 or not step


@pytest.mark.parametrize("fmt", ["qdq", "operators", "dynamic"])
def test_models_of_the_quantiser(fmt: str, tmp_path: Path) -> None:
    """The quantiser rounds the probabilities too, in pairs of nodes (QDQ) or in operators on bytes, and all are sites. One step
    of its result's is the least difference."""
    logging.getLogger().setLevel(logging.ERROR)
    model = so.model(so.plain("o"), so.QKV, [so.OUT], 21, so.SCALE)
    model.ir_version = 10
    onnx.save(model, tmp_path / "float.onnx")
    source, result = tmp_path / "float.onnx", tmp_path / "quantised.onnx"
    if fmt == "dynamic":
        quantize_dynamic(source, result)
    else:
        kind = QuantFormat.QDQ if fmt == "qdq" else QuantFormat.QOperator
        quantize_static(source, result, _Samples(model), quant_format=kind)
    quantised = onnx.load(result)
    report = explain(quantised)
    inputs = so.feeds(model)
    (site,) = report.sites
    if fmt == "dynamic":
        assert_same(run(quantised, inputs), run(rewrite(quantised)[0], inputs), TOLERANCE)
    else:
        assert site.spec.rounding is not None and site.spec.rounding.dtype == "i8"
        assert site.spec.k_quant is not None and site.spec.v_quant is not None
        (want,), (have,) = (run(m, inputs, optimise=False) for m in (quantised, rewrite(quantised)[0]))
        assert np.mean(want != have) < 0.01


class _Samples(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, model: onnx.ModelProto) -> None:
        self.left = [so.feeds(model, seed) for seed in range(3)]

    def get_next(self) -> Feeds | None:
        return self.left.pop() if self.left else None


REASONS = {
    "attention-precision": "rounds the scores",
    "attention-precision-bf16": "rounds the scores",
    "function-classifier": "graph output",
    "flex-prob-square": "prob_mod",
    "flex-cumulative": "CumSum",
    "flex-precision": "rounds scores",
    "quant-probabilities-dynamic": "rounds the probabilities",
    "gqa-quantised": "quantised cache",
    "gqa-window-cache": "a window only",
    "packed": "packed into one",
}
REFUSED = {**so.NOT_STANDARD, **so.NOT_CONTAINERS, **so.NOT_FLEX, **so.NOT_QUANTISED, **so.NOT_CONTRIB}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    model = REFUSED[name]()
    new, report = rewrite(model)
    assert not report.sites
    assert any(REASONS[name] in m.reason for m in report.misses), report.misses
    assert [n.op_type for n in new.graph.node] == [n.op_type for n in model.graph.node]
    assert report.misses == explain(model).misses


def spec_of(model: onnx.ModelProto) -> Any:
    (site,) = explain(model).sites
    return site.spec


def test_recovers_the_meaning() -> None:
    spec = spec_of(so.attention(past=3, is_causal=1, flat=True))
    assert (spec.masks, spec.Skv, spec.empty_row) == ((Causal(3),), 3 + so.S, "zero")
    assert spec.q_layout == spec.o_layout == (0, 2, 1, 3)
    assert spec_of(so.attention(past="p", s="s", is_causal=1)).masks == (Causal("end"),)
    assert spec_of(so.attention(softcap=2.0)).mods == (Softcap(2.0),)
    windowed = spec_of(so.attention(left_window_size=2, right_window_size=1, opset=25))
    assert windowed.masks == (SlidingWindow(2, 1),)
    (lengths,) = spec_of(so.attention(lengths=True, opset=24)).masks
    assert isinstance(lengths, Elementwise)
    assert words(lengths.expr) == "where((k < t0), score, -inf)" and lengths.tensors[0].shape == (so.B, 1, 1, 1)
    assert spec_of(so.flex("causal")).masks == (Causal(0),)
    assert spec_of(so.flex("softcap")).mods == (Softcap(2.0),)
    (alibi,) = spec_of(so.flex("alibi")).masks
    assert words(alibi.expr) == "(score + (tofloat((k - q)) * t0))" and alibi.tensors[0].shape == (so.HQ, 1, 1)
    grouped = spec_of(so.gqa(sink=True))
    assert (grouped.Hq, grouped.Hkv, grouped.sink.shape) == (so.HQ, so.HKV, (so.HQ, 1, 1))
    assert spec_of(so.mha(unidirectional=1)).masks == (Causal(0),)
