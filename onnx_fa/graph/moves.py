"""The ops that only move elements: each element of their result is one of their first operand. Which ops those are is said here
once; a list elsewhere adds what its own question allows besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Move = Literal["same", "regroup", "pick", "look up", "repeat"]
"""What becomes of the elements: all stay where they are; all stand there once, along other axes; some of them stand there, by fixed
places or by those that another operand names; or all, some of them repeated."""

_TABLE: Mapping[str, Move] = {
    "Identity": "same",
    "Reshape": "regroup",
    "Flatten": "regroup",
    "Squeeze": "regroup",
    "Unsqueeze": "regroup",
    "Transpose": "regroup",
    "Slice": "pick",
    "Gather": "look up",
    "Expand": "repeat",
    "Tile": "repeat",
}


def _that(*moves: Move) -> frozenset[str]:
    return frozenset(op for op, move in _TABLE.items() if move in moves)


MOVES = frozenset(_TABLE)
"""All of them."""
REGROUPS = _that("regroup")
"""Every element stands in the result once, along other axes."""
EACH_ONCE = _that("same", "regroup")
"""Every element stands in the result once: what holds for all elements of one holds for those of the other."""
REPEATS = _that("repeat")
"""The result may be larger than the operand."""
LOOKS_UP = _that("look up")
"""Another operand, of integers, says which elements."""
