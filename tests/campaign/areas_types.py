"""Scores in f32 between operands of f16 or bf16 (`Sketch.mixed`): where the casts stand, and where a cast rounds something else."""

from __future__ import annotations

from onnx import TensorProto as T

from .areas_operand import operand
from .areas_score import FACTORS, times
from .sketch import NARROW, Sketch


def _cast(g: Sketch, x: str, to: int) -> str:
    return g.op("Cast", x, to=to)


def _other(g: Sketch) -> int:
    return next(kind for kind in NARROW if kind != g.own)


def to_scores(g: Sketch, name: str) -> str:
    """Q or K as the product takes it: of mixed types cast up from the operands' type, mostly; from another one, rounded to another
    one on the way, or never narrow."""
    if not g.mixed:
        return operand(g, name)
    way = g.r.choice((*("own",) * 12, "wide", "wide", "other", "rounded"))
    g.float_type = {"wide": T.FLOAT, "other": _other(g)}.get(way, g.own)
    x = operand(g, name)
    if g.r.random() < 0.15:
        x = times(g, x, g.r.choice(FACTORS))
    if way == "rounded":
        x = _cast(g, x, _other(g))
    x = x if way == "wide" else _cast(g, x, T.FLOAT)
    g.float_type = g.own
    return x


def rounded_scores(g: Sketch, score: str) -> str:
    """Scores of mixed types, now and then rounded to the operands' type, or left in it."""
    if g.mixed and g.r.random() < 0.1:
        score = _cast(g, score, g.own)
        if g.r.random() < 0.3:
            g.float_type = g.own
        else:
            score = _cast(g, score, T.FLOAT)
    return score


def lowered(g: Sketch, p: str, v: str) -> tuple[str, str]:
    """Probabilities and V as their product takes them: the former cast down, mostly, or V up, and neither or both rounded."""
    if not g.mixed:
        return p, v
    way = g.r.choice((*("down",) * 9, "up", "up", "through", "again"))
    if way == "through":
        p = _cast(g, p, _other(g))
    if way in ("down", "through"):
        g.float_type = g.own
        return _cast(g, p, g.own), v
    if way == "again":
        p = _cast(g, p, g.own)
    g.float_type = T.FLOAT
    return _cast(g, p, T.FLOAT), _cast(g, v, T.FLOAT)


def returned(g: Sketch, out: str) -> str:
    """The result of mixed types in the operands' type, or another one now and then."""
    if g.mixed and (g.float_type != g.own or g.r.random() < 0.2):
        g.float_type = g.r.choice((g.own, g.own, g.own, T.FLOAT, _other(g)))
        out = _cast(g, out, g.float_type)
    return out
