"""Caches that grow in place: a model whose caches are buffers that the caller owns, with the new rows written into them.

An exported decoder takes what it has seen as `past` (B, H, P, D) and returns it with the new rows as `present` (B, H, P + S, D): a
copy of the whole cache for each token. Here the caller passes T = P + S rows instead, of which the last S are still to be written,
and gets the same rows back. Rows come first, (T, B, H, D), so that a longer cache is the same memory with a larger first dim: the
caller keeps one buffer for all the rows there will ever be, and passes its beginning. The compiler then writes the new rows where
they belong.

Two operators of a domain of our own say this; no file for users has them.

PastRows(cache, tokens) -> past: the rows before the new ones, as the model takes them. `tokens` (B, S, ...) has as many columns as
there are new rows. All batch entries have as many.
AppendRows(cache, new) -> cache: the cache with its last rows replaced by `new` (S, B, H, D).
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from onnx_fa.graph.ops import attr_int, op_of
from onnx_fa.graph.site_op import DOMAIN

PAST_ROWS = f"{DOMAIN}.PastRows"
APPEND_ROWS = f"{DOMAIN}.AppendRows"


def rows_first(rank: int, axis: int) -> tuple[int, ...]:
    """The permutation that brings the rows to the front."""
    return (axis, *(i for i in range(rank) if i != axis))


def back_in_place(rank: int, axis: int) -> tuple[int, ...]:
    """The permutation that undoes `rows_first`."""
    order = rows_first(rank, axis)
    return tuple(order.index(i) for i in range(rank))


@dataclass(frozen=True)
class Growing:
    """A cache behind a value that the model takes for its past: `cache` (T, ...), whose rows are axis `axis` of the past."""

    cache: ir.Value
    axis: int


def growing_cache(past: object) -> Growing | None:
    """The cache whose rows a value is; None for any other value."""
    node = past.producer() if isinstance(past, ir.Value) else None
    if node is None or op_of(node) != PAST_ROWS or node.inputs[0] is None:
        return None
    return Growing(node.inputs[0], attr_int(node, "axis", 2))
