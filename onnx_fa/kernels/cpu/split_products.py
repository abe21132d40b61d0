"""Products of f32 by AMX, which multiplies bf16: a number is the sum of three of them.

    x = x0 + x1 + x2:   x0 = bf16(x),  x1 = bf16(x - x0),  x2 = x - x0 - x1

bf16 has 8 significant bits, and f32 24: x - x0 has at most 16 of them left, x2 eight, and both differences are exact. Of the nine
products of two numbers' parts six are added up, exact each, in sums of f32:

    x w = x0 w0 + x0 w1 + x1 w0 + x0 w2 + x1 w1 + x2 w0 + r,   |r| < 2^-22.9 |x w|

since |x1| <= 2^-8 |x| and |x2| <= 2^-16 |x|: what is left out is as much as rounding the product twice may change (Henry, Tang and
Heinecke, "Leveraging the bfloat16 artificial intelligence datatype for higher-precision computations", 2019). AMX multiplies at 16
times the speed of f32 in vectors, so that six products leave more than twice.

Where one factor is cut instead, x0 the bf16 next to x towards 0, |x1| < 2^-7 |x| and |x2| < 2^-14 |x|, both differences are exact
as before, and |r| < 2^-21.4 |x w|; it takes a third less instructions.

What is not finite, or so large that its x0 is not, makes the sum infinite or NaN. Numbers below 2^-126 are zeros for AMX: of
numbers below 2^-110 parts are lost, 2^-9 of them at most, and products below 2^-126. So the sum of K products of numbers of up to
2^24 is off by K 2^-95 at most for that, which is less than K roundings of it where it is 2^-71 or more.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx_fa.kernels.cpu.amx import LEFT, RIGHT, run_instructions, sum_tile
from onnx_fa.kernels.mlir.text import Text
from onnx_fa.kernels.mlir.vectors import Lanes

PARTS = 3
"""bf16 that a number is the sum of."""
STEP = 32
"""Numbers along K that a tile's row has, in pairs of those that lie 16 apart: nothing has to be moved within vectors."""
TILE_BYTES = 1024
_ROW_BYTES = 64
_MULTIPLIED = ((2, 0), (1, 0), (1, 1), (0, 1), (0, 2), (0, 0))
"""Which parts of the left factor meet which of the right, in an order in which most stay where they are loaded."""
_MAGNITUDE, LARGEST = 0x7FFFFFFF, 0x4B800000
"""The bits of a number but its sign, and those of 2^24: larger ones are not split."""
_HALF, _UPPER = 0x8000, -0x10000
"""Half of the last place that a bf16 has, and its bits, of those of an f32 as an i32."""


def split_pair(t: Lanes, low: str, high: str, *, cut: bool = False) -> list[str]:
    """The parts of two vectors of f32, each part as words: a bf16 of `low` in the lower half, one of `high` in the upper. `cut`:
    parts are not the nearest bf16, but those towards 0."""
    words = []
    for _ in range(PARTS - 1):
        (low_bits, low), (high_bits, high) = (_first_part(t, x, cut) for x in (low, high))
        words.append(_paired(t, low_bits, high_bits))
    return [*words, _paired(t, *(bits_of(t, x) for x in (low, high)))]


def bits_of(t: Lanes, x: str) -> str:
    """A vector of f32 as whole numbers of 32 bits."""
    return t.let(f"vector.bitcast {x} : {t.vec} to {t.ivec}")


def magnitude_of(t: Lanes, x: str) -> str:
    """The bits of numbers without their signs, whose order is that of their magnitudes."""
    return t.arith("andi", bits_of(t, x), t.dense(str(_MAGNITUDE), "i32"), t.ivec)


def _floats(t: Lanes, bits: str) -> str:
    return t.let(f"vector.bitcast {bits} : {t.ivec} to {t.vec}")


def _first_part(t: Lanes, x: str, cut: bool) -> tuple[str, str]:
    """The nearest bf16, or that towards 0, as the upper bits of an f32, and the rest."""
    near = bits_of(t, x) if cut else t.arith("addi", bits_of(t, x), t.dense(str(_HALF), "i32"), t.ivec)
    near = t.arith("andi", near, t.dense(str(_UPPER), "i32"), t.ivec)
    return near, t.vop("arith.subf", x, _floats(t, near))


def _paired(t: Lanes, low: str, high: str) -> str:
    """Words of the upper halves of both."""
    moved = t.arith("shrui", low, t.dense("16", "i32"), t.ivec)
    kept = t.arith("andi", high, t.dense(str(_UPPER), "i32"), t.ivec)
    return t.arith("ori", moved, kept, t.ivec)


def add_split_product(t: Text, lefts: Sequence[str], right: str, across: int) -> None:
    """Adds to AMX's sums the product of one or two times 16 rows of x with `across` times 16 columns of w, along STEP numbers of
    K. One time 16 rows have two sums for each, which are to be added up. `lefts` and `right` are pointers, i64: to PARTS tiles, one
    behind the other, and to PARTS times `across`."""
    add_split_products(t, lefts, right, across, range(len(_MULTIPLIED)))


HALVES = range(len(_MULTIPLIED) // 2), range(len(_MULTIPLIED) // 2, len(_MULTIPLIED))
"""The first and the second half of the products of parts, for what is done while they are made."""


def add_split_products(t: Text, lefts: Sequence[str], right: str, across: int, which: range) -> None:
    """Some of the products of `add_split_product`, in order; what those before loaded stays where it is."""
    n = len(lefts)
    code: list[str] = []
    loaded = {LEFT: -1, RIGHT: -1}
    if which.start:
        loaded[LEFT], loaded[RIGHT] = _MULTIPLIED[which.start - 1]

    def load(first: int, part: int, sources: Sequence[tuple[int, int]]) -> None:
        """Loads a part of a factor into tiles from `first` on, each from an operand and a byte behind it."""
        if loaded[first] != part:
            code.extend(f"tileloadd {byte}(${at},${n + 1},1), %tmm{first + i}" for i, (at, byte) in enumerate(sources))
            loaded[first] = part

    for at in which:
        a, b = _MULTIPLIED[at]
        load(LEFT, a, [(i, a * TILE_BYTES) for i in range(n)])
        load(RIGHT, b, [(n, (b * across + j) * TILE_BYTES) for j in range(across)])
        # One tile of rows takes turns with two sums for each: a product waits for the one before it in the same.
        code += [
            f"tdpbf16ps %tmm{RIGHT + j}, %tmm{LEFT + i}, %tmm{sum_tile(i if n > 1 else at % 2, j)}"
            for i in range(n)
            for j in range(across)
        ]
    run_instructions(t, code, [*lefts, right, t.constant(str(_ROW_BYTES), "i64")])
