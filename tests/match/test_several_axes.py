"""Softmaxes over several axes: what the keys and queries of the site are, and why what looks alike is none."""

from __future__ import annotations

import pytest

from onnx_fa.forms.rewrite import explain
from tests.support import spellings_axes as rows
from tests.support.spellings_axes import MATCH, REFUSE, B, H


@pytest.mark.parametrize("name", REFUSE)
def test_what_looks_alike_has_a_miss_that_says_why(name: str) -> None:
    build, why = REFUSE[name]
    report = explain(build())
    assert not report.sites and any(why in m.reason for m in report.misses), report.misses


@pytest.mark.parametrize(
    ("name", "heads", "queries", "keys"),
    [
        ("heads_plain", H, rows.I * rows.J, rows.K * rows.L),
        ("log_sum_exp", B, rows.I * rows.J, rows.K * rows.L),
        ("softmax_of_merged_axes", B, rows.I * rows.J, rows.K * rows.L),
        ("one_axis_of_queries", H, rows.J, rows.K * rows.L),
        ("three_axes", B, rows.I * rows.J * 2, rows.K * rows.L * 3),
    ],
)
def test_keys_and_queries_are_all_of_their_axes(name: str, heads: int, queries: int, keys: int) -> None:
    (site,) = explain(MATCH[name]()).sites
    assert (site.spec.Hq, site.spec.Hkv, site.spec.Sq, site.spec.Skv) == (heads, heads, queries, keys)
    assert not site.spec.masks


def test_a_mask_of_keys_is_one_of_their_merged_axis() -> None:
    (site,) = explain(MATCH["keys_masked"]()).sites
    (mask,) = site.spec.masks
    assert getattr(mask, "shape", None) == (B, 1, rows.K * rows.L)
