"""Two results against each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_fa.iree.unsigned_results import of_type
from onnx_fa.verifier.inputs import Array

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Check:
    """One comparison. `error` is None when it could not be made; then `note` says why. `ok` is None in that case, and where nothing
    is judged."""

    inputs: str
    what: str
    against: str
    error: float | None
    allowed: float | None
    ok: bool | None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: an error that is not finite is written as a string."""
        data: dict[str, Any] = dict(vars(self))
        if self.error is not None and not np.isfinite(self.error):
            data["error"] = str(self.error)
        return data


def as_declared(result: Array, dtype: np.dtype[Any]) -> Array:
    """A result of IREE's runtime, which has no unsigned integers and no bf16, as the type that the model declares."""
    return of_type(result, dtype) if result.dtype.itemsize == dtype.itemsize else result


def compare_outputs(inputs: str, what: str, against: str, got: Array, want: Array, allowed: float) -> Check:
    """Largest difference over largest magnitude; NaN and infinity must be at the same places."""
    if got.shape != want.shape:
        return Check(inputs, what, against, np.inf, allowed, False, f"shape {got.shape}, not {want.shape}")
    if want.dtype.kind in "biu":
        wrong = float(np.mean(got != want)) if want.size else 0.0
        return Check(inputs, what, against, wrong, 0.0, wrong == 0.0, "share of elements that differ")
    a, b = got.astype(np.float64), want.astype(np.float64)
    if (np.isnan(a) != np.isnan(b)).any():
        places = f"{np.isnan(a).sum()} NaN, the original has {np.isnan(b).sum()} (or elsewhere)"
        return Check(inputs, what, against, np.inf, allowed, False, places)
    if not np.array_equal(a[np.isinf(a)], b[np.isinf(a)]) or (np.isinf(a) != np.isinf(b)).any():
        return Check(inputs, what, against, np.inf, allowed, False, "infinities differ")
    known = np.isfinite(b)
    scale = float(np.max(np.abs(b[known]), initial=0.0)) or 1.0
    error = float(np.max(np.abs(a[known] - b[known]), initial=0.0)) / scale
    note = "no finite value to compare" if want.size and not known.any() else ""
    return Check(inputs, what, against, error, allowed, error <= allowed, note)


def norm_error(got: Array, want: F64, free: F64 | None = None) -> float:
    """2-norm of the difference over the 2-norm of `want`, over what is not NaN; inf when shapes or NaN places
    differ. A difference of up to `free` counts as none."""
    if got.shape != want.shape or (np.isnan(got.astype(np.float64)) != np.isnan(want)).any():
        return float("inf")
    known = ~np.isnan(want)
    off = np.abs(got.astype(np.float64) - want)[known]
    if free is not None:
        off = np.maximum(off - free[known], 0.0)
    return float(np.linalg.norm(off)) / (float(np.linalg.norm(want[known])) or 1.0)
