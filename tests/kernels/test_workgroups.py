"""Workgroups of linear sites on CPUs: how many panels of a weight each has, so that workers of IREE's have alike."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from onnx_fa.kernels.cpu.linear import emit_with
from onnx_fa.kernels.cpu.linear_body import LinearTiles
from onnx_fa.kernels.cpu.workgroups import WORKERS, Product, busiest, panels_by_blocks, panels_together
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


def count_of(text: str, rows: int) -> int:
    """What the operations that count workgroups make of a number of rows."""
    values: dict[str, int] = {"%rows": rows}
    ops: dict[str, Callable[[int, int], int]] = {
        "ceildivui": lambda a, b: -(-a // b),
        "muli": operator.mul,
        "cmpi ule,": operator.le,
    }
    for line in text[: text.index("flow.return")].splitlines():
        if known := re.match(r"(%\w+) = arith\.constant (\d+) : index", line):
            values[known[1]] = int(known[2])
        elif chosen := re.match(r"(%\w+) = arith\.select (%\w+), (%\w+), (%\w+) :", line):
            values[chosen[1]] = values[chosen[3 if values[chosen[2]] else 4]]
        elif op := re.match(r"(%\w+) = arith\.(ceildivui|muli|cmpi ule,) (%\w+), (%\w+) :", line):
            values[op[1]] = int(ops[op[2]](values[op[3]], values[op[4]]))
    return values["%x"]


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
