"""What a kernel for a few queries takes with some tiles on some shape, reckoned. It is not what a shape takes: it tells by how much
more or less a measured shape's tiles take on another one, whose blocks, workgroups and parts are others (kernels/tiles/shapes.py).

The numbers are the least sum of errors of the logarithm (Huber's) over the 957 times of 118 shapes with one to 16 queries whose
kernels knew their sizes (benchmarks/tiles-known-h100.csv, benchmarks/tiles-decode-h100.csv; an H100): half of the times are within
12% of what is reckoned, three quarters within 22%.
"""

from __future__ import annotations

import math

from onnx_fa.kernels.tiles.database import Tiles
from onnx_fa.kernels.tiles.shapes import Shape
from onnx_fa.kernels.triton.config import MULTIPROCESSORS, SHARED_BYTES

_START = 2.2
"""All times are in us: of the launch."""
_GROUP = 0.28
"""Of a workgroup before its first block of keys, and behind its last."""
_BLOCK, _NUMBERS, _SPEED, _WARP = 0.66, 0.037, 0.3, 0.062
"""Of a block of keys: until it has come, by the number of stages; of ten thousand numbers of it, by the number of warps to the
power _SPEED; of each warp, which the others wait for."""
_MULTIPROCESSOR = 0.26
"""Of ten thousand numbers, where one multiprocessor has all of them."""
_BYTE, _UNDER_WAY = 0.17e-6, 0.18
"""Of each byte that is read, and once more so much by the bytes that are under way at a time."""
_PARTS, _PART_BYTE = 1.4, 10.4e-6
"""Of the dispatch that combines the parts, and of each byte of these."""
_RESIDENT, _WARPS = 16, 64
"""Workgroups that a multiprocessor has at the most, by what Triton's kernels need of its registers, and warps."""
_OWN_BYTES = 4096
"""Of shared memory of a workgroup beside the blocks that are loaded."""


def reckon_time(tiles: Tiles, shape: Shape) -> float:
    """us."""
    warps, stages, parts = tiles["warps"], tiles["stages"], tiles["splits"]
    columns = shape.D + shape.Dv
    numbers = columns * tiles["BN"] / 1e4
    loaded = 2e4 * stages * numbers
    groups = shape.heads * parts
    resident = min(max(1, SHARED_BYTES[90] // int(loaded + _OWN_BYTES)), _WARPS // warps, _RESIDENT)
    rounds, together = -(-groups // (MULTIPROCESSORS * resident)), min(groups, MULTIPROCESSORS * resident)
    in_all = -(-shape.Skv // tiles["BN"])
    blocks = -(-in_all // parts)
    block = _BLOCK / stages + _NUMBERS * numbers / math.pow(warps, _SPEED) + _WARP * warps
    waiting = rounds * (_GROUP + blocks * block)
    busy = -(-groups // MULTIPROCESSORS) * blocks * numbers * _MULTIPROCESSOR
    read = 2 * shape.heads * shape.Skv * columns * (_BYTE + _UNDER_WAY / (together * loaded))
    combined = _PARTS + _PART_BYTE * 4 * parts * shape.heads * shape.Dv if parts > 1 else 0.0
    return _START + waiting + busy + read + combined
