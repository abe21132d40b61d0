"""Who was measured to be the fastest at a linear site, and with what tiles: the entries of the tuning database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from onnx_fa.kernels.cpu.linear_body import LinearTiles
from onnx_fa.kernels.tiles.database import Pick, Tiles, pick, queries_computed
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.target import Target

COMPILER: Tiles = {"compiler": 1}
"""The compiler's packed product, which an entry has among the tiles of the kernel."""
FASTER = "the compiler's is faster (measured)"


def tiles_of(config: LinearTiles) -> Tiles:
    return asdict(config)


def rows_computed(spec: LinearSpec, tiles: Tiles) -> float:
    """The rows of a product that are computed with tiles, the last of which begins earlier, as does the last panel: columns that
    are computed twice count as rows. Of rows that only the run knows, 1 is meant."""
    if tiles == COMPILER:
        return float(spec.rows or 1)
    rows = queries_computed("rows" if spec.rows is None else spec.rows, tiles["rows"])
    columns = sum(queries_computed(n, tiles["vectors"] * tiles["lanes"]) for n in spec.widths)
    return rows * columns / spec.N


def fitting(spec: LinearSpec, target: Target) -> Callable[[Tiles], bool]:
    """Whether tiles of the kernel can be a site's: no wider than its weight, and no higher than its rows, if they are known."""

    def fits(t: Tiles) -> bool:
        if t == COMPILER or t["lanes"] != target.lanes:
            return False
        return t["vectors"] * t["lanes"] <= min(spec.widths) and (spec.rows is None or t["rows"] <= spec.rows)

    return fits


def find_tiles(spec: LinearSpec, target: Target, body: str) -> Pick | None:
    """The fastest tiles that were measured on the nearest case; None where no such case was."""
    return pick(target, body, spec, fitting(spec, target), lambda t: rows_computed(spec, t))


def pick_fastest(spec: LinearSpec, target: Target, body: str) -> Pick | None:
    """The same where rows that are computed twice do not count."""
    return pick(target, body, spec, fitting(spec, target), lambda t: 1.0)


def is_compilers(spec: LinearSpec, target: Target, body: str) -> bool | None:
    """Whether the compiler's product was faster on the nearest case than all tiles that fit; None where no such case was. Rows that
    tiles compute twice do not count here, as the compiler's product pads rows too, which an entry does not say."""
    found = pick_fastest(spec, target, body)
    if found is None:
        return None
    return any(c.tiles == COMPILER and c.cost < found.choice.cost for c in found.entry.choices)
