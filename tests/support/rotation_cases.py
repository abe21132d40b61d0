"""Rotations of rows and what they append: one table for the interpreter and the compilers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.rotated import KeptHeads, RotatedSpec
from onnx_fa.spec.terms import Dim

CASES: dict[str, RotatedSpec] = {
    "alone": RotatedSpec((1, 5), 48, 0, 3, 16, "f32"),
    "columns": RotatedSpec((2, 3), 80, 16, 2, 24, "f16"),
    "free": RotatedSpec((1, "s"), 64, 32, 1, 32, "f32"),
    "token": RotatedSpec((1, 1), 128, 0, 4, 16, "f32", KeptHeads(64, 96, 2, "t")),
    "cache": RotatedSpec((2, 3), 132, 24, 3, 12, "f16", KeptHeads(60, 96, 2, 7)),
    "prompt": RotatedSpec((2, "s"), 64, 32, 2, 8, "f32", KeptHeads(16, 0, 2, "t")),
}
SIZES = {"s": 5, "t": 9}


def sizes_of(shape: tuple[Dim, ...]) -> tuple[int, ...]:
    return tuple(SIZES[d] if isinstance(d, str) else d for d in shape)


def draw(spec: RotatedSpec) -> list[npt.NDArray[Any]]:
    """Operands; an infinity that a sine of zero makes no number of is among them."""
    rng = np.random.default_rng(0)
    found = [rng.standard_normal(sizes_of(shape)).astype(NUMPY[spec.dtype]) for shape in spec.operand_shapes]
    found[0][0, 0, spec.first], found[2][0, 0, 0] = np.inf, 0
    return found
