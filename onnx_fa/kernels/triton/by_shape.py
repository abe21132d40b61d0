"""Which tiles an attention of halves gets that is plain or causal, its sizes known: those that cost least on the measured shapes
around it (kernels/tiles/shapes.py)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from onnx_fa.kernels.tiles.database import Tiles
from onnx_fa.kernels.tiles.shapes import Shape, ShapeTable
from onnx_fa.kernels.triton.columns import WIDEST_TILE, columns_computed
from onnx_fa.kernels.triton.config import CLUSTER, FEW, HELD, MULTIPROCESSORS, PERSISTENT, power_of_two
from onnx_fa.kernels.triton.decode_time import reckon_time
from onnx_fa.kernels.triton.held import blocks_together, with_all_keys
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


def _has_form(form: int, tiles: Tiles) -> bool:
    return tiles["overlap"] == form


_LATER = tuple(partial(_has_form, form) for form in (PERSISTENT, HELD, CLUSTER))
"""Forms that were tried on some of the measured shapes alone."""
SPLIT_TILES = {"BM": 64, "BN": 64, "warps": 4, "stages": 3, "order": 0, "overlap": 0}
"""Of many queries whose keys are split."""
KEYS_IN_CLUSTER = 256
"""Of each workgroup at the most. With more of them a cluster's eight workgroups for a head are too few to keep memory busy: of 153
drawn shapes of one query three took 1.4 to 1.6 times as long by what the shapes around them favour."""
_LEAST_KEYS, _LEAST_OF_FEW, _MOST_PARTS = 320, 256, 32
"""Of a part, the latter where workgroups are a third of the multiprocessors at the most, and how many there are at the most: a
second dispatch combines them, which takes as long as some hundreds of keys."""
_COLUMNS = 256
"""Head dims of the workgroups that a multiprocessor takes at a time: narrow ones wait for each other's loads the less the more of
them there are. Found on 69 shapes that were timed with two to 32 parts."""


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
    each = blocks_together(shape.heads, blocks, tiles["stages"]) if tiles["overlap"] == HELD else 1
    groups = shape.heads * -(-blocks // each) * tiles["splits"]
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
        # Into how many parts the keys of many queries are cut is a rule's to say: with more blocks than the shapes had on which
        # parts were tried they are slower.
        most = power_of_two(-(-shape.Skv // tiles["BN"])) if tiles["BM"] <= FEW else 1
        few = tiles["overlap"] != CLUSTER or shape.Skv <= KEYS_IN_CLUSTER * tiles["splits"]
        return fits(tiles) and tiles["splits"] <= most and few

    found = table.best(shape, suits, expected, _LATER)
    if found is None:
        return None
    split = SPLIT_TILES | {"splits": parts_of_keys(shape)}
    if split["splits"] > 1 and fits(split):
        return split, f"{shape} are few workgroups: the keys are split"
    order = order_of(spec, tile=found[0]["BM"] if found[0]["overlap"] == PERSISTENT else 0)
    tiles = {**with_all_keys(found[0], shape.Skv), "order": order}
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
    """Into how many parts the keys of many queries are cut, where these are fewer blocks than multiprocessors: as many as give each
    of them as many workgroups as it takes at a time. Fewer than that take longer, and two parts of many blocks are no gain."""
    groups = shape.heads * -(-shape.Sq // SPLIT_TILES["BM"])
    if shape.Sq <= FEW or shape.causal or groups >= MULTIPROCESSORS:
        return 1
    each = max(1, _COLUMNS // shape.D)
    keys = _LEAST_OF_FEW if groups * 3 <= MULTIPROCESSORS else _LEAST_KEYS
    wanted = min(_COLUMNS * MULTIPROCESSORS // (shape.D * groups), shape.Skv // keys, _MOST_PARTS)
    parts = 1 << (max(1, wanted).bit_length() - 1)
    gains = parts >= 1 << (each.bit_length() - 1) and (parts >= 4 or groups * parts <= MULTIPROCESSORS)
    return parts if gains else 1
