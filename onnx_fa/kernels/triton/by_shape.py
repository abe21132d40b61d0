"""Which tiles an attention of halves gets that is plain or causal, its sizes known: those that cost least on the measured shapes
around it (kernels/tiles/shapes.py)."""

from __future__ import annotations

import math
from collections.abc import Callable

from onnx_fa.kernels.tiles.database import Tiles
from onnx_fa.kernels.tiles.shapes import Shape, ShapeTable
from onnx_fa.kernels.triton.columns import WIDEST_TILE, columns_computed
from onnx_fa.kernels.triton.config import FEW, MULTIPROCESSORS, PERSISTENT, power_of_two
from onnx_fa.kernels.triton.decode_time import reckon_time
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.terms import Causal

CACHED_BYTES = 45_000_000
"""About as much as the cache keeps of the GPU that the table was measured on."""
TOGETHER_BYTES = 20_000_000
"""Of keys and values that workgroups which stay read at the same time."""
_ROUNDS = 2
"""Of tiles that heads which are together have at the least."""
_MANY_HEADS = 96
"""So many that few workgroups of one head run at the same time."""
_BLOCK = 64
"""Queries of a workgroup of most tiles."""
_LONG = 1 << 15
"""So many queries that those of one head fill a GPU twice by themselves."""

SPLIT_TILES = {"BM": 64, "BN": 64, "warps": 4, "stages": 3, "order": 0, "overlap": 0}
"""Of many queries whose keys are split."""
_LEAST_KEYS, _MOST_PARTS = 512, 16
"""Of a part, and how many there are at the most: a second dispatch combines them, which takes as long as some hundreds of keys."""


def shape_of(spec: AttentionSpec) -> Shape | None:
    """The shape of a spec (already folded); None for what was not measured."""
    sizes = (*spec.batch, spec.Hq, spec.Sq, spec.Skv)
    if spec.dtype not in ("f16", "bf16") or not all(isinstance(d, int) for d in sizes):
        return None
    if (
        spec != spec.plain
        or spec.mods
        or spec.rounding is not None
        or spec.weighting is not None
        or spec.weights is not None
    ):
        return None
    causal = spec.masks == (Causal(),) or (spec.masks == (Causal("end"),) and spec.Sq == spec.Skv)
    if (spec.masks and not causal) or max(spec.D, spec.Dv) > WIDEST_TILE:
        return None
    *lead, sq, skv = (int(d) for d in sizes)
    if FEW < sq <= 2 * FEW or min(*lead, sq, skv) < 1:
        return None
    return Shape(columns_computed(spec.D), columns_computed(spec.Dv), int(causal), math.prod(lead), sq, skv)


def expected(tiles: Tiles, shape: Shape) -> float:
    """What follows from the sizes for the time with some tiles, up to a factor of the shape: of a few queries the reckoned time, of
    many by what the rows of the last blocks and the multiprocessors of the last round of workgroups lengthen the work."""
    if tiles["BM"] <= FEW:
        return reckon_time(tiles, shape)
    blocks = -(-shape.Sq // tiles["BM"])
    groups = shape.heads * blocks * tiles["splits"]
    rows = blocks * tiles["BM"] / shape.Sq
    return rows * -(-groups // MULTIPROCESSORS) * MULTIPROCESSORS / groups


def tiles_by_shape(
    spec: AttentionSpec, table: ShapeTable | None, fits: Callable[[Tiles], bool]
) -> tuple[Tiles, str] | None:
    """The tiles of a spec (already folded), and where they are from; None where no shape like it was measured."""
    shape = shape_of(spec)
    if table is None or shape is None:
        return None

    def suits(tiles: Tiles) -> bool:
        blocks = -(-shape.Skv // tiles["BN"])
        return fits(tiles) and tiles["splits"] <= power_of_two(blocks)

    found = table.best(shape, suits, expected, lambda tiles: tiles["overlap"] == PERSISTENT)
    if found is None:
        return None
    split = SPLIT_TILES | {"splits": parts_of_keys(shape)}
    if split["splits"] > 1 and fits(split):
        return split, f"{shape} are few workgroups: the keys are split"
    tiles = {**found[0], "order": order_of(spec, tile=found[0]["BM"] if found[0]["overlap"] == PERSISTENT else 0)}
    return tiles, f"{table.name}: around {shape}; the nearest of {len(table.shapes)} measured: {found[1].shape}"


def order_of(spec: AttentionSpec, *, tile: int = 0) -> int:
    """Which order of the workgroups a spec with a shape gets. Causal, all heads' long rows come first (1), so that the short ones
    fill the end. Where K and V of many heads, or of long ones, with a block of queries and outputs of each head, are more than the
    cache holds, each block of queries would so read them from memory, and one head comes after the other (0). `tile`: the
    queries of one, where workgroups stay."""
    if tile:
        return _heads_together(spec, tile) if spec.masks else 0
    batch, row = math.prod(int(d) for d in spec.batch), 2 * (spec.D + spec.Dv)
    heads, others = batch * int(spec.Hkv), batch * int(spec.Hq)
    size = row * (heads * int(spec.Skv) + others * min(int(spec.Sq), _BLOCK))
    few = heads < _MANY_HEADS and int(spec.Sq) < _LONG
    return int(bool(spec.masks) and (few or size <= CACHED_BYTES))


def _heads_together(spec: AttentionSpec, tile: int) -> int:
    """The order of workgroups that stay, with causal tiles. These become shorter from one to the next, so that each workgroup gets
    as many long ones, where all heads take turns (1), or those of a group, whose K and V the cache holds; groups are of a size, and
    have tiles for some rounds, which else would be of different lengths."""
    heads, sharing = math.prod(int(d) for d in (*spec.batch, spec.Hq)), int(spec.Hq) // int(spec.Hkv)
    most = max(1, TOGETHER_BYTES // (2 * int(spec.Skv) * (spec.D + spec.Dv))) * sharing
    groups = max(1, min(-(-heads // most), heads * -(-int(spec.Sq) // tile) // (_ROUNDS * MULTIPROCESSORS)))
    together = -(-heads // groups // sharing) * sharing
    return 1 if together >= heads else max(2, together)


def parts_of_keys(shape: Shape) -> int:
    """Into how many parts the keys of many queries are cut, where these are so few blocks that most of a GPU would be idle."""
    groups = shape.heads * -(-shape.Sq // SPLIT_TILES["BM"])
    if shape.Sq <= FEW or shape.causal or groups * 3 > MULTIPROCESSORS:
        return 1
    wanted = min(MULTIPROCESSORS // groups, shape.Skv // _LEAST_KEYS, _MOST_PARTS)
    return 1 << (wanted.bit_length() - 1) if wanted > 1 else 1
