"""Layouts that fit no axis: each equals the original in onnxruntime, or is refused and stays as it is."""

from __future__ import annotations

import pytest
from spellings_layout import MATCH, REFUSE, REPEATS, TILED, B, H, feeds
from test_match import check

from onnx_fa.rewriter import explain, rewrite


@pytest.mark.parametrize("name", MATCH)
def test_each_layout_is_matched_and_keeps_its_result(name: str) -> None:
    check(MATCH[name](), inputs=feeds)


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
