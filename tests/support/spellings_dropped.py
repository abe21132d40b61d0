"""Probabilities that masks set to zero behind the softmax, where something else is added to the scores or masks them too.

Speech toolkits write most of these: relative positions are a product of the queries with embeddings of positions, moved about, and
padding is masked on the scores and on the probabilities.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto as T

from tests.support.spellings_score import FULL, SKV, SQ, B, D, H, Site
from tests.support.spellings_score import feeds as feeds_of_scores

MATCH_DROPPED: dict[str, Callable[[], onnx.ModelProto]] = {}
NOT_DROPPED: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {}
WEIGHTED = {
    "moderate fill",
    "gathered positions, moderate fill",
    "two masks, moderate fill",
    "one of two masks, lowest fill",
}
"""Rows of MATCH_DROPPED whose masks on the probabilities are weights."""
LOWEST = float(np.finfo(np.float32).min)
ONLY = "does not have as its only mask"
feeds = feeds_of_scores
Change = Callable[[Site, str], str]


def shifted(g: Site, s: str) -> str:
    """Plus a product of Q and embeddings of distances, each row moved one further than the row before."""
    far = g.op("MatMul", g.q, g.input("table", [H, D, SKV]))
    padded = g.op("Pad", far, g.const([0, 0, 0, 1, 0, 0, 0, 0], np.int64))
    turned = g.op("Reshape", padded, g.const([B, H, SKV + 1, SQ], np.int64))
    cut = g.op("Slice", turned, *(g.const([x], np.int64) for x in (1, 1 << 62, 2, 1)))
    return g.op("Add", s, g.op("Reshape", cut, g.const(FULL, np.int64)))


def _gathered(g: Site, s: str) -> str:
    at = np.clip(np.arange(SQ)[:, None] - np.arange(SKV)[None, :] + 4, 0, 8)
    content = g.op("MatMul", g.q, g.op("Tanh", g.input("distances", [H, D, 9])))
    placed = g.op("GatherElements", content, g.const(np.broadcast_to(at, FULL), np.int64), axis=-1)
    return g.op("Add", g.op("Div", placed, g.const(1.7)), s)


def _learned(g: Site, s: str) -> str:
    return g.op("Add", s, g.const(np.linspace(-3, 3, H * SQ * SKV).reshape(1, H, SQ, SKV)))


def _plain(g: Site, s: str) -> str:
    return s


def _built(
    bias: Change = shifted,
    fill: float = -np.inf,
    shape: tuple[int, ...] = (B, 1, SQ, SKV),
    other: Change = _plain,
    behind: Callable[[Site, str, str], str] | None = None,
) -> Callable[[], onnx.ModelProto]:
    """Scores plus `bias`, masked by an input of `shape`, `other` done to them, and probabilities masked by the same input."""

    def build() -> onnx.ModelProto:
        g = Site()
        keep = g.input("keep", list(shape), T.BOOL)
        s = other(g, g.op("Where", keep, bias(g, g.score()), g.const(fill)))
        p = g.softmax(s)
        return g.done(g.times_v(behind(g, p, keep) if behind else g.op("Where", keep, p, g.const(0.0))))

    return build


def _twice(fill: float, dropped: tuple[int, ...] = (0, 1)) -> Callable[[], onnx.ModelProto]:
    """Two masks on the scores; `dropped` are those on the probabilities, in that order."""

    def build() -> onnx.ModelProto:
        g = Site()
        masks = [g.input("chunk", [B, 1, SQ, SKV], T.BOOL), g.input("padding", [B, 1, 1, SKV], T.BOOL)]
        s = shifted(g, g.score())
        for mask in masks:
            s = g.op("Where", mask, s, g.const(fill))
        p = g.softmax(s)
        for i in dropped:
            p = g.op("Where", masks[i], p, g.const(0.0))
        return g.done(g.times_v(p))

    return build


def _of_a_twin(g: Site, p: str, keep: str) -> str:
    dropped = g.op("Cast", g.op("Not", keep), to=T.BOOL)
    return g.op("Where", dropped, g.const(0.0), p)


def _added(name: str, shape: list[int]) -> Change:
    return lambda g, s: g.op("Add", s, g.input(name, shape))


def _outer(g: Site, s: str) -> str:
    """A mask for each key, by a product of one term, for all queries."""
    return g.op("Add", s, g.op("MatMul", g.const(np.ones((SQ, 1))), g.input("mask", [B, 1, 1, SKV])))


def _of_infinities(g: Site, s: str) -> str:
    """A product with an operand that is -inf in places."""
    table = g.op("Where", g.input("seen", [H, D, SKV], T.BOOL), g.input("table", [H, D, SKV]), g.const(-np.inf))
    return g.op("Add", s, g.op("MatMul", g.q, table))


def _chosen(fill: float) -> Change:
    """The product itself masked before it is added."""

    def change(g: Site, s: str) -> str:
        far = g.op("MatMul", g.q, g.input("table", [H, D, SKV]))
        return g.op("Add", s, g.op("Where", g.input("near", [SQ, SKV], T.BOOL), far, g.const(fill)))

    return change


_PADDING = (B, 1, 1, SKV)
MATCH_DROPPED |= {
    "relative shift": _built(),
    "relative shift, padding": _built(shape=_PADDING),
    "lowest fill": _built(fill=LOWEST),
    "moderate fill": _built(fill=-1e4),
    "gathered positions": _built(_gathered),
    "gathered positions, moderate fill": _built(_gathered, -1e4),
    "learned positions": _built(_learned),
    "two biases": _built(lambda g, s: _gathered(g, shifted(g, s))),
    "product masked by a number": _built(_chosen(-9.0)),
    "by a twin of the mask": _built(behind=_of_a_twin),
    "scaled behind the mask": _built(other=lambda g, s: g.op("Mul", s, g.const(0.3))),
    "two masks": _twice(-np.inf),
    "two masks, the other way round": _twice(LOWEST, (1, 0)),
    "two masks, moderate fill": _twice(-1e4),
    "one of two masks, lowest fill": _twice(LOWEST, (0,)),
    "padding alone of two masks": _twice(-np.inf, (1,)),
    "padding, a mask is added before": _built(_added("mask", [1, 1, SQ, SKV]), shape=_PADDING),
    "padding, a mask is added behind": _built(shape=_PADDING, other=_added("mask", [1, 1, SQ, SKV])),
    "padding, a product of infinities": _built(_of_infinities, shape=_PADDING),
}
NOT_DROPPED |= {
    "a bias that may be a mask": (_built(_added("mask", [1, H, SQ, SKV])), ONLY),
    "a bias that may be a mask, lowest fill": (_built(_added("mask", [1, H, SQ, SKV]), LOWEST, _PADDING), ONLY),
    "a product of one term": (_built(_outer), ONLY),
    "a product of infinities": (_built(_of_infinities), ONLY),
    "a product masked by -inf": (_built(_chosen(-np.inf)), ONLY),
    "a bias behind the mask": (_built(_plain, other=_added("mask", [1, H, SQ, SKV])), ONLY),
    "a mask of its own, rows may be empty": (
        _built(behind=lambda g, p, _: g.op("Where", g.input("visible", [SQ, SKV], T.BOOL), p, g.const(0.0))),
        ONLY,
    ),
    "the chunk alone of two masks": (_twice(-np.inf, (0,)), ONLY),
}
