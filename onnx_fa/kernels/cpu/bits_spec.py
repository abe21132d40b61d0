"""What a product with a weight of a few bits computes, and its operands.

    y[m, n] = sum over k of x[m, k] * (q[n, k] - zero[n, k / block]) * scale[n, k / block]

A byte of the weight holds P numbers, the lowest bits first, so that place p of byte j is number P j + p of a row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnx_fa.kernels.mlir.operand import ROWS, Operand
from onnx_fa.spec.terms import Dim


class Blocks:
    """What follows for `rows` (None: known at run time only) of K numbers in blocks, and a weight of so many `bits` a number."""

    rows: int | None
    K: int
    block: int
    bits: int

    @property
    def places(self) -> int:
        """Numbers in a byte."""
        return 8 // self.bits

    @property
    def blocks(self) -> int:
        return self.K // self.block

    @property
    def middle(self) -> int:
        """The zero point where none is an operand."""
        return 1 << (self.bits - 1)

    @property
    def lead(self) -> Dim:
        """The first dim of x and y."""
        return ROWS if self.rows is None else self.rows

    @property
    def x(self) -> Operand:
        """(rows, K)."""
        return Operand("%x", (self.lead, self.K), "f32")


@dataclass(frozen=True)
class BitsProduct(Blocks):
    """`rows` of x (None: known at run time), N rows of the weight, of K numbers of so many bits in blocks. `scales` is the element
    type of the scales; `zeros` that of the zero points, "packed" where they stand like the weight, "" for the middle of the range.

    `rounded`: each block of x is rounded to integers of 8 bits first, as accuracy_level 4 of onnxruntime's MatMulNBits allows: its
    scale is the largest magnitude divided by 127."""

    rows: int | None
    N: int
    K: int
    block: int
    bits: int
    scales: str
    zeros: str = ""
    rounded: bool = False

    @property
    def name(self) -> str:
        sizes = f"{'n' if self.rows is None else self.rows}x{self.N}x{self.K}"
        words = [f"bits{self.bits}", sizes, str(self.block), self.scales, self.zeros, "rounded" * self.rounded]
        return "_".join(filter(None, words))

    @property
    def sorted_x(self) -> Operand:
        """(rows, P, K / P), sorted by the place in a byte that a column meets, as few rows are multiplied."""
        return Operand("%x", (self.lead, self.places, self.K // self.places), "f32")

    @property
    def weight(self) -> tuple[Operand, ...]:
        """The weight, the scales and the zero points."""
        found = [
            Operand("%weight", (self.N, self.K // self.places), "i8"),
            Operand("%scale", (self.N, self.blocks), self.scales),
        ]
        if self.zeros == "packed":
            found.append(Operand("%zero", (self.N, math.ceil(self.blocks / self.places)), "i8"))
        elif self.zeros:
            found.append(Operand("%zero", (self.N, self.blocks), self.zeros))
        return tuple(found)

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (self.x, *self.weight)

    @property
    def y(self) -> Operand:
        return Operand("%y", (self.lead, self.N), "f32")
