"""Rotary embedding (Su et al. 2021, "RoFormer", arXiv:2104.09864) in standard ops, for whoever adds them to a graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Ops(Generic[T]):
    """How values of some kind are made: names of a proto's values, operand expressions."""

    op: Callable[..., T]
    """op(name, *inputs, **attributes): a standard op with one output."""
    ints: Callable[..., T]
    """ints(*numbers): a vector of int64."""
    scalar: Callable[[int], T]
    """A single int64."""


def rotate_heads(
    ops: Ops[T], x: T, cos: T, sin: T, *, half: int, head_dim: int, third: int = 0, interleaved: bool = False
) -> T:
    """x of four dims, the last of which is `head_dim`, with the first 2 * `half` numbers of every head rotated, pair by pair; the
    others stay. `cos` and `sin`, `half` wide, broadcast to x. A pair is numbers i and i + half, or if `interleaved` 2 * i and
    2 * i + 1. `third` is the size of the third dim, 0 where a Reshape is to copy it."""

    def columns(start: int, end: int) -> T:
        return ops.op("Slice", x, ops.ints(start), ops.ints(end), ops.ints(-1))

    if interleaved:
        pairs = ops.op("Reshape", columns(0, 2 * half), ops.ints(0, 0, third, half, 2))
        first, second = (ops.op("Gather", pairs, ops.scalar(i), axis=4) for i in (0, 1))
    else:
        first, second = columns(0, half), columns(half, 2 * half)
    real = ops.op("Sub", ops.op("Mul", first, cos), ops.op("Mul", second, sin))
    imaginary = ops.op("Add", ops.op("Mul", first, sin), ops.op("Mul", second, cos))
    parts = [real, imaginary]
    if interleaved:
        both = ops.op("Concat", *(ops.op("Unsqueeze", part, ops.ints(4)) for part in parts), axis=4)
        parts = [ops.op("Reshape", both, ops.ints(0, 0, third, 2 * half))]
    if 2 * half < head_dim:
        parts.append(columns(2 * half, head_dim))
    return parts[0] if len(parts) == 1 else ops.op("Concat", *parts, axis=3)
