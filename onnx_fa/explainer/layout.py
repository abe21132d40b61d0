"""Where things stand in rows, so that what is joined is near: an order by the mean of neighbours (Sugiyama et al., 1981), then
places as near to that mean as widths allow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

_SWEEPS = 8
"""Down and up in turn."""
_STRAIGHT_WEIGHT = 8.0


def place(
    rows: Sequence[Sequence[str]],
    widths: Mapping[str, float],
    joined: Sequence[tuple[str, str]],
    gap: float,
    straight: Collection[str] = (),
) -> dict[str, float]:
    """The centre of everything, the leftmost edge at 0. `joined`: pairs of an upper and a lower one in neighbouring rows.
    `straight`: what should stand right below what it is joined to, and rather moves others than itself."""
    above: dict[str, list[str]] = {key: [] for row in rows for key in row}
    below: dict[str, list[str]] = {key: [] for row in rows for key in row}
    for upper, lower in joined:
        above[lower].append(upper)
        below[upper].append(lower)
    orders = [list(row) for row in rows]
    at: dict[str, float] = {}
    for order in orders:
        at |= _packed(order, widths, gap)
    for sweep in range(_SWEEPS):
        for order in orders if sweep % 2 == 0 else orders[::-1]:
            near = {key: _mean(at, (above if sweep % 2 == 0 else below)[key], at[key]) for key in order}
            order.sort(key=near.__getitem__)
            at |= _packed(order, widths, gap)
    for sweep in range(_SWEEPS):
        for order in orders if sweep % 2 == 0 else orders[::-1]:
            beside = {key: above[key] if key in straight else [*above[key], *below[key]] for key in order}
            wanted = [_mean(at, beside[key], at[key]) for key in order]
            weights = [_STRAIGHT_WEIGHT if key in straight else 1.0 for key in order]
            at |= zip(order, _apart(wanted, weights, [widths[key] for key in order], gap), strict=True)
    left = min((at[key] - widths[key] / 2 for key in at), default=0.0)
    return {key: x - left for key, x in at.items()}


def _mean(at: Mapping[str, float], keys: Sequence[str], otherwise: float) -> float:
    return sum(at[key] for key in keys) / len(keys) if keys else otherwise


def _packed(order: Sequence[str], widths: Mapping[str, float], gap: float) -> dict[str, float]:
    """Side by side, around 0."""
    edge = -(sum(widths[key] for key in order) + gap * (len(order) - 1)) / 2
    at = {}
    for key in order:
        at[key] = edge + widths[key] / 2
        edge += widths[key] + gap
    return at


def _apart(wanted: Sequence[float], weights: Sequence[float], widths: Sequence[float], gap: float) -> list[float]:
    """The centres nearest to the wanted ones (least squares with weights) that keep the order and the gap between neighbours.

    Less the room that everything to the left takes, centres need only not decrease: runs that would are pooled at their mean."""
    room = [0.0]
    for left, right in pairwise(widths):
        room.append(room[-1] + (left + right) / 2 + gap)
    pools: list[tuple[float, float, int]] = []
    for x, weight, taken in zip(wanted, weights, room, strict=False):
        mean, count = x - taken, 1
        while pools and pools[-1][0] > mean:
            other, other_weight, other_count = pools.pop()
            mean = (other * other_weight + mean * weight) / (other_weight + weight)
            weight, count = weight + other_weight, count + other_count
        pools.append((mean, weight, count))
    means = [mean for mean, _, count in pools for _ in range(count)]
    return [mean + taken for mean, taken in zip(means, room, strict=False)]
