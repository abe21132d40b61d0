"""What the comparison of kernels with infinities and NaN lets through, and what it must not."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from onnx_fa.reference import attention, statistic
from onnx_fa.spec import AddMask, AttentionSpec, Causal, EmptyRow
from tests.cases import FLOAT_MIN, draw_operands
from tests.kernel_harness import mismatch
from tests.odd_operands import comparable

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
