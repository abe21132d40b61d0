"""How far the numbers of a linear site may be from the float64 reference, and whether they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_fa.spec.accuracy import Comparison
from onnx_fa.spec.expr import Apply, parts
from onnx_fa.spec.linear import LinearSpec, multiply

UNIT = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
"""Of rounding to nearest, relatively."""


def tolerance(spec: LinearSpec) -> float:
    """Largest relative error (2-norm) for operands without a sign in common. Roundings of a sum of K products of such numbers add
    up as the steps of a random walk (Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019), to sqrt(K)
    units of f32; each op behind it may round once more, and in a shorter type the result of each does, which adds up likewise."""
    ops = 1 + sum(isinstance(e, Apply) for e in parts(spec.then))
    longer = UNIT["f32"] * (ops + math.sqrt(spec.K))
    return longer if spec.result_dtype == "f32" else longer + math.sqrt(ops) * UNIT[spec.result_dtype]


@dataclass(frozen=True)
class LinearExpected:
    """What the reference says of a spec's operands."""

    spec: LinearSpec
    wanted: npt.NDArray[np.float64]

    def compare(self, result: npt.NDArray[Any]) -> Comparison:
        """A result (*lead, N). NaN and infinities must be the reference's, in the same places."""
        want, allowed, rows = self.wanted, tolerance(self.spec), self.spec.rows or 0
        if result.shape != want.shape:
            return Comparison(math.inf, allowed, 0, rows, f"shape {result.shape}, not {want.shape}")
        got = np.asarray(result, np.float64)
        known = np.isfinite(want)
        if not np.array_equal(got[~known], want[~known], equal_nan=True):
            return Comparison(math.inf, allowed, rows, rows, "numbers that are not finite are not the reference's")
        with np.errstate(invalid="ignore"):
            off = np.linalg.norm(got[known] - want[known])
        error = float(off / (np.linalg.norm(want[known]) or 1.0))
        bad = not error <= allowed  # also where it is NaN
        return Comparison(
            error, allowed, rows, rows, f"relative error {error:.2e}, allowed {allowed:.2e}" if bad else ""
        )


def expect_linear(spec: LinearSpec, operands: Sequence[npt.NDArray[Any]]) -> LinearExpected:
    """The reference of a spec without symbols."""
    with np.errstate(all="ignore"):
        return LinearExpected(spec, multiply(spec, operands))
