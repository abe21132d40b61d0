"""What a kernel for a few queries takes with some tiles on some shape, reckoned. It is not what a shape takes: it tells by how much
more or less a measured shape's tiles take on another one, whose blocks, workgroups and parts are others (kernels/tiles/shapes.py).

The numbers are the least sum of errors of the logarithm (Huber's) over the 3,273 times of 335 shapes with one to 16 queries whose
kernels knew their sizes (benchmarks/tiles-known-h100.csv; an H100): half of the times are within 8% of what is reckoned, three
quarters within 15%.
"""

from __future__ import annotations

from onnx_fa.kernels.tiles.database import Tiles
from onnx_fa.kernels.tiles.shapes import Shape
from onnx_fa.kernels.triton.config import CLUSTER, MULTIPROCESSORS, SHARED_BYTES, few_parts

_START = 2.33
"""All times are in us: of the launch."""
_GROUP = 0.17
"""Of a workgroup before its first block of keys, and behind its last."""
_BLOCK, _WARP = 0.776, 0.042
"""Of a block of keys: until it has come, by the number of stages; of each warp, which the others wait for."""
_MULTIPROCESSOR = 0.316
"""Of ten thousand numbers, where one multiprocessor has all of them."""
_BYTE = 0.165e-6
"""Of each byte that is read."""
_LAST, _LAST_BYTE = 1.13, 38e-6
"""Of the workgroup that is the last of a head's and combines the parts, and of each byte of these, which it reads alone."""
_CLUSTER = 0.6
"""Of workgroups that are a cluster and combine them: the median of what 451 times of shapes with up to 8,192 keys have beside
all the rest (benchmarks/tiles-cluster-h200.csv; an H200)."""
_DISPATCH, _PART_BYTE = 1.9, 2.9e-6
"""Of a dispatch that combines them, and of each byte of all parts, which are written and read."""
_RESIDENT, _WARPS = 16, 64
"""Workgroups that a multiprocessor has at the most, by what Triton's kernels need of its registers, and warps."""
_OWN_BYTES = 4096
"""Of shared memory of a workgroup beside the blocks that are loaded."""


def reckon_time(tiles: Tiles, shape: Shape) -> float:
    """us."""
    warps, stages, parts = tiles["warps"], tiles["stages"], tiles["splits"]
    columns = shape.D + shape.Dv
    numbers = columns * tiles["BN"] / 1e4
    groups = shape.heads * parts
    resident = min(max(1, SHARED_BYTES[90] // int(2e4 * stages * numbers + _OWN_BYTES)), _WARPS // warps, _RESIDENT)
    rounds = -(-groups // (MULTIPROCESSORS * resident))
    in_all = -(-shape.Skv // tiles["BN"])
    blocks = -(-in_all // parts)
    waiting = rounds * (_GROUP + blocks * (_BLOCK / stages + _WARP * warps))
    busy = -(-groups // MULTIPROCESSORS) * blocks * numbers * _MULTIPROCESSOR
    read = 2 * shape.heads * shape.Skv * columns * _BYTE
    combining = _CLUSTER if tiles["overlap"] == CLUSTER else _combining(parts, shape)
    return _START + waiting + busy + read + combining


def _combining(parts: int, shape: Shape) -> float:
    """us that combining the parts takes."""
    if parts == 1:
        return 0.0
    of_head = 4 * parts * shape.Sq * shape.Dv
    alone = few_parts(parts, shape.Sq, shape.Dv)
    return (_LAST + _LAST_BYTE * of_head if alone else _DISPATCH) + _PART_BYTE * of_head * shape.heads
