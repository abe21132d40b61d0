"""Attention with what an If makes, as TorchScript exports a Python `if` on sizes: DeBERTa's, whose scores hold biases that are
gathered from products of Q and K with tables of relative positions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h

from tests.support.spellings_layout import D, Dynamic, E, H, feeds, qkv

__all__ = ["MATCH", "REFUSE", "feeds"]

MATCH: dict[str, Callable[[], onnx.ModelProto]] = {}
REFUSE: dict[str, Callable[[], onnx.ModelProto]] = {}
BUCKETS = 4
"""Relative positions that have a row of their own on either side."""


def match(build: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    MATCH[build.__name__] = build
    return build


def refuse(build: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    REFUSE[build.__name__] = build
    return build


def chosen(g: Dynamic, condition: str, yes: onnx.NodeProto, no: onnx.NodeProto) -> str:
    """What one of two nodes makes, of f32 and a rank that no branch tells."""
    branches = [
        h.make_graph([node], node.output[0], [], [h.make_tensor_value_info(node.output[0], T.FLOAT, None)])
        for node in (yes, no)
    ]
    return g.op("If", g.op("Cast", condition, to=T.BOOL), then_branch=branches[0], else_branch=branches[1])


def differ(g: Dynamic, a: str, b: str) -> str:
    return g.op("Not", g.op("Equal", a, b))


def gathered(g: Dynamic, x: str, index: str, seed: int) -> str:
    """The products of the rows of x with a table of relative positions, at the places of `index`."""
    table = g.const(np.random.default_rng(seed).standard_normal((1, H, D, 2 * BUCKETS)).astype(np.float32))
    dims = [*(g.dim(x, i) for i in (0, 1, 2)), g.dim(index, 3)]
    at = g.op("Expand", index, g.op("Concat", *(g.unsqueeze(d, 0) for d in dims), axis=0))
    return g.op("GatherElements", g.op("MatMul", x, table), at, axis=-1)


def positions(g: Dynamic, x: str) -> str:
    """[1, 1, s, s]: by how many rows one is behind the other."""
    zero, one = (g.const(n, np.int64) for n in (0, 1))
    rows = g.op("Range", zero, g.dim(x, 2), one)
    return g.unsqueeze(g.op("Sub", g.unsqueeze(rows, 1), g.unsqueeze(rows, 0)), 0, 1)


def bucket(g: Dynamic, apart: str) -> str:
    """The row of the table."""
    ends = [g.const(n, np.int64) for n in (0, 2 * BUCKETS - 1)]
    return g.op("Clip", g.op("Add", apart, g.const(BUCKETS, np.int64)), *ends)


@match
def biases_of_relative_positions_behind_ifs() -> onnx.ModelProto:
    """Were the numbers of queries and keys not the same, positions would be made anew, of another rank."""
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", H, "s", D), ("b", H, "s", D), ("b", H, "s", E))
    q = g.scaled(q)
    score = g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2))
    content = gathered(g, q, bucket(g, positions(g, q)), 1)
    position = g.transpose(gathered(g, k, bucket(g, g.op("Neg", positions(g, k))), 2), 0, 1, 3, 2)
    position = chosen(
        g,
        differ(g, g.dim(q, 2), g.dim(k, 2)),
        h.make_node("Squeeze", [position], ["squeezed"]),
        h.make_node("Identity", [position], ["kept"]),
    )
    score = g.op("Add", score, g.op("Add", content, position))
    hidden = g.op("Not", g.input("mask", ["b", 1, "s", "s"], T.BOOL))
    masked = g.op("Where", hidden, g.const(np.float32(-3.4028235e38)), score)
    return g.done(g.op("MatMul", g.softmax(masked), v), "b", H, "s", E)


@match
def a_bias_whose_branches_have_one_shape() -> onnx.ModelProto:
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", H, "s", D), ("b", H, "t", D), ("b", H, "t", E))
    score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
    bias = g.input("mask", ["b", 1, "s", "t"])
    bias = chosen(
        g,
        differ(g, g.dim(q, 2), g.dim(k, 2)),
        h.make_node("Neg", [bias], ["turned"]),
        h.make_node("Identity", [bias], ["kept"]),
    )
    return g.done(g.op("MatMul", g.softmax(g.op("Add", score, bias)), v), "b", H, "s", E)


@refuse
def a_bias_whose_branches_have_two_ranks() -> onnx.ModelProto:
    """Only a run tells whether there are as many queries as keys: where there are not, the product with V has an axis more."""
    g = Dynamic(17)
    q, k, v = qkv(g, ("b", H, "s", D), ("b", H, "t", D), ("b", H, "t", E))
    score = g.scaled(g.op("MatMul", q, g.transpose(k, 0, 1, 3, 2)))
    bias = g.input("mask", ["b", 1, "s", "t"])
    bias = chosen(
        g,
        differ(g, g.dim(q, 2), g.dim(k, 2)),
        h.make_node("Unsqueeze", [bias, g.const([0], np.int64)], ["longer"]),
        h.make_node("Identity", [bias], ["kept"]),
    )
    out = g.op("MatMul", g.softmax(g.op("Add", score, bias)), v)
    return g.done(g.to(out, g.dim(q, 0), H, g.dim(q, 2), E), "b", H, "s", E)
