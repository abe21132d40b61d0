"""The sums of Winograd's F(2 x 2, 3 x 3), on vectors.

Of two windows side by side over d0 .. d3, by the taps g0, g1, g2,

    d0 g0 + d1 g1 + d2 g2 = m0 + m1 + m2        m0 = (d0 - d2) g0    m1 = (d1 + d2) (g0 + g1 + g2) / 2
    d1 g0 + d2 g1 + d3 g2 = m1 - m2 - m3        m3 = (d1 - d3) g2    m2 = (d2 - d1) (g0 - g1 + g2) / 2

(S. Winograd, Arithmetic Complexity of Computations, 1980; of two by two windows, the same along either axis: Lavin and Gray, Fast
Algorithms for Convolutional Neural Networks, 2015). What a window does not see is in none of its three m.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onnx_fa.kernels.mlir.vectors import Lanes

SEEN, MADE, TAPS = 4, 2, 3
"""Numbers along an axis that a tile sees, windows that it has, and their taps."""


def turn_seen(t: Lanes, d: Sequence[str]) -> list[str]:
    """The factors of the m that come of what is seen."""
    pairs = (("subf", 0, 2), ("addf", 1, 2), ("subf", 2, 1), ("subf", 1, 3))
    return [t.vop(f"arith.{op}", d[a], d[b]) for op, a, b in pairs]


def turn_taps(t: Lanes, g: Sequence[str]) -> list[str]:
    """The factors of the m that come of the taps."""
    half = t.splat(0.5)
    ends, middle = t.vop("arith.mulf", t.vop("arith.addf", g[0], g[2]), half), t.vop("arith.mulf", g[1], half)
    return [g[0], t.vop("arith.addf", ends, middle), t.vop("arith.subf", ends, middle), g[2]]


def make_places(t: Lanes, m: Sequence[str]) -> list[str]:
    """Both windows."""
    first, second = t.vop("arith.addf", m[0], m[1]), t.vop("arith.subf", m[1], m[2])
    return [t.vop("arith.addf", first, m[2]), t.vop("arith.subf", second, m[3])]


def turn_twice(
    t: Lanes, turn: Callable[[Lanes, Sequence[str]], list[str]], square: Sequence[Sequence[str]]
) -> list[list[str]]:
    """A square, turned along either axis."""
    rows = [turn(t, row) for row in square]
    columns = [turn(t, column) for column in zip(*rows, strict=True)]
    return [list(row) for row in zip(*columns, strict=True)]
