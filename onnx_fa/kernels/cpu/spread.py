"""Workgroups that leave workers alike: some of those that a worker takes at once are empty.

A worker takes RESERVED of them at a time where there are so many for each (workgroups.py): of 24, one of two workers takes 16 and
the other 8. Of 32 they take 16 each, and six of each eight are enough for 24.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnx_fa.kernels.cpu.workgroups import RESERVED
from onnx_fa.kernels.mlir.text import Text


@dataclass(frozen=True)
class Spread:
    """Workgroups as the numbers of them in the two first dims of a dispatch, of which the first is what a worker takes at once, and
    how many of these are not empty."""

    at_once: str
    turns: str
    filled: str


def spread_groups(t: Text, groups: str, workers: int) -> Spread:
    """So many workgroups, an index, for so many workers: none of them then has more than one workgroup, or one in each turn, more
    than another."""
    one, reserved = t.index(1), t.index(RESERVED)
    few = t.test("ult", groups, t.index(workers * RESERVED))
    turns = t.arith("ceildivui", t.arith("ceildivui", groups, reserved), t.index(workers))
    turns = t.arith("muli", turns, t.index(workers))
    filled = t.arith("ceildivui", groups, t.arith("maxui", turns, one))
    return Spread(t.choose(few, one, reserved), t.choose(few, groups, turns), t.choose(few, one, filled))


def turns_of(groups: int, workers: int) -> int:
    """The workgroups of each worker, that of the one who has most."""
    if groups < workers * RESERVED:
        return -(-groups // workers)
    turns = -(-groups // (RESERVED * workers))
    return turns * -(-groups // (turns * workers))
