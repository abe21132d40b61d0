"""Workgroups that share a tile of sums, each with a part of what is added up: as many as the grid's second axis is long. Where only
a run knows how many tiles there are, a call with few of them has the more parts, so that either keep a GPU busy."""

from __future__ import annotations

from onnx_fa.kernels.triton.config import MULTIPROCESSORS
from onnx_fa.kernels.triton.expressions import Block

SHARED = (("count", "i32"), ("part", "f32"))
"""What workgroups with parts leave each other: a number for each tile, which is zero between calls, and sums."""
BUSY = 2 * MULTIPROCESSORS
"""Workgroups that keep a GPU busy; more parts than make so many are not begun."""
MOST_TILES = BUSY // 2
"""More of them have no parts."""
LOW_TILES = 450
"""So many tiles of 32 rows of f32, on tensor cores as three products of tf32, take no longer than taller ones, which read less
(benchmarks/linear-f32-h200.csv)."""
_LEAST = 128
"""Numbers that a part adds up at the least: fewer take no longer than parts do to be added up."""


def most_parts(numbers: int) -> int:
    """Into how many parts a sum of so many numbers is cut at the most."""
    return max(1, min(16, numbers // _LEAST))


def begin_part(t: Block, end: int, step: int, stages: int) -> None:
    """Begins the loop of a workgroup's part of the numbers below `end`, of which it takes `step` at a time, from `k` on."""
    t.do("parts = tl.num_programs(1)")
    t.do(f"each = tl.cdiv({-(-end // step)}, parts) * {step}")
    t.do("start = tl.program_id(1) * each")
    t.do(f"for k in tl.range(start, tl.minimum(start + each, {end}), {step}, num_stages={stages}):")
    t.indent += 1


def add_parts(t: Block, BM: int, BN: int) -> None:
    """Leaves the sums `acc` of a part of tile `pid` to the others that have the tile, and begins what one workgroup alone does: the
    last to come, which adds all of them in order, its own too, so that the result is the same whoever is last."""
    tile = BM * BN
    t.do("last = parts == 1")
    t.do("if parts > 1:")
    t.indent += 1
    t.do(f"here = tl.arange(0, {BM})[:, None] * {BN} + tl.arange(0, {BN})[None, :]")
    t.do(f"mine = part + pid.to(tl.int64) * parts * {tile}")
    t.do(f"tl.store(mine + tl.program_id(1) * {tile} + here, acc)")
    t.do("tl.debug_barrier()  # all threads' parts are written")
    t.do("last = tl.atomic_add(count + pid, 1, sem='acq_rel') == parts - 1")
    t.do("if last:")
    t.indent += 1
    t.do("tl.store(count + pid, 0)")
    t.do("acc = tl.load(mine + here)")
    t.do("for i in range(1, parts):")
    t.do(f"    acc += tl.load(mine + i * {tile} + here)")
    t.indent -= 2
    t.do("if last:")
    t.indent += 1
