"""Layouts that fit no axis: each equals the original in onnxruntime, or is refused and stays as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnx_fa.forms.rewrite import explain, rewrite
from onnx_fa.iree.compile import compile_model
from onnx_fa.iree.run import load_module
from onnx_fa.spec.target import parse_target
from tests.match.test_match import check
from tests.support.ort_run import assert_same, run
from tests.support.spellings_layout import MATCH, REFUSE, REPEATS, TILED, B, H, feeds


@pytest.mark.parametrize("name", MATCH)
def test_each_layout_is_matched_and_keeps_its_result(name: str) -> None:
    check(MATCH[name](), inputs=feeds)


@pytest.mark.parametrize("heads", [1, 3])  # of none onnxruntime makes other sums than ONNX: docs/reference/forms.md
def test_parts_that_heads_share_are_repeated_as_often_as_there_are_heads(heads: int) -> None:
    model = MATCH["parts_of_keys_that_some_heads_share"]()
    rng = np.random.default_rng(0)
    inputs = {
        i.name: rng.standard_normal([d.dim_value or heads for d in i.type.tensor_type.shape.dim]).astype(np.float32)
        for i in model.graph.input
    }
    assert_same(run(model, inputs), run(rewrite(model)[0], inputs))


@pytest.mark.parametrize("name", REFUSE)
def test_what_is_no_attention_is_left_alone(name: str) -> None:
    model = REFUSE[name]()
    report = explain(model)
    assert not report.sites and report.misses
    new, _ = rewrite(model)
    assert [n.op_type for n in new.graph.node] == [n.op_type for n in model.graph.node]


@pytest.mark.parametrize("how", REPEATS)
def test_repeats_are_groups_of_heads(how: str) -> None:
    (site,) = explain(MATCH[f"repeat_{how}"]()).sites
    assert (site.spec.batch, site.spec.Hq, site.spec.Hkv) == ((B,), H, 1 if how.endswith("mqa") else 2)


@pytest.mark.parametrize("how", TILED)
def test_repeats_in_another_order_are_not(how: str) -> None:
    (site,) = explain(MATCH[f"repeat_{how}"]()).sites
    assert (site.spec.Hq, site.spec.Hkv) == (H, H)


@pytest.mark.slow
def test_transposed_scores_cut_along_the_keys_are_compiled_to_one_dispatch(tmp_path: Path) -> None:
    model = MATCH["cut_in_three_upright"]()
    report = compile_model(model, tmp_path / "m.vmfb", parse_target("cpu-host"))
    (site,) = report.sites
    assert (site.fused, site.dispatches, report.misses, report.inspection.buffers) == (True, 1, (), ())
    given = feeds(model, empty_rows=True)
    have = load_module(tmp_path / "m.vmfb")(*(given[i.name] for i in model.graph.input))
    assert_same(run(model, given), [np.asarray(x) for x in have], 2e-5)
