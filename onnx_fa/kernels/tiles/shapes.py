"""Tiles by measured shapes: `data/<name>.json` has, for attentions of many head dims and lengths, what each of some sets of tiles
took (scripts/search_tiles.py). A new shape gets the tiles that cost least around it: each measured shape counts by how near it is,
and more where the kernels that were timed knew its sizes (scripts/search_known.py), as those of a model do.

What follows from the sizes, such as rows of the last block of queries and multiprocessors in the last round of workgroups that are
left unused, is taken out of what was measured, and is reckoned for the new shape itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any

Tiles = Mapping[str, int]
FIELDS = ("D", "Dv", "causal", "heads", "Sq", "Skv")
NEAR, NEAR_FEW, POWER = 0.5, 1.0, 6
"""A measured shape counts by its distance plus NEAR, or NEAR_FEW where queries are a few, to the minus POWER. Chosen by leaving out
each shape in turn."""
_KNOWN = 4
"""So many times as much counts a shape whose sizes the compiler of the timed kernels knew. Chosen likewise."""
_ROWS = 16
"""Fewer queries than that are one block of so many."""


_KEYS = 64
"""Of a block of most tiles."""
_MOST = 8
"""Times the fastest of a shape: what took longer was disturbed while it was measured, and counts as that."""
_LEAST_WEIGHT = 0.25
"""Tiles that were tried on less than that part of what is near say too little."""


@dataclass(frozen=True)
class Shape:
    """Head dims as tiles have them, causal or not, heads of all batch rows, numbers of queries and keys."""

    D: int
    Dv: int
    causal: int
    heads: int
    Sq: int
    Skv: int

    def __str__(self) -> str:
        dims = f"D{self.D}" if self.Dv == self.D else f"D{self.D} Dv{self.Dv}"
        return f"{dims}{' causal' * self.causal} {self.heads} heads Sq{self.Sq} Skv{self.Skv}"

    @property
    def rows(self) -> int:
        """Queries in all."""
        return self.heads * max(self.Sq, _ROWS)

    def distance(self, other: Shape) -> float:
        """A doubled head dim weighs as much as a mask, four times as many keys or eight times as many queries in all. Of many
        queries the blocks of keys count as well: with 65 keys there are two, as with 128."""
        work, keys = math.log2(self.rows / other.rows), math.log2(self.Skv / other.Skv)
        blocks = 0.0 if self.Sq <= _ROWS else math.log2(-(-self.Skv // _KEYS) / -(-other.Skv // _KEYS))
        dims = abs(math.log2(self.D / other.D)) + abs(math.log2(self.Dv / other.Dv))
        return math.hypot(work / 3, keys / 2, blocks / 2, dims, float(self.causal != other.causal))


Expected = Callable[[Tiles, Shape], float]


@dataclass(frozen=True)
class Measured:
    """A shape, and ms by the index of the tiles; `known` says that the kernels' compiler knew the sizes."""

    shape: Shape
    ms: Mapping[int, float]
    known: bool = False
    _costs: dict[Expected, tuple[tuple[Tiles, ...], Mapping[int, float]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def costs(self, tiles: tuple[Tiles, ...], expected: Expected) -> Mapping[int, float]:
        """By the index of the tiles, the logarithm of how many times as long as the fastest ones they took, with what follows from
        the sizes taken out. It is the same whatever shape asks, and is kept."""
        found = self._costs.get(expected)
        if found is None or found[0] is not tiles:
            most = _MOST * min(self.ms.values())
            taken = {i: min(ms, most) / expected(tiles[i], self.shape) for i, ms in self.ms.items()}
            least = min(taken.values())
            found = self._costs[expected] = tiles, {i: math.log(ms / least) for i, ms in taken.items()}
        return found[1]

    def weight(self, shape: Shape) -> float:
        """How much it counts for another shape."""
        near = NEAR_FEW if shape.Sq <= _ROWS else NEAR
        return (_KNOWN if self.known else 1) / (near + shape.distance(self.shape)) ** POWER


@dataclass(frozen=True)
class ShapeTable:
    """What was measured where. `tiles` are the sets that were tried."""

    name: str
    measured: Mapping[str, Any]
    tiles: tuple[Tiles, ...]
    shapes: tuple[Measured, ...]
    apart: tuple[Measured, ...] = ()
    """Shapes on which forms that came later were tried beside the tiles in use alone: they say nothing of all others."""

    def best(
        self,
        shape: Shape,
        fits: Callable[[Tiles], bool],
        expected: Expected,
        later: Sequence[Callable[[Tiles], bool]] = (),
    ) -> tuple[Tiles, Measured] | None:
        """The tiles of least cost around a shape, of those that fit, and the nearest measured shape; None where nothing fits.
        `expected` is what follows for a time from the sizes, up to a factor of the shape. `later`: kinds of
        tiles that were tried on some of the shapes alone, on which they are compared with the others."""
        found, least = self.ranked(shape, lambda t: fits(t) and not any(is_one(t) for is_one in later), expected), 1.0
        measured = (*self.shapes, *self.apart)
        for kind in later:
            own = {i for i, tiles in enumerate(self.tiles) if kind(tiles)}
            tried = replace(self, shapes=tuple(m for m in measured if not own.isdisjoint(m.ms)))
            more = [t for t in tried.ranked(shape, fits, expected) if kind(t)]
            others = tried.ratio(shape, own) if found else 0.0
            if more and others < least:
                found, least = more, others
        nearest = min(self.alike(shape), key=lambda m: shape.distance(m.shape), default=None)
        return (found[0], nearest) if found and nearest is not None else None

    def ratio(self, shape: Shape, kind: Set[int]) -> float:
        """How many times as long as with all other tiles a shape takes with those of a kind (their indices), by the fastest of both
        around it. What is left unused counts as the shapes have it: a kind may be the better one for filling a GPU."""
        weights = logs = 0.0
        for m in self.alike(shape):
            own, others = ([ms for i, ms in m.ms.items() if (i in kind) == same] for same in (True, False))
            if own and others:
                w = m.weight(shape)
                weights += w
                logs += w * math.log(min(own) / min(others))
        return math.exp(logs / weights) if weights else math.inf

    def alike(self, shape: Shape) -> list[Measured]:
        """The measured shapes that have few queries as the shape has, or many."""
        return [m for m in self.shapes if (m.shape.Sq <= _ROWS) == (shape.Sq <= _ROWS)]

    def ranked(self, shape: Shape, fits: Callable[[Tiles], bool], expected: Expected) -> list[Tiles]:
        """The tiles that fit, those of the least cost around a shape first."""
        weights, costs, seen = 0.0, dict[int, float](), dict[int, float]()
        for m in self.alike(shape):
            w = m.weight(shape)
            weights += w
            for i, cost in m.costs(self.tiles, expected).items():
                costs[i] = costs.get(i, 0.0) + w * cost
                seen[i] = seen.get(i, 0.0) + w
        enough = [i for i, w in seen.items() if w > _LEAST_WEIGHT * weights and fits(self.tiles[i])]
        enough.sort(key=lambda i: math.exp(costs[i] / seen[i]) * expected(self.tiles[i], shape))
        return [self.tiles[i] for i in enough]


@cache
def read_shapes(name: str) -> ShapeTable | None:
    """The table of that name; None where there is none."""
    file = resources.files("onnx_fa.kernels.tiles").joinpath(f"data/{name}.json")
    return parse_shapes(name, json.loads(file.read_text())) if file.is_file() else None


def parse_shapes(name: str, data: Mapping[str, Any]) -> ShapeTable:
    """The table of a file: `shapes`, and `known` and `apart` of kernels that knew their sizes, are rows of FIELDS, then ms in the
    order of `tiles`, null where they were not tried."""

    def measured(row: Sequence[Any], known: bool) -> Measured:
        ms = {i: x for i, x in enumerate(row[len(FIELDS) :]) if x is not None}
        return Measured(Shape(*row[: len(FIELDS)]), ms, known)

    found = [measured(row, known) for name, known in (("shapes", False), ("known", True)) for row in data[name]]
    apart = tuple(measured(row, True) for row in data.get("apart", ()))
    return ShapeTable(name, data["measured"], tuple(data["tiles"]), tuple(found), apart)
