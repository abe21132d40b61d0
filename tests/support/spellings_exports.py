"""Attention as single model families write it: what `scripts/families.py` met and no axis of `spellings.Spelling` has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h

from tests.support.spellings import Graph

B, H, S, N, D = 2, 4, 5, 7, 8
"""Batch, heads, queries, keys, head dim."""


def _masked(keep_of: Callable[[Graph, str], str]) -> Callable[[], onnx.ModelProto]:
    """Attention whose masked keys are told by `keep_of(graph, score)`."""

    def build() -> onnx.ModelProto:
        g = Graph(18)
        q, k, v = g.input("q", [B, H, S, D]), g.input("k", [B, H, N, D]), g.input("v", [B, H, N, D])
        score = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
        masked = g.op("Where", keep_of(g, score), score, g.const(-np.inf))
        g.nodes.append(h.make_node("MatMul", [g.op("Softmax", masked, axis=-1), v], ["o"], name="pv"))
        return g.model({"o": ([B, H, S, D], T.FLOAT)})

    return build


def _expanded(g: Graph, score: str) -> str:
    """XLM by the older exporter: the padding mask is expanded to the shape that the score has."""
    return g.op("Expand", g.input("mask", [B, 1, 1, N], T.BOOL), g.op("Shape", score))


def _above_mean(g: Graph, score: str) -> str:
    """A threshold of the row itself: no mask, but a function of the whole row."""
    mean = g.op("ReduceMean", score, g.const([-1], np.int64))
    return g.op("Greater", g.op("Expand", score, g.op("Shape", score)), mean)


MATCH: dict[str, Callable[[], onnx.ModelProto]] = {"mask_expanded_to_the_shape_of_the_score": _masked(_expanded)}
REFUSE: dict[str, Callable[[], onnx.ModelProto]] = {"threshold_of_the_row": _masked(_above_mean)}
