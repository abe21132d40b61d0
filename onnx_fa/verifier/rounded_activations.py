"""A compiled model against an original that lets products with weights of few bits round their activations (accuracy_level 4).

What does not round is held to the original at level 0, and what rounds to the original as given. Behind a rounding a difference of
1e-7 may be one of a whole step, so that two correct computations of a deep model lie apart as far as roundings move it: what rounds
may be off by SPREAD times what they move in onnxruntime."""

from __future__ import annotations

from dataclasses import replace

from onnx_fa.verifier.comparisons import Check, compare_outputs
from onnx_fa.verifier.inputs import Array

SPREAD = 2.0
AS_GIVEN = "original as given"
ROUNDS = "rounds activations to 8 bits as the original as given does (accuracy_level 4)"
APART = "roundings of activations to 8 bits (accuracy_level 4) move onnxruntime's own result by"


def judge_rounded(found: Check, got: Array, exact: Array, given: Array) -> Check:
    """`found` is the check of `got` against the original at level 0, `exact`; `given` is what the original as given makes. That
    check where it is ok, else one that is held to what rounding does."""
    if found.ok or found.allowed is None:
        return found
    beside = compare_outputs(found.inputs, found.what, found.against, got, given, found.allowed)
    if beside.ok:
        return replace(beside, note=ROUNDS)
    moved = compare_outputs("", "", "", given, exact, 0.0).error
    if moved is None or found.error is None or not found.error <= SPREAD * moved:
        return found
    return replace(found, allowed=SPREAD * moved, ok=True, note=f"{APART} {moved:.1e}")
