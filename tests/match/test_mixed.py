"""Scores in f32 and V in f16 or bf16: what site is found, that it equals the original and float64 at any size of the scores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from onnx_fa.forms.rewrite import explain, rewrite
from onnx_fa.spec.accuracy import TOLERANCE
from tests.match.test_match_ops import run
from tests.support.spellings_mixed import MATCH_MIXED, NARROW_MIXED, NOT_MIXED, WIDE_MIXED, bf16, feeds, zeros_added

Maker = Callable[[], onnx.ModelProto]
BOTH = MATCH_MIXED | WIDE_MIXED


@pytest.mark.parametrize("name", BOTH)
def test_one_site_of_one_type(name: str) -> None:
    report = explain(BOTH[name]())
    (site,) = report.sites
    assert not report.misses
    assert set(site.spec.operand_dtypes[:3]) == {"f16" if name in MATCH_MIXED else "f32"}


@pytest.mark.parametrize("optimise", [False, True])
@pytest.mark.parametrize("name", NARROW_MIXED)
def test_narrow_products(name: str, optimise: bool) -> None:
    """A site of f32. The model rounds scores to f16, as attention of f16 does, and overflows where they are beyond it."""
    model = NARROW_MIXED[name]()
    for empty in (False, True):
        given = feeds(model, 3, empty_rows=empty)
        (want,) = (x.astype(np.float64) for x in run(model, given, optimise=optimise))
        for form in ("decomposed", "blocked"):
            new, report = rewrite(model, form)  # type: ignore[call-overload]
            assert [s.spec.dtype for s in report.sites] == ["f32"] and not report.misses
            (have,) = (x.astype(np.float64) for x in run(new, given, optimise=optimise))
            assert (np.isnan(want) == np.isnan(have)).all()
            wrong, norm = (float(np.linalg.norm(np.nan_to_num(x))) for x in (want - have, want))
            assert wrong <= TOLERANCE["f16"] * norm


@pytest.mark.parametrize("size", [1.0, 30.0, 3e3])
def test_narrow_products_equal_float64(size: float) -> None:
    """In f32's tolerance, and what its rounding of large scores moves probabilities by: nothing in between is f16."""
    model = NARROW_MIXED["the product is cast up, V is f32, heads are repeated"]()
    given = feeds(model, 5, size=size)
    q, k, v = (given[n].astype(np.float64) for n in ("q", "k", "wide_v"))
    s = np.float32(8**-0.5).astype(np.float64) * q @ np.repeat(k, 2, axis=1).swapaxes(-1, -2)
    e = np.exp(s - s.max(-1, keepdims=True))
    want, bound = e / e.sum(-1, keepdims=True) @ v, TOLERANCE["f32"] + float(np.abs(s).max()) * 2**-23
    for form in ("decomposed", "blocked"):
        (have,) = run(rewrite(model, form)[0], given)  # type: ignore[call-overload]
        assert np.linalg.norm(have - want) <= bound * np.linalg.norm(want)


def test_heads_are_shared_in_front_of_the_cast() -> None:
    for name in ("heads repeated before the cast", "heads repeated after the cast"):
        assert explain(MATCH_MIXED[name]()).sites[0].spec.group == 2


def test_batch_rows_that_might_be_broadcast() -> None:
    """Q and K of free dims are expanded, and are still known to stand in front of a cast, or behind none."""
    model = WIDE_MIXED["only Q is cast up"]()
    for i, value in enumerate(model.graph.input):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim[:3]):
            if (i, axis) != (0, 1):
                dim.dim_param = f"s{i}_{axis}"
    new, report = rewrite(model)
    assert report.sites[0].spec.dtype == "f32"
    given = feeds(WIDE_MIXED["only Q is cast up"](), 2)
    (want,), (have,) = run(model, given), run(new, given)
    np.testing.assert_allclose(have.astype(np.float64), want.astype(np.float64), rtol=4e-3, atol=4e-3)


def test_zeros_are_no_bias() -> None:
    assert not explain(zeros_added()).sites[0].spec.masks


@pytest.mark.parametrize(("number", "factor"), [(0.0, np.inf), (1.0, 2.0)])
def test_other_numbers_are_not_left_out(number: float, factor: float) -> None:
    """Nor zero times infinity, which is NaN."""
    model = zeros_added()
    for init, x in zip(model.graph.initializer, (number, None, factor), strict=True):
        if x is not None:
            init.CopyFrom(onnx.numpy_helper.from_array(np.float32(x), init.name))
    given = feeds(model, 1)
    new, report = rewrite(model)
    assert report.sites[0].spec.masks
    (want,), (have,) = run(model, given), run(new, given)
    np.testing.assert_allclose(have.astype(np.float64), want.astype(np.float64), rtol=4e-3, atol=4e-3)


def test_bf16_reads_q_and_k_in_front_of_the_casts() -> None:
    new, report = rewrite(bf16(), "decomposed")
    assert report.sites[0].spec.operand_dtypes == ("bf16", "bf16", "bf16", "f32")
    onnx.checker.check_model(new, full_check=True)


@pytest.mark.parametrize("optimise", [False, True])
@pytest.mark.parametrize("size", [1.0, 30.0, 3e3])
@pytest.mark.parametrize("name", BOTH)
def test_equals_the_original(name: str, size: float, optimise: bool) -> None:
    """Scores of 3e3 squared are beyond what f16 holds: they were never in f16."""
    model = BOTH[name]()
    for empty in (False, True):
        given = feeds(model, 3, empty_rows=empty, size=size)
        (want,) = (x.astype(np.float64) for x in run(model, given, optimise=optimise))
        for form in ("decomposed", "blocked"):
            new, report = rewrite(model, form)  # type: ignore[call-overload]
            assert report.sites and not report.misses
            (have,) = (x.astype(np.float64) for x in run(new, given, optimise=optimise))
            assert (np.isnan(want) == np.isnan(have)).all()
            wrong, norm = (float(np.linalg.norm(np.nan_to_num(x))) for x in (want - have, want))
            assert wrong <= TOLERANCE["f16"] * norm


@pytest.mark.parametrize("size", [1.0, 30.0, 3e3])
def test_equals_float64(size: float) -> None:
    model = MATCH_MIXED["cast before the products"]()
    given = feeds(model, 5, size=size)
    q, k, v = (given[n].astype(np.float64) for n in "qkv")
    s = np.float32(8**-0.5).astype(np.float64) * q @ k.swapaxes(-1, -2)
    e = np.exp(s - s.max(-1, keepdims=True))
    want = e / e.sum(-1, keepdims=True) @ v
    for form in ("decomposed", "blocked"):
        (have,) = run(rewrite(model, form)[0], given)  # type: ignore[call-overload]
        assert np.linalg.norm(have - want) <= TOLERANCE["f16"] * np.linalg.norm(want)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("operand", "qkv")
def test_infinities_and_nan_stay(operand: str, bad: float) -> None:
    for name in ("cast before the products", "V is cast up, and the result down"):
        model = BOTH[name]()
        given = feeds(model, 7)
        given[operand][0, 1, 2, 3] = bad
        (want,), (have,) = run(model, given), run(rewrite(model)[0], given)
        np.testing.assert_allclose(have.astype(np.float64), want.astype(np.float64), rtol=4e-3, atol=4e-3)


def test_results_that_f16_does_not_hold_are_infinite() -> None:
    """A probability of f16 that is not rounded down, times the largest number, for a site of either type."""
    for name in ("cast before the products", "only K is cast up"):
        model = BOTH[name]()
        given = feeds(model, 9)
        given["v"][:] = np.finfo(np.float16).max
        given["v"][0, 0] = np.inf
        (want,), (have,) = run(model, given), run(rewrite(model)[0], given)
        assert np.isinf(want[0, 0]).all() and np.isinf(have[0, 0]).all()
        # Probabilities of f16 add up to a little more than one in some rows: those of a rewritten model are not rounded.
        finite = np.isfinite(want[1:])
        np.testing.assert_allclose(have[1:][finite].astype(np.float64), want[1:][finite].astype(np.float64), rtol=2e-3)


def test_the_attention_op_does_not_take_over_scores_in_f32() -> None:
    model = MATCH_MIXED["cast before the products"]()
    model.opset_import[0].version = 23
    _, report = rewrite(model, "attention")
    assert not report.sites and "the model has scores in f32" in report.misses[0].reason


@pytest.mark.parametrize("name", NOT_MIXED)
def test_refused_with_a_reason(name: str) -> None:
    make, reason = NOT_MIXED[name]
    model = make()
    new, report = rewrite(model)
    assert not report.sites and any(reason in miss.reason for miss in report.misses), report.misses
    assert [n.op_type for n in new.graph.node] == [n.op_type for n in model.graph.node]
