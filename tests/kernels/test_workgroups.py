"""Workgroups on CPUs, so that workers of IREE's have alike: how many panels of a weight each has, and which are empty."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from onnx_fa.kernels.cpu.linear import emit_with
from onnx_fa.kernels.cpu.linear_body import LinearTiles
from onnx_fa.kernels.cpu.spread import spread_groups, turns_of
from onnx_fa.kernels.cpu.workgroups import RESERVED, WORKERS, Product, busiest, panels_by_blocks, panels_together
from onnx_fa.kernels.mlir.text import Text
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.target import parse_target

TILES = LinearTiles(16, 8, 4, 4, 4)


@pytest.mark.parametrize(
    ("groups", "workers", "most"),
    [(15, 2, 8), (16, 2, 8), (24, 2, 16), (32, 2, 16), (43, 2, 24), (22, 2, 14), (100, 16, 7), (1, 4, 1)],
)
def test_busiest_worker(groups: int, workers: int, most: int) -> None:
    """One workgroup after the other below eight for each worker, and eight at a time from there on."""
    assert busiest(groups, workers) == most


def _taken(filled: list[int], workers: int) -> int:
    """What the busiest of so many workers has, where they take eight of these at a time."""
    found = [0] * workers
    for first in range(0, len(filled), RESERVED):
        found[found.index(min(found))] += sum(filled[first : first + RESERVED])
    return max(found)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 16])
def test_spread(workers: int) -> None:
    """Each workgroup is there once, and no worker has many more than its share."""
    for groups in range(workers * RESERVED, 300):
        turns = -(-groups // (RESERVED * workers)) * workers
        filled = -(-groups // turns)
        ones = [int(at < filled and turn * filled + at < groups) for turn in range(turns) for at in range(RESERVED)]
        assert sum(ones) == groups
        assert _taken(ones, workers) <= turns_of(groups, workers)
        assert turns_of(groups, workers) <= groups / workers + turns // workers
    for groups in range(workers * RESERVED):
        assert turns_of(groups, workers) == busiest(groups, workers), "one after the other"


@pytest.mark.parametrize(("groups", "workers"), [(0, 2), (1, 2), (15, 2), (16, 2), (24, 2), (43, 2), (100, 3)])
def test_spread_as_operations(groups: int, workers: int) -> None:
    """What the operations say of so many workgroups."""
    t = Text()
    made = spread_groups(t, t.index(groups), workers)
    values = values_of(t.render(), {})
    at_once, turns, filled = (values[x] for x in (made.at_once, made.turns, made.filled))
    assert at_once == (RESERVED if groups >= workers * RESERVED else 1)
    assert at_once * turns >= groups and turns * filled >= groups and filled <= at_once
    assert at_once == 1 or (turns % workers == 0 and turns // workers * filled == turns_of(groups, workers))


def test_workers_have_alike() -> None:
    """128 rows of 24 panels are 24 workgroups of four panels, of which one of two workers would have 16; 22 panels of the rows of
    one workgroup are 22, of which it would have 14."""
    assert panels_together(4, Product(24, 4, 768, (2,))) == 8
    assert panels_together(1, Product(22, 1, 512, (2,))) == 2
    assert panels_together(4, Product(96, 4, 768, (2,))) == 4, "96 workgroups are shared out evenly enough"
    assert panels_together(1, Product(230, 4, 768)) <= 8


@pytest.mark.parametrize("workers", [(1,), (2,), (5,), (16,), WORKERS])
def test_no_worker_has_more_than_before(workers: tuple[int, ...]) -> None:
    for blocks in range(1, 40):
        for panels in (1, 3, 22, 24, 43, 96):
            for across in (1, 2, 4):
                together = panels_together(blocks, Product(panels, across, 768, workers))
                assert 1 <= together <= min(panels, 2 * across)
                if len(workers) == 1:
                    (n,) = workers
                    before, now = (busiest(blocks * -(-panels // k), n) * k for k in (min(across, panels), together))
                    assert now <= before, (blocks, panels, across)


def test_short_products_have_large_workgroups() -> None:
    """What each workgroup costs beside its products counts more where these are short."""
    long, short = (panels_by_blocks(Product(16, 4, steps, (2,))) for steps in (4096, 64))
    assert together_of(long, 9) == 1 and together_of(short, 9) > 1


def together_of(found: list[tuple[int, int]], blocks: int) -> int:
    return next((together for most, together in found if blocks <= most), found[-1][1])


@pytest.mark.parametrize("panels", [22, 24, 43, 96])
def test_runs_of_blocks(panels: int) -> None:
    """What a call chooses by: few numbers of panels, none of which leaves the busiest worker much more to do than others would."""
    found = panels_by_blocks(Product(panels, 4, 768, (2,)))
    assert [most for most, _ in found] == sorted({most for most, _ in found}) and len(found) < 8
    for blocks in range(1, 40):
        made = {n: busiest(blocks * -(-panels // n), 2) * n for n in range(1, min(8, panels) + 1)}
        assert made[together_of(found, blocks)] <= 1.15 * min(made.values()), blocks
    assert together_of(found, 1000) == 4


def values_of(lines: list[str], given: dict[str, int]) -> dict[str, int]:
    """What operations of indices make of the values given."""
    values = dict(given)
    ops: dict[str, Callable[[int, int], int]] = {
        "ceildivui": lambda a, b: -(-a // b),
        "muli": operator.mul,
        "maxui": max,
        "cmpi ule,": operator.le,
        "cmpi ult,": operator.lt,
    }
    for line in lines:
        if known := re.match(r"(%\w+) = arith\.constant (\d+) : index", line):
            values[known[1]] = int(known[2])
        elif chosen := re.match(r"(%\w+) = arith\.select (%\w+), (%\w+), (%\w+) :", line):
            values[chosen[1]] = values[chosen[3 if values[chosen[2]] else 4]]
        elif op := re.match(r"(%\w+) = arith\.(ceildivui|muli|maxui|cmpi ul[et],) (%\w+), (%\w+) :", line):
            values[op[1]] = int(ops[op[2]](values[op[3]], values[op[4]]))
    return values


def count_of(text: str, rows: int) -> int:
    """What the operations that count workgroups make of a number of rows."""
    return values_of(text[: text.index("flow.return")].splitlines(), {"%rows": rows})["%x"]


@pytest.mark.parametrize("rows", [1, 31, 32, 77, 128, 512, 5000])
def test_counts_of_calls(rows: int) -> None:
    """Rows that are known, and rows that only the run knows, of which each call counts its own workgroups."""
    free = LinearSpec(("b", "s"), 64, 768, "f32", panel=32)
    target, blocks = replace(parse_target("cpu-avx512"), name="cpu-host"), -(-rows // 32)
    counts = [
        count_of(next(iter(emit_with(spec, target, TILES).values())), rows)
        for spec in (free, replace(free, lead=(rows,)))
    ]
    product = Product(24, 4, 64, (target.cores or 0,))
    called, known = together_of(panels_by_blocks(product), blocks), panels_together(blocks, product)
    assert counts == [blocks * -(-24 // together) for together in (called, known)]
