"""Rotary embedding (Su et al. 2021, "RoFormer", arXiv:2104.09864) of heads that lie side by side in rows, and the rows of caches
that it may make on the way. With a pair of numbers i and i + D/2 of a head,

y[i] = x[i] cos[i] - x[i + D/2] sin[i],    y[i + D/2] = x[i] sin[i] + x[i + D/2] cos[i]
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_fa.spec.terms import Dim, FloatType


@dataclass(frozen=True)
class KeptHeads:
    """`heads` from column `keys` on, which are rotated, and as many from column `values` on, which are not: they become the last
    rows of two caches (length, B, heads, D)."""

    keys: int
    values: int
    heads: int
    length: Dim


@dataclass(frozen=True)
class RotatedSpec:
    """Of x (B, S, width), with `lead` (B, S), `heads` of D numbers from column `first` on are rotated, by cosines and sines (B, S,
    D / 2), all of type `dtype`. With `kept`, new keys and values of the same rows go into caches.

    Raises ValueError for an odd D, and for columns that x has not."""

    lead: tuple[Dim, Dim]
    width: int
    first: int
    heads: int
    D: int
    dtype: FloatType
    kept: KeptHeads | None = None

    def __post_init__(self) -> None:
        if self.D % 2 or self.D < 2:
            raise ValueError(f"heads of {self.D} numbers have no halves")
        begins = [(self.first, self.heads)]
        if self.kept is not None:
            begins += [(self.kept.keys, self.kept.heads), (self.kept.values, self.kept.heads)]
        if any(first < 0 or many < 1 or first + many * self.D > self.width for first, many in begins):
            raise ValueError(f"{begins} heads of {self.D} numbers in rows of {self.width}")

    @property
    def all_heads(self) -> int:
        """Those of a row that are read."""
        return self.heads + (2 * self.kept.heads if self.kept else 0)

    @property
    def cache_shape(self) -> tuple[Dim, ...]:
        assert self.kept is not None
        return (self.kept.length, self.lead[0], self.kept.heads, self.D)

    @property
    def operand_shapes(self) -> tuple[tuple[Dim, ...], ...]:
        """x, cosines, sines; the caches of keys and of values."""
        table = (*self.lead, self.D // 2)
        return ((*self.lead, self.width), table, table, *([self.cache_shape] * 2 if self.kept else []))

    @property
    def operand_dtypes(self) -> tuple[str, ...]:
        return (self.dtype,) * len(self.operand_shapes)

    def operand_names(self, tensor: str = "") -> list[str]:
        return ["x", "cos", "sin", *(["keys", "values"] if self.kept else [])]

    @property
    def results(self) -> tuple[tuple[tuple[Dim, ...], FloatType], ...]:
        """The rotated heads (B, S, heads * D), and the caches with their new rows."""
        caches = [(self.cache_shape, self.dtype)] * 2 if self.kept else []
        return (((*self.lead, self.heads * self.D), self.dtype), *caches)


def rotated_name(spec: RotatedSpec) -> str:
    """The name of a rotation's function: equal for equal specs."""
    return f"rotate_{hashlib.sha256(repr(spec).encode()).hexdigest()[:10]}"


def rotate(spec: RotatedSpec, operands: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[np.float64]]:
    """The meaning of a spec in float64: its results."""
    x, cos, sin, *caches = (np.asarray(o, np.float64) for o in operands)
    B, S, _ = x.shape

    def heads_at(first: int, many: int) -> npt.NDArray[np.float64]:
        return x[..., first : first + many * spec.D].reshape(B, S, many, spec.D)

    def rotated(heads: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        a, b = np.split(heads, 2, axis=-1)
        c, s = cos[:, :, None], sin[:, :, None]
        return np.concatenate([a * c - b * s, a * s + b * c], axis=-1)

    y = rotated(heads_at(spec.first, spec.heads)).reshape(B, S, -1)
    if spec.kept is None:
        return [y]
    new = rotated(heads_at(spec.kept.keys, spec.kept.heads)), heads_at(spec.kept.values, spec.kept.heads)
    for cache, rows in zip(caches, new, strict=True):
        cache[len(cache) - S :] = rows.transpose(1, 0, 2, 3)
    return [y, *caches]
