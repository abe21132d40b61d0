"""`rewrite(split_keys=N)`: partial sites and their merge are the original, for every kind of mask and row, and are sites again."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto as T

from onnx_fa.derive.loop import loop_of
from onnx_fa.errors import UnsupportedError
from onnx_fa.forms import decomposed
from onnx_fa.forms.plain import finished, input_names, operand_values, opset_of
from onnx_fa.forms.rewrite import explain, rewrite
from onnx_fa.forms.split import parts_of
from onnx_fa.graph.builder import OnnxBuilder
from onnx_fa.graph.normalise import infer_shapes
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.run import load_module
from onnx_fa.spec.accuracy import expect
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.reference import statistic
from onnx_fa.spec.terms import BoolMask, SlidingWindow, TensorArg
from tests.support.cases import BY_NAME, draw_operands
from tests.support.ort_run import run
from tests.support.random_specs import draw_specs
from tests.support.spellings_score import Site, feeds

CASES = (
    "gqa_mask_per_head causal_end_empty_rows window_both softcap_window_gqa dv_narrower empty_nan_add empty_zero_padding "
    "empty_guarded_bool empty_mean_1e+09 empty_mean_add two_finite_fills k_transposed_odd bshd_out batch_5d_masks "
    "f16_causal_gqa lse_max_causal lse_finite lengths_causal document weighed_sigmoid_causal gathered_weights dyn_same "
    "dyn_every_dim dyn_sink dyn_document dyn_stats"
).split()
"""Of the table: masks and layouts of every kind, rows and runs without keys."""


def model_of(spec: AttentionSpec) -> onnx.ModelProto:
    """The site alone, in the decomposed form, which says all kinds of empty rows."""
    inputs, opset = operand_values(spec), opset_of(spec)
    graph = ir.Graph(inputs, [], nodes=[], opset_imports={"": opset}, name="attention")
    b = OnnxBuilder(graph, opset, "attention", set(input_names(spec)), {})
    model = finished(b, spec, *decomposed.emit(b, spec, inputs))
    infer_shapes(model)
    return ir.to_proto(model)


def hold(spec: AttentionSpec, sizes: list[AttentionSpec], count: int) -> None:
    """The site in parts equals float64 and the original in onnxruntime, with its optimiser and without."""
    original = model_of(spec)
    new, report = rewrite(original, split_keys=count)
    assert not report.misses and [s.parts for s in report.sites] == [count]
    onnx.checker.check_model(new, full_check=True)
    for bound in sizes:
        for adversarial in (False, True):
            operands = draw_operands(bound, 0, adversarial=adversarial)
            inputs = dict(zip(input_names(spec), operands, strict=True))
            try:
                like = run(original, inputs, optimise=False)
            except (RuntimeError, ort.capi.onnxruntime_pybind11_state.Fail) as e:
                assert "Reshape" in str(e) or "Numpy_type" in str(e)  # no keys in groups; types that NumPy has not
                continue
            expected = expect(bound, operands)
            for optimise in (False, True):
                made = run(new, inputs, optimise=optimise)
                assert not [c.problem for c in expected.compare_all(made) if c.problem], (bound.score_shape, optimise)
            assert [x.dtype for x in made] == [x.dtype for x in like]
    again, found = rewrite(new)
    assert not found.misses and again.SerializeToString() == new.SerializeToString()
    # Parts of a part would say the same once more.
    assert rewrite(new, split_keys=2)[0].SerializeToString() == new.SerializeToString()


@pytest.mark.parametrize("name", CASES)
def test_parts_are_the_whole(name: str) -> None:
    case = BY_NAME[name]
    hold(case.spec, case.bound()[:3], 3)


def test_random_sites() -> None:
    reasons = Counter[str]()
    for drawn in draw_specs(24, start=11):
        spec = drawn.spec
        if (
            spec.dtype == "bf16" or (spec.stats and spec.sink) or spec.renormalised
        ):  # which onnxruntime or the form has not
            continue
        if any(isinstance(m, SlidingWindow) and m.left is m.right is None for m in spec.masks):
            continue
        report = rewrite(model_of(spec), split_keys=4)[1]
        if report.misses or not report.sites:
            reasons[report.misses[0].reason if report.misses else "no site"] += 1
            continue
        sizes = [spec.bind(dict(s)) for s in drawn.sizes[:2]]
        hold(spec, [s for s in sizes if 0 not in (*s.batch, s.Hq, s.Sq)], report.sites[0].parts)
        reasons["held"] += 1
    assert reasons["held"] >= 8, reasons


def test_what_is_no_sum_of_parts_is_refused() -> None:
    for name, word in (
        ("rounded_u8", "probabilities that are rounded"),
        ("one_key", "no two parts of 1 keys"),
    ):
        spec = BY_NAME[name].spec
        original = model_of(spec)
        new, report = rewrite(original, split_keys=2)
        assert not report.sites and word in report.misses[0].reason, (name, report.misses)
        assert rewrite(new, split_keys=2)[0].SerializeToString() == new.SerializeToString()


def test_weights_by_their_own_sum_are_refused() -> None:
    kept: dict[str, Any] = {"weights": TensorArg((64, 64), "bool"), "renormalised": True, "empty_row": "guarded"}
    for spec, word in (
        (BY_NAME["weighed_l1"].spec, "divided by their sum"),
        (dataclasses.replace(BY_NAME["plain"].spec, **kept), "divided anew"),
    ):
        b = OnnxBuilder(ir.Graph([], [], nodes=[]), 18, "x", set(), {})
        with pytest.raises(UnsupportedError, match=word):
            parts_of(b, spec, operand_values(spec), "keys", 2)


def test_a_finite_fill_keeps_its_count() -> None:
    """A row that -1e9 masks throughout is the mean of V over all keys: the parts' log-sum-exps have lost how many each has."""
    spec = AttentionSpec("f32", 1, 1, 1, 5, 4, 4, masks=(BoolMask((1, 5), -1e9),), empty_row="mean")
    new, _ = rewrite(model_of(spec), split_keys=2)
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, n, 4)).astype(np.float32) for n in (1, 5, 5))
    (out,) = run(new, {"q": q, "k": k, "v": v, "t0": np.zeros((1, 5), bool)})
    np.testing.assert_allclose(out[0, 0], v[0].mean(0), rtol=1e-5)
    assert not np.allclose(v[0].mean(0), (v[0, :2].mean(0) + v[0, 2:].mean(0)) / 2, rtol=1e-2)


def test_compiled_parts_are_kernels(tmp_path: Path) -> None:
    """Each part is one dispatch, whose kernel gives maximum and sum; the scores are computed by nothing else."""
    spec = dataclasses.replace(BY_NAME["causal"].spec, Sq=64, Skv=48)
    new, _ = rewrite(model_of(spec), split_keys=2)
    assert [set(s.spec.stats) for s in explain(new).sites] == [{"max", "sum"}] * 2
    output = tmp_path / "parts.vmfb"
    done = compile_model(new, output, "cpu-host")
    assert [(s.fused, s.dispatches) for s in done.sites] == [(True, 1)] * 2 and not done.misses
    assert 4 * 2 * 2 * 64 * 24 not in [b.bytes for b in done.inspection.buffers]  # of scores
    operands = draw_operands(spec, 0)
    assert not expect(spec, operands).compare(load_module(output)(*operands)[0]).problem


@pytest.mark.parametrize("read", ["sum", "max and sum", "log of the sum"])
def test_sums_that_a_model_reads_are_results(read: str) -> None:
    g = Site()
    s = g.masked(g.keep(2, 1, 5, 7))
    e, top = g.exp(s)
    total = g.reduce("ReduceSum", e)
    outs = {g.times_v(g.op("Div", e, total)): ([2, 3, 5, 6], T.FLOAT)}
    if read == "log of the sum":
        outs[g.op("Add", g.op("Log", total), top)] = ([2, 3, 5, 1], T.FLOAT)
    else:
        outs |= {total: ([2, 3, 5, 1], T.FLOAT)} | ({top: ([2, 3, 5, 1], T.FLOAT)} if read != "sum" else {})
    model = g.model(outs)
    (site,) = explain(model).sites
    assert set(site.spec.stats) == ({"sum"} if read == "sum" else {"max", "sum"})
    new, _ = rewrite(model)
    inputs = feeds(model, 1)
    for want, have in zip(run(model, inputs), run(new, inputs), strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-5, atol=2e-6)


def test_the_sum_of_a_row() -> None:
    spec = AttentionSpec("f32", 1, 1, 2, 3, 1, 1, masks=(BoolMask((2, 3)),), empty_row="zero", stats=("sum",))
    q, k, v = np.ones((1, 2, 1)), np.array([0.0, 1.0, 2.0]).reshape(1, 3, 1), np.ones((1, 3, 1))
    keep = np.array([[True, True, False], [False, False, False]])
    made = statistic(spec, "sum", q, k, v, keep)
    np.testing.assert_allclose(made, [[1 + np.exp(-1.0), 0.0]])
    assert loop_of(spec).one_walk.correction is not None


def test_chosen_sites_alone() -> None:
    g = Site()
    first = g.times_v(g.softmax(g.score()))
    second = g.times_v(g.softmax(g.masked(g.keep(2, 1, 5, 7))))
    model = g.model({first: ([2, 3, 5, 6], T.FLOAT), second: ([2, 3, 5, 6], T.FLOAT)})
    names = [s.name for s in explain(model).sites]
    new, report = rewrite(model, split_keys=2, sites=[names[1]])
    assert [s.parts for s in report.sites] == [1, 2] and len(explain(new).sites) == 3
    with pytest.raises(ValueError, match="no site is called 'x'"):
        rewrite(model, split_keys=2, sites=["x"])
    with pytest.raises(ValueError, match="decomposed form alone"):
        rewrite(model, "blocked", split_keys=2)
    with pytest.raises(ValueError, match="1 part or more"):
        rewrite(model, split_keys=0)
