"""Random relative positions: products of Q that are moved about and added to the scores, and masks on scores and probabilities."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto as T

from .areas_mask import condition, masked
from .sketch import FILLS, Sketch

_SHIFTS = ("shift", "shift", "cut", "cut", "plain", "plain", "chosen", "one term", "infinite", "input", "none")


def positioned(g: Sketch, score: str) -> str:
    """The scores (.., S, L) plus positions, masked once or twice."""
    r = g.r
    for _ in range(r.choice((0, 1, 1, 1, 2))):
        score = _placed(g, score)
    for _ in range(r.choice((1, 1, 1, 2, 2, 3))):
        if r.random() < 0.2:
            score = masked(g, score)
            continue
        keep = (
            condition(g)
            if r.random() < 0.5
            else g.given("keep", [*[n if r.random() < 0.5 else 1 for n in g.lead], 1, g.L], T.BOOL)
        )
        g.kept.append(keep)
        fill = g.floats(r.choice((-np.inf, -np.inf, -np.inf, *FILLS)))
        score = g.op("Where", keep, score, fill) if r.random() < 0.6 else g.op("Where", g.op("Not", keep), fill, score)
        if r.random() < 0.15:
            score = g.op("Mul", score, g.floats(r.choice((0.5, 2.0, -1.0))))
    return _placed(g, score) if r.random() < 0.1 else score


def _placed(g: Sketch, score: str) -> str:
    r = g.r
    way = r.choice(_SHIFTS)
    if way == "none" or 0 in g.score_shape:
        return score
    if way == "input":
        added = g.given_to_scores("bias", g.broadcast_shape())
    else:
        added = _moved(g, way)
    if r.random() < 0.2:
        added = g.op(r.choice(("Mul", "Div")), added, g.floats(r.choice((0.5, 3.0, 1e-5, 1e5))))
    return g.op(r.choice(("Add", "Add", "Add", "Sub")), *r.sample([score, added], 2))


def _moved(g: Sketch, way: str) -> str:
    """A product of Q and a table of positions, in the shape of the scores."""
    r = g.r
    width = 1 if way == "one term" else r.choice((2, 3))
    many = g.S + g.L - 1 if way == "cut" else g.L
    table = g.given("table", [*g.lead[-1:], width, many] if r.random() < 0.5 else [*g.lead, width, many])
    if way == "infinite":
        table = g.op("Where", g.given("seen", [width, many], T.BOOL), table, g.floats(-np.inf))
    q = g.op("Tanh", g.given("q", [*g.lead, g.S, width])) if r.random() < 0.3 else g.given("q", [*g.lead, g.S, width])
    far = g.op("MatMul", q, table)
    if way == "chosen":
        return g.op("Where", condition(g), far, g.floats(r.choice((0.0, -9.0, -1e4, -np.inf))))
    if way == "cut":
        start = r.randint(0, g.S - 1)
        return g.op("Slice", far, g.ints([start]), g.ints([start + g.L]), g.ints([g.rank - 1]))
    if way == "shift":
        before = [0] * (2 * g.rank)
        before[g.rank - 1] = 1
        padded = g.op("Pad", far, g.ints(before))
        turned = g.op("Reshape", padded, g.ints([*g.lead, g.L + 1, g.S]))
        cut = g.op("Slice", turned, g.ints([1]), g.ints([1 << 62]), g.ints([g.rank - 2]))
        return g.op("Reshape", cut, g.ints(g.score_shape))
    return far


def masked_again(g: Sketch, p: str) -> str:
    """Probabilities that the masks of the scores, most of them or another one set to zero."""
    r = g.r
    kept = [keep for keep in g.kept if r.random() < 0.85]
    r.shuffle(kept)
    if r.random() < 0.05:
        kept.append(condition(g))
    for keep in kept:
        way = r.random()
        if way < 0.5:
            p = g.op("Where", keep, p, g.floats(0.0))
        elif way < 0.8:
            p = g.op("Where", g.op("Not", keep), g.floats(0.0), p)
        elif way < 0.9:
            p = g.op("Where", g.op("Cast", g.op("Not", keep), to=T.BOOL), g.floats(0.0), p)
        else:
            p = g.op("Mul", p, g.op("Cast", keep, to=g.float_type))
    return p
