"""Vectors that are picked out of neighbours: they are all the places that were asked for, and nothing outside of a row is read."""

from __future__ import annotations

import random

import pytest

from onnx_fa.kernels.cpu.picked import find_picks


def columns_of(width: int, columns: int, taps: int) -> list[list[int]]:
    """Of nearest or linear interpolation."""
    low = [max(0, min(width - 1, (2 * j + 1) * width // (2 * columns) - (taps > 1) * (j % 2))) for j in range(columns)]
    return [[min(place + tap, width - 1) for place in low] for tap in range(taps)]


def assert_picked(places: list[list[int]], width: int, lanes: int) -> int:
    """The number of groups."""
    picks, found = find_picks(places, width, lanes), [dict[int, int]() for _ in places]
    for group in picks:
        for i in range(group.count):
            base = group.base + i * group.step
            assert base >= 0 and base + group.window * lanes <= width
            for tap, mask in zip(found, group.masks, strict=True):
                tap |= {group.start + i * lanes + lane: base + place for lane, place in enumerate(mask)}
                assert all(0 <= place < group.window * lanes for place in mask)
    if picks:
        assert [[tap[j] for j in range(len(places[0]))] for tap in found] == places
    return len(picks)


def test_any_sizes() -> None:
    r = random.Random(0)
    tried = 0
    for _ in range(400):
        lanes = r.choice((1, 2, 4, 8, 16))
        width, columns = r.randint(1, 80), r.randint(lanes, 160)
        tried += assert_picked(columns_of(width, columns, r.choice((1, 2))), width, lanes) > 0
    assert tried > 100


@pytest.mark.parametrize(("width", "columns", "groups"), [(64, 128, 3), (128, 64, 2), (16, 128, 8), (32, 32, 1)])
def test_alike(width: int, columns: int, groups: int) -> None:
    """By whole factors only those are others that lie less than a vector from an end."""
    places = columns_of(width, columns, 1) if columns <= width else [
        [min(max(0, (2 * j + 1 - columns // width) * width // (2 * columns)) + tap, width - 1) for j in range(columns)]
        for tap in (0, 1)
    ]  # fmt: skip
    assert assert_picked(places, width, 8) == groups


def test_far_apart() -> None:
    assert find_picks([[0, 30, 60, 90]], 100, 4) == []
