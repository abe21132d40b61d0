"""A linear site: a product of rows of the run with a weight of the network, and its bias.

y[m, n] = sum over k of x[m, k] w[k, n] + b[n]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from onnx_fa.spec.terms import Dim, DType

Zeros = Literal["", "packed", "f32", "f16", "bf16"]


@dataclass(frozen=True)
class Bits:
    """A weight of so many `bits`, N rows of K numbers in blocks: (number - zero point) * scale. A byte holds 8 / bits numbers,
    the lowest bits first. `scales` is the element type of the scales (N, blocks); `zeros` that of the zero points, "packed" where
    they stand in bytes like the weight, "" where all are half of 2^bits."""

    bits: int
    block: int
    scales: DType
    zeros: Zeros = ""

    @property
    def places(self) -> int:
        """Numbers in a byte."""
        return 8 // self.bits

    @property
    def middle(self) -> int:
        """The zero point where none is an operand."""
        return 1 << (self.bits - 1)


@dataclass(frozen=True)
class LinearSpec:
    """`lead` are the dims of x (*lead, K) before the last, symbols for those that are known at run time only. The weight is (K,
    N), or (N, K) if `transposed`, of the type of x, or of a few `bits`. `bias`: b (N,) is an operand.

    Raises ValueError for blocks that do not divide K, and bits that are not 2, 4 or 8."""

    lead: tuple[Dim, ...]
    K: int
    N: int
    dtype: DType
    transposed: bool = False
    bits: Bits | None = None
    bias: bool = False

    def __post_init__(self) -> None:
        if self.bits is not None:
            if self.bits.bits not in (2, 4, 8) or self.bits.block % self.bits.places or self.K % self.bits.block:
                raise ValueError(f"a weight of {self.bits} of {self.K} numbers a row")
            if not self.transposed:
                raise ValueError("a weight of a few bits is stored by rows of N")
        if min(self.K, self.N) < 1:
            raise ValueError(f"a weight of {self.K} x {self.N} numbers")

    @property
    def rows(self) -> int | None:
        """The rows of x; None where they are known at run time only."""
        known = [d for d in self.lead if isinstance(d, int)]
        return math.prod(known) if len(known) == len(self.lead) else None

    @property
    def blocks(self) -> int:
        """Blocks of a row of the weight."""
        assert self.bits is not None
        return self.K // self.bits.block

    @property
    def operand_shapes(self) -> tuple[tuple[Dim, ...], ...]:
        """x, the weight (its bytes, scales and zero points), the bias."""
        found: list[tuple[Dim, ...]] = [(*self.lead, self.K)]
        if self.bits is None:
            found.append((self.N, self.K) if self.transposed else (self.K, self.N))
        else:
            found += [(self.N, self.K // self.bits.places), (self.N, self.blocks)]
            if self.bits.zeros:
                packed = self.bits.zeros == "packed"
                found.append((self.N, -(-self.blocks // self.bits.places) if packed else self.blocks))
        return (*found, (self.N,)) if self.bias else tuple(found)

    @property
    def operand_dtypes(self) -> tuple[str, ...]:
        found: list[str] = [self.dtype]
        if self.bits is None:
            found.append(self.dtype)
        else:
            found += ["u8", self.bits.scales]
            if self.bits.zeros:
                found.append("u8" if self.bits.zeros == "packed" else self.bits.zeros)
        return (*found, self.dtype) if self.bias else tuple(found)

    def operand_names(self, tensor: str = "") -> list[str]:
        names = ["x", "w"]
        if self.bits is not None:
            names += ["scale", *["zero"] * bool(self.bits.zeros)]
        return [*names, *["b"] * self.bias]

    @property
    def results(self) -> tuple[tuple[tuple[Dim, ...], DType], ...]:
        return (((*self.lead, self.N), self.dtype),)


def weight_of(spec: LinearSpec, operands: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
    """The weight (K, N) as numbers."""
    w = operands[1]
    if spec.bits is None:
        return np.asarray(w, np.float64).T if spec.transposed else np.asarray(w, np.float64)
    bits, scales = spec.bits, np.asarray(operands[2], np.float64)
    zero: npt.NDArray[np.float64] = np.full(scales.shape, float(bits.middle))
    if bits.zeros:
        zero = (
            unpacked(operands[3], bits)[:, : spec.blocks]
            if bits.zeros == "packed"
            else np.asarray(operands[3], np.float64)
        )
    numbers = unpacked(w, bits).reshape(spec.N, spec.blocks, bits.block)
    return ((numbers - zero[..., None]) * scales[..., None]).reshape(spec.N, spec.K).T


def unpacked(data: npt.NDArray[Any], bits: Bits) -> npt.NDArray[np.float64]:
    """The numbers in rows of bytes, as they stand there."""
    shifts = bits.bits * np.arange(bits.places)
    numbers = (data.astype(np.int64)[..., None] & 255) >> shifts & ((1 << bits.bits) - 1)
    return numbers.reshape(data.shape[0], -1).astype(np.float64)


def multiply(spec: LinearSpec, operands: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
    """The meaning of a spec in float64: y (*lead, N)."""
    y = np.asarray(operands[0], np.float64) @ weight_of(spec, operands)
    return y + np.asarray(operands[-1], np.float64) if spec.bias else y
