"""The keys of a block: where each of them stands, and how many a loop takes."""

from __future__ import annotations

from onnx_fa.kernels.cpu.operands import Operands
from onnx_fa.kernels.cpu.state import Block, Row


def row_at(operands: Operands, block: Block, place: str) -> Row:
    """The key at a place of the block; past the last key, that key is read."""
    t = operands.t
    key = t.arith("addi", block.k0, place)
    read = key
    if block.edge and operands.ragged_keys:
        read = t.arith("minsi", key, t.arith("subi", operands.skv, t.index(1)))
    return Row(place, key, read, operands.row_of(read))


def unroll_in(operands: Operands, block: Block) -> int:
    """Steps of a reduction that are written out. Few blocks are on an edge: there, short code matters more than the overhead of the
    loop."""
    return min(operands.config.unroll, 2) if block.edge else operands.config.unroll


def passes_last_key(operands: Operands, block: Block) -> bool:
    """Whether rows of the block may lie past the last key, and then read that one's K and V."""
    keys = operands.spec.Skv
    return block.edge and not (isinstance(keys, int) and keys % operands.config.tile_keys == 0)


def keys_with_values(operands: Operands, block: Block, unroll: int) -> tuple[str, int]:
    """How many keys of a block are multiplied with V, and so many at a time: rows past the last key would read the last one's
    value, and 0 times an infinite one is NaN."""
    if not passes_last_key(operands, block):
        return block.rows, unroll
    t = operands.t
    return hide_origin(operands, t.arith("minsi", block.rows, t.arith("subi", operands.skv, block.k0))), 1


def hide_origin(operands: Operands, rows: str) -> str:
    """The same number, at most BK, without where it comes from. To tell accesses of a tile apart, the compiler follows the
    bounds of the loops around them through the arithmetic of indices, and each select on the way doubles its work: half a
    minute for some kernels with a window. It does not look behind an And, which keeps every bit here."""
    return operands.t.arith("andi", rows, operands.t.index((1 << operands.config.BK.bit_length()) - 1))
