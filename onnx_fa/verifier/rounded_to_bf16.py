"""A compiled model of bf16 against an original in f32, beside what roundings to bf16 do to the original.

Two correct computations of a deep model in bf16 lie apart as far as its roundings move it, as behind any other rounding: a result
may be off by SPREAD times what they move in onnxruntime, and never by more than CAP times the tolerance of all models.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onnx_fa.verifier.comparisons import Check, compare_outputs
from onnx_fa.verifier.inputs import Array
from onnx_fa.verifier.rounded_activations import SPREAD

CAP = 10.0
"""As for a site whose original is less exact than its tolerance."""
MOVED = "roundings to bfloat16 after every operator move onnxruntime's own result by"


def judge_bf16(found: Check, exact: Array, rounded: Array) -> Check:
    """`found` is the check of a result against the original in f32, `exact`; `rounded` is what the original makes where the result
    of every operator is rounded. That check where it is ok, else one that is held to what rounding does."""
    moved = compare_outputs("", "", "", rounded, exact, 0.0).error
    if found.ok or found.allowed is None or found.error is None or moved is None or not np.isfinite(moved):
        return found
    most = max(found.allowed, min(SPREAD * moved, CAP * found.allowed))
    note = "; ".join([found.note] * bool(found.note) + [f"{MOVED} {moved:.1e}"])
    return replace(found, allowed=most, ok=found.error <= most, note=note)
