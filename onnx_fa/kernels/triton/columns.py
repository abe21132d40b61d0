"""The columns of a head as tiles have them, which are powers of two wide: all of them in one tile, or several tiles where the head
is wider than a tile should be, or where two tiles have fewer columns than one: 96 are 64 and 32, not 128. Of integers that are
loaded together, as two in a byte are, the first ones are a tile, the second ones another: a product over the head dim is a sum over
its columns in any order, so that nothing is put side by side again.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx_fa.kernels.triton.config import padded, power_of_two

WIDEST_TILE = 256
"""Columns of a tile at the most, those together that are loaded together."""
WIDEST_OF_F32 = 64
"""The same in heads that one tile does not hold, of f32, whose tiles are in registers as the parts that products are made of."""

LEAST_CUT = 32
"""Columns of the wider of two tiles at the least."""


@dataclass(frozen=True)
class Columns:
    """Columns `first`, `first` + `step`, ..., `many` of them, in a tile of `padded` columns. `name` is what their indices are
    called in the source."""

    name: str
    first: int
    step: int
    many: int

    @property
    def padded(self) -> int:
        return padded(self.many)

    @property
    def indices(self) -> str:
        """The indices as source."""
        across = f"tl.arange(0, {self.padded})"
        across = f"{across} * {self.step}" if self.step > 1 else across
        return f"{across} + {self.first}" if self.first else across

    @property
    def mask(self) -> str:
        """Which of the indices are columns of the head, as a row of a tile's mask; "" for all of them."""
        return "" if self.many == self.padded else f"{self.name}[None, :] < {self.first + self.step * self.many}"


@dataclass(frozen=True)
class Part:
    """What is loaded as one tile, `stored`, and the `columns` that it holds: itself, or if several are loaded together, the first
    of each, the second of each, and so on."""

    stored: Columns
    columns: tuple[Columns, ...]


def narrowest(width: int) -> tuple[int, ...]:
    """A width of up to WIDEST_TILE columns in the one or two tiles that have the fewest columns."""
    first = power_of_two(width + 1) // 2
    rest = width - first
    return (first, rest) if rest and first >= LEAST_CUT and first + padded(rest) < padded(width) else (width,)


def columns_computed(width: int) -> int:
    """How many columns of a head of halves tiles have."""
    whole, rest = divmod(width, WIDEST_TILE)
    return whole * WIDEST_TILE + (sum(map(padded, narrowest(rest))) if rest else 0)


def parts_of(name: str, width: int, *, together: int, single: bool) -> tuple[Part, ...]:
    """The tiles of a head of `width` columns, by names that begin with `name`; so many columns are loaded `together`, which divide
    the width; `single`: of f32."""
    most = (WIDEST_OF_F32 if single and width > WIDEST_TILE else WIDEST_TILE) // together
    cuts = []
    for first in range(0, width // together, most):
        many = min(most, width // together - first)
        for tile in narrowest(many) if together == 1 and not single else (many,):
            cuts.append((first, tile))
            first += tile
    found = []
    for i, (first, many) in enumerate(cuts):
        own = f"{name}{i}" if len(cuts) > 1 else name
        if together == 1:
            found.append(Part(whole := Columns(own, first, 1, many), (whole,)))
            continue
        columns = tuple(Columns(f"{own}_{c}", together * first + c, together, many) for c in range(together))
        found.append(Part(Columns(f"{own}_stored", first, 1, many), columns))
    return tuple(found)
