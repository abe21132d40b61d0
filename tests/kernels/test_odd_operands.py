"""What the comparison of kernels with infinities and NaN lets through, and what it must not."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from onnx_fa.spec.attention import AttentionSpec, EmptyRow
from onnx_fa.spec.reference import attention, statistic
from onnx_fa.spec.terms import AddMask, BoolMask, Causal, Rounding, TensorArg
from tests.support.cases import FLOAT_MIN, draw_operands
from tests.support.kernel_harness import mismatch
from tests.support.odd_operands import comparable, rounded_away

BASE = AttentionSpec("f32", 2, 2, 6, 7, 8, 8, scale=0.3)
LAST = 6  # the key that with Causal(1) only the last query sees


def _problem(spec: AttentionSpec, operands: list[Any], *results: Any) -> str | None:
    return mismatch(*comparable(spec, operands, [np.asarray(x, np.float32) for x in results]))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("empty", ["nan", "zero", "guarded"])
@pytest.mark.parametrize("fill", [-np.inf, FLOAT_MIN])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bias_behind_a_mask(fill: float, empty: EmptyRow, bad: float) -> None:
    """Of each row: read or not read, and nothing else. Where the mask does not hide the key, it is read."""
    spec = dataclasses.replace(BASE, masks=(Causal(1, fill), AddMask((7,))), empty_row=empty, stats=("lse",))
    operands = draw_operands(spec, 0)
    without, s0 = attention(spec, *operands), statistic(spec, "lse", *operands)
    operands[3][LAST] = bad
    read, s1 = attention(spec, *operands), statistic(spec, "lse", *operands)
    assert (np.isnan(read) | (read == 0)).all()
    assert _problem(spec, operands, read, s1) is None
    half, s2 = read.copy(), s1.copy()
    half[:, :3], s2[:, :3] = without[:, :3], s0[:, :3]
    assert _problem(spec, operands, half, s2) is None
    half[0, 1] *= 1.001
    assert "relative error" in str(_problem(spec, operands, half, s2))
    seen, s3 = read.copy(), s1.copy()
    seen[0, -1], s3[0, -1] = without[0, -1], s0[0, -1]
    assert _problem(spec, operands, seen, s3)
    before = dataclasses.replace(spec, masks=spec.masks[::-1])
    assert _problem(before, operands, read, s1), "a mask behind it takes the NaN out"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("value", [0.5, np.inf])
def test_a_bias_behind_a_mask_before_a_rounding(bad: float, value: float) -> None:
    """A NaN probability is rounded to zero: such a row has read the bias too, and one of the other keys has not."""
    spec = dataclasses.replace(BASE, masks=(Causal(1), AddMask((7,))), rounding=Rounding(1 / 255))
    operands = draw_operands(spec, 0)
    operands[2][:, 0, 0] = value
    without = attention(spec, *operands)
    operands[3][LAST] = bad
    read = attention(spec, *operands)
    assert not read[..., 1:].any() and (np.isnan(read[..., 0]) == np.isinf(value)).all()
    for rows, right in ((0, True), (3, True), (5, True), (6, False)):
        half = read.copy()
        half[:, :rows] = without[:, :rows]
        assert (_problem(spec, operands, half) is None) == right
    half = without.copy()
    half[:, -1] = read[:, -1]
    half[0, 1] = read[0, 1]
    assert _problem(spec, operands, half) is None
    half[0, 1, 1:] = without[0, 1, 1:] / 2
    assert _problem(spec, operands, half)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(bad: float) -> None:
    """Of a key that a row sees they show, of a masked one they are NaN or not read."""
    spec = dataclasses.replace(BASE, masks=(Causal(1),))
    operands = draw_operands(spec, 0)
    clean = attention(spec, *operands)
    operands[2][:, LAST, 2] = bad
    want = attention(spec, *operands)
    assert np.isnan(want[:, :-1, 2]).all() and not np.isfinite(want[:, -1, 2]).any()
    skipped = clean.copy()
    skipped[:, -1] = want[:, -1]
    assert _problem(spec, operands, want) is None and _problem(spec, operands, skipped) is None
    for wrong in (clean, np.where(np.isnan(skipped), -np.inf, np.inf)):
        assert _problem(spec, operands, wrong)
    skipped[0, 0, 2] += 1
    assert "NaN" in str(_problem(spec, operands, skipped))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_numbers_beside_values_that_are_not_finite() -> None:
    """They may be as far off as numbers of any other place: large scores are rounded, and a probability at a tie either way."""
    spec = dataclasses.replace(BASE, masks=(Causal(1),))
    operands = draw_operands(spec, 0)
    operands[0] *= 100
    near = attention(spec, *operands) * (1 + 1e-5)
    operands[2][:, LAST, 2] = np.nan
    near[:, -1, 2] = np.nan
    assert _problem(spec, operands, near) is None
    near[:, :-1, 2] *= 1.001
    assert "NaN" in str(_problem(spec, operands, near))
    spec = dataclasses.replace(spec, rounding=Rounding(1 / 255))
    operands = draw_operands(spec, 0)
    operands[0][:, 0] = 0  # so that the two keys which the first query sees have 127.5 of 255 steps each
    tie = attention(spec, *operands)
    operands[2][:, LAST, 2] = np.nan
    tie[:, -1, 2] = np.nan
    for steps, right in ((127, True), (128, True), (126, False)):
        tie[:, 0] = steps / 255 * operands[2][:, :2].sum(axis=1)
        assert (_problem(spec, operands, tie) is None) == right


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("sink", "right"), [(150.0, True), (60.0, False)])
def test_zeros_beside_values_that_are_not_finite(sink: float, right: bool) -> None:
    """Where a sink takes all, the other keys' numbers may be zero beside a NaN that is not read, as everywhere."""
    spec = dataclasses.replace(BASE, masks=(Causal(1),), sink=TensorArg((1, 1)))
    operands = draw_operands(spec, 0)
    operands[3][...] = sink
    made = attention(spec, *operands)
    operands[2][:, LAST, 2] = np.nan
    made[:, -1, 2], made[:, :-1, 2] = np.nan, 0.0
    compared = comparable(spec, operands, [made.astype(np.float32)])
    assert rounded_away(*compared) == right


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("rounding", [None, Rounding(1 / 256)])
def test_rows_whose_keys_are_all_infinitely_low(rounding: Rounding | None) -> None:
    """Where the mask's fill is finite, the masked keys next to the others, or all of them, share such a row; others do not."""
    spec = dataclasses.replace(BASE, masks=(Causal(1, FLOAT_MIN),), empty_row="mean", rounding=rounding)
    operands = draw_operands(spec, 0)
    operands[0][0, 1], operands[1][0, :3] = [-np.inf, *[0] * 7], 1.0  # it sees keys 0 to 2
    want = attention(spec, *operands)
    np.testing.assert_allclose(want[0, 1], operands[2][0, 3:].sum(axis=0) / 4, rtol=1e-6)
    for keys, right in ((slice(3, 7), True), (slice(3, 5), True), (slice(4, 6), False), (slice(2, 4), False)):
        some = want.copy()
        some[0, 1] = operands[2][0, keys].mean(axis=0)
        assert (_problem(spec, operands, some) is None) == right
        some[0, 0] *= 1.001
        assert _problem(spec, operands, some), "a row that sees a key"
    masked = dataclasses.replace(spec, masks=(Causal(1, FLOAT_MIN), BoolMask((7,), FLOAT_MIN)))
    operands.insert(3, np.ones(7, np.bool_))
    some = attention(masked, *operands)
    assert _problem(masked, operands, some) is None
    some[0, 1] = operands[2][0, 3:5].mean(axis=0)
    assert _problem(masked, operands, some), "such a kernel goes back for what it left out"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("distance", "may_be_nan"), [(80.0, False), (95.0, True)])
def test_probabilities_below_the_least_float(distance: float, may_be_nan: bool) -> None:
    spec = dataclasses.replace(BASE, scale=1.0)
    operands = [np.zeros_like(x) for x in draw_operands(spec, 0)]
    operands[0][..., 0], operands[1][:, LAST, 0], operands[2][:, LAST, 2] = 1.0, -distance, np.inf
    want = attention(spec, *operands)
    assert np.isposinf(want[..., 2]).all() and _problem(spec, operands, want) is None
    nan, number, negative = (np.where(np.isinf(want), x, want) for x in (np.nan, 0.0, -np.inf))
    assert (_problem(spec, operands, nan) is None) == may_be_nan
    assert _problem(spec, operands, number) and _problem(spec, operands, negative)


def test_terms_that_cancel() -> None:
    """Between two biases scores are larger than behind them, and rounded so much the more; other errors are none of rounding's."""
    spec = dataclasses.replace(BASE, masks=(AddMask((7,)), AddMask((7,))), stats=("lse",))
    operands = draw_operands(spec, 0)
    operands[3][...], operands[4][...] = 1000.25, -1000.0
    want = [attention(spec, *operands), statistic(spec, "lse", *operands)]
    scores = np.float32(0.3) * operands[0] @ np.swapaxes(operands[1], -1, -2) + operands[3] + operands[4]
    top = scores.max(-1, keepdims=True)
    p = np.exp(scores - top)
    got = [p / p.sum(-1, keepdims=True) @ operands[2], (top + np.log(p.sum(-1, keepdims=True)))[..., 0]]
    assert all(x.dtype == np.float32 for x in got) and "relative error" in str(mismatch(spec, operands, got))
    assert rounded_away(spec, operands, got) and rounded_away(spec, operands, want)
    for i, (x, y) in enumerate(zip(got, want, strict=True)):
        assert not rounded_away(spec, operands, [y + 10 * (x - y) if n == i else w for n, w in enumerate(want)])
        unknown = [
            np.where(np.arange(x.size).reshape(x.shape) == 3, np.nan, z) if n == i else z for n, z in enumerate(got)
        ]
        assert not rounded_away(spec, operands, unknown)


def test_rows_that_a_sink_takes() -> None:
    """Where a sink takes all, the numbers of the reference are smaller than f32 has any."""
    spec = dataclasses.replace(BASE, sink=TensorArg((1, 1)))
    operands = draw_operands(spec, 0)
    for sink, right in ((150.0, True), (60.0, False)):
        operands[3][...] = sink
        none = np.zeros(spec.out_shape, np.float32)
        assert mismatch(spec, operands, [none])
        assert rounded_away(spec, operands, [none]) == right
        assert not rounded_away(spec, operands, [none + np.float32(1e-20)])
