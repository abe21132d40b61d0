"""Attention whose lengths follow from tables that are cut, from axes that are filled up, and from rows that are picked."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from tests.support.spellings_layout import D, Dynamic, E, H, feeds, qkv

__all__ = ["MATCH", "feeds"]

MATCH: dict[str, Callable[[], onnx.ModelProto]] = {}
ROWS = 7
"""Rows of the tables."""


def match(build: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    MATCH[build.__name__] = build
    return build


def table(g: Dynamic, *dims: int) -> str:
    return g.const(np.random.default_rng(0).standard_normal(dims).astype(np.float32))


def last_rows(g: Dynamic, x: str, count: str, axis: int) -> str:
    """x[-count:] along an axis."""
    start = g.unsqueeze(g.op("Neg", count), 0)
    ends = [g.const([n], np.int64) for n in ((1 << 63) - 1, axis)]
    return g.op("Slice", x, start, *ends)


@match
def a_bias_of_the_last_rows_of_a_table() -> onnx.ModelProto:
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", H, "s", D), ("b", H, "s", D), ("b", H, "s", E))
    score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
    bias = last_rows(g, table(g, H, ROWS, ROWS), g.dim(q, 2), 1)
    bias = last_rows(g, bias, g.dim(q, 2), 2)
    return g.done(g.op("MatMul", g.softmax(g.op("Add", score, bias)), v), "b", H, "s", E)


@match
def a_bias_of_positions_counted_at_export() -> onnx.ModelProto:
    """The exporter wrote ROWS where it reshaped the positions: other lengths fail there."""
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", H, "t", D), ("b", H, "t", D), ("b", H, "t", E))
    score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
    zero, one = (g.const(n, np.int64) for n in (0, 1))
    positions = g.op("Range", zero, g.dim(q, 2), one)
    across, down = (g.op("Reshape", positions, g.const(to, np.int64)) for to in ([1, ROWS], [ROWS, 1]))
    bias = g.op("Cast", g.op("Sub", across, down), to=1)
    return g.done(g.op("MatMul", g.softmax(g.op("Add", score, bias)), v), "b", H, "t", E)


@match
def rows_of_neighbours_filled_up() -> onnx.ModelProto:
    """Q is of what is moved up by one row and filled up by another, beside a table of positions."""
    g = Dynamic(17)
    x = g.input("q", ["b", "s", H * D])
    ends = [g.const([n], np.int64) for n in (1, (1 << 63) - 1, 1)]
    moved = g.op("Pad", g.op("Slice", x, *ends), g.const([0, 0, 0, 0, 1, 0], np.int64))
    positions = g.op("Slice", table(g, 1, ROWS, H * D), g.const([0], np.int64), g.unsqueeze(g.dim(x, 1), 0), ends[2])
    rows = g.op("Add", moved, positions)
    b, s = g.dim(x, 0), g.dim(x, 1)
    q = g.transpose(g.to(rows, b, s, H, D), 0, 2, 1, 3)
    k = g.transpose(g.to(x, b, s, H, D), 0, 2, 1, 3)
    p = g.softmax(
        g.op("Add", g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2))), g.input("mask", ["b", 1, 1, "s"]))
    )
    mixed = g.op("Add", g.op("MatMul", p, k), g.transpose(g.to(moved, b, s, H, D), 0, 2, 1, 3))
    return g.done(mixed, "b", H, "s", D)


@match
def angles_picked_by_tuples() -> onnx.ModelProto:
    """Q and K are turned by angles whose rows are picked by tuples of a constant, two of each."""
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", H, "s", D), ("b", H, "s", D), ("b", H, "s", E))
    angles = g.unsqueeze(g.input("angles", [D // 2, "s", "b"]), 1)
    picks = [[i, j] for i in range(D // 2) for j in range(2)]
    rows = g.op("GatherND", g.op("Concat", angles, angles, axis=1), g.const(picks, np.int64))
    by = g.unsqueeze(g.op("Cos", g.transpose(rows, 2, 1, 0)), 1)
    score = g.op("MatMul", g.op("Mul", q, by), g.transpose(g.op("Mul", k, by), 0, 1, 3, 2))
    return g.done(g.op("MatMul", g.softmax(g.scaled(score)), v), "b", H, "s", E)


@match
def blocks_by_an_einsum_with_dots() -> onnx.ModelProto:
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", "s", 9, H, D), ("b", "s", 27, H, D), ("b", "s", 27, H, E))
    score = g.einsum("...qhd,...khd->...hqk", q, k)
    p = g.softmax(g.op("Add", score, g.input("mask", [1, 1, H, 9, 27])))
    return g.done(g.einsum("...hqk,...khd->...qhd", p, v), "b", "s", 9, H, E)


@match
def a_window_of_a_table_beside_a_cache() -> onnx.ModelProto:
    """Only what the keys show of the table tells how many rows of it are left for the queries."""
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", H, "s", D), ("b", H, "p + s", D), ("b", H, "p + s", E))
    score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
    total = g.dim(k, 2)
    start = g.op("Sub", total, g.dim(q, 2))
    keep = g.const(np.tril(np.ones((1, 1, 64, 64), bool)), np.bool_)
    for first, axis in ((g.unsqueeze(start, 0), 2), (g.const([0], np.int64), 3)):
        keep = g.op("Slice", keep, first, g.unsqueeze(total, 0), g.const([axis], np.int64))
    masked = g.op("Where", keep, score, g.const(np.float32(-3.4e38)))
    out = g.op("MatMul", g.softmax(masked), v)
    # The length that the mask gives the probabilities goes on into a reshape.
    return g.done(g.to(out, g.dim(masked, 0), H, g.dim(masked, 2), E), "b", H, "s", E)
