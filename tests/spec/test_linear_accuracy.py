"""What a linear site's numbers may be off, and the operands that they are held to."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from onnx_fa.spec.linear import LinearSpec, multiply
from onnx_fa.spec.linear_accuracy import expect_linear, tolerance
from onnx_fa.spec.linear_cases import LINEAR_CASES, LinearCase, draw_linear, packed

SMALL = LinearSpec((6,), 32, 48, "f32")


@pytest.mark.parametrize("adversarial", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_products_of_numpy_are_right(dtype: str, adversarial: bool) -> None:
    spec = dataclasses.replace(SMALL, dtype=dtype)  # type: ignore[arg-type]
    x, w = operands = draw_linear(spec, 0, adversarial=adversarial)
    with np.errstate(invalid="ignore"):
        y = (x.astype(np.float32) @ w.astype(np.float32)).astype(x.dtype)
    seen = expect_linear(spec, operands).compare(y)
    assert not seen.problem and 0 < seen.error <= seen.allowed


def test_what_is_wrong() -> None:
    operands = draw_linear(SMALL, 0, adversarial=True)
    expected = expect_linear(SMALL, operands)
    with np.errstate(invalid="ignore"):
        y = multiply(SMALL, operands)
    assert expected.compare(y).problem == "" and np.isinf(y[-1]).all() and not y[0].any()
    assert "relative error" in expected.compare(np.where(np.isinf(y), y, y * 1.00001)).problem
    assert "not finite" in expected.compare(np.where(np.isinf(y), np.nan, y)).problem
    assert "not finite" in expected.compare(-y).problem
    assert "shape" in expected.compare(y[:, :-1]).problem
    lost = y.copy()
    lost[2, 3] = np.nan
    assert "relative error nan" in expected.compare(lost).problem


def test_tolerance() -> None:
    """A longer sum may be off more, a shorter type by one rounding for each op."""
    assert tolerance(SMALL) < tolerance(dataclasses.replace(SMALL, K=64)) < 1e-6
    assert 2**-8 < tolerance(dataclasses.replace(SMALL, dtype="bf16")) < 2**-7


@pytest.mark.parametrize("item", LINEAR_CASES, ids=lambda c: c.name)
def test_operands(item: LinearCase) -> None:
    """Adversarial operands differ in x alone; panels hold the same weight."""
    spec = dataclasses.replace(item.bound()[0], lead=(4,), tensors=(), then=SMALL.then)
    plain, odd = (draw_linear(spec, 0, adversarial=a) for a in (False, True))
    assert not np.array_equal(plain[0], odd[0]) and np.array_equal(plain[1], odd[1])
    assert item.title and len({c.name for c in LINEAR_CASES}) == len(LINEAR_CASES)
    if spec.bits is not None:  # integers of few bits stand in rows, not in panels
        return
    own = dataclasses.replace(spec, panel=48)
    assert np.array_equal(multiply(own, packed(spec, plain, 48)), multiply(spec, plain))
