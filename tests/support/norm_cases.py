"""Norm sites: one table for the interpreter and the compiler."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from onnx_fa.spec.norm import NormSpec

NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}

CASES: dict[str, NormSpec] = {
    "layer": NormSpec((2, 9), 64, "f32", "f32", 1e-5, True, "f32", "f32"),
    "layer_half": NormSpec((7,), 96, "f16", "f16", 1e-5, True, "f16", "f16"),
    "odd": NormSpec((5,), 77, "f32", "f32", 1e-12, True, "f32", "f32"),
    "odd_half": NormSpec((5,), 53, "f16", "f16", 1e-5, True, "f16"),
    "bare": NormSpec((3,), 40, "f32", "f32", 1e-5),
    "rms": NormSpec((11,), 64, "f32", "f32", 1e-6, False, "f32"),
    "rms_half": NormSpec((1, 4), 100, "f16", "f16", 1e-6, False, "f16"),
    "rms_widened": NormSpec((6,), 64, "f16", "f32", 1e-6, False, "f32"),
    "narrowed": NormSpec((6,), 48, "f32", "f16", 1e-5, True, "f32", "f32"),
    "shift": NormSpec((6,), 48, "f32", "f32", 1e-5, True, "", "f32"),
    "sum": NormSpec((2, 5), 80, "f16", "f16", 1e-5, True, "f16", "f16", True, True),
    "sum_unread": NormSpec((2, 5), 80, "f32", "f32", 1e-5, False, "f32", "", True),
    "dynamic": NormSpec(("b", "s"), 72, "f16", "f16", 1e-5, True, "f16", "f16"),
    "dynamic_sum": NormSpec(("b", 1, "s"), 64, "f32", "f32", 1e-5, False, "f32", "", True, True),
    "bfloat": NormSpec((9,), 64, "bf16", "bf16", 1e-5, True, "bf16", "bf16"),
    "one_number": NormSpec((4,), 1, "f32", "f32", 1e-5, True, "f32", "f32"),
}
SIZES = ({"b": 1, "s": 1}, {"b": 2, "s": 7})


def bound(spec: NormSpec, sizes: dict[str, int]) -> tuple[int, ...]:
    """The dims of x before the last, all known."""
    return tuple(d if isinstance(d, int) else sizes[d] for d in spec.lead)


def draw(spec: NormSpec, lead: tuple[int, ...], size: float = 1.0, shift: float = 0.5) -> list[npt.NDArray[Any]]:
    """Operands; numbers of x of about that size, around a shift of as many times it."""
    rng, found = np.random.default_rng(0), []
    for name, shape, dtype in spec.operands:
        own = (*lead, spec.N) if len(shape) > 1 else shape
        numbers = rng.standard_normal(tuple(d for d in own if isinstance(d, int)))
        if name in ("x", "skip"):
            numbers = (numbers + shift) * size
        found.append(numbers.astype(NUMPY[dtype]))
    return found
