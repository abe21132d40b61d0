"""Random spellings of the softmax, what happens to probabilities, the product with V, and what stands behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto as T

from .areas_mask import condition, masked
from .areas_operand import cut, sliced
from .areas_positions import masked_again
from .areas_score import FACTORS, gemm, times
from .areas_types import lowered, returned
from .sketch import Sketch

USUAL = ("drop", "drop", "drop", "mask", "anew", "guard", "guard", "rows", "keys", "scale", "lost", "noop")
UNUSUAL = ("anew_eps", "twice", "odd", "anew")
"""What happens to probabilities."""


def weighed(g: Sketch, score: str, v: str) -> str:
    """The result (.., S, E) of scores (.., S, L) and v (.., L, E)."""
    r = g.r
    if g.likes("behind", 0.35, 0.4 if g.kind == "foreign" else 0.05):
        return _divided_late(g, score, v)
    if g.rank == 4 and g.likes("cuts", 0.25, 0.02):
        return _difference(g, score, v)
    if r.random() < 0.08:
        return _keys_first(g, score, v)
    p = _changed(g, softmax(g, score), score)
    p = g.edge(p, "p")
    if g.likes("readers", 0.5, 0.03):
        g.show(r.choice((p, score)), "scores")
    if g.likes("readers", 0.4, 0.03):
        statistic = g.reduced(r.choice(("ReduceLogSumExp", "ReduceMax", "ReduceSum")), score) if g.L else score
        g.show(statistic, "rows" if g.L else "scores")
    return _behind(g, _times_v(g, p, v))


def softmax(g: Sketch, score: str) -> str:
    """Probabilities, normalised along the keys."""
    r = g.r
    ways = ("op", "positive", "explicit", "log", "lse", "plus_one", "column", "cast", "bare", "keys")
    way = r.choice(ways) if r.random() < 0.5 else "op"
    if g.L == 0 and way in ("explicit", "lse", "plus_one", "log", "bare") and r.random() < 0.7:
        way = "op"
    if way == "positive":
        return g.op("Softmax", score, axis=g.rank - 1)
    if way == "explicit":
        e, _ = exponentials(g, score)
        total = g.reduced("ReduceSum", e)
        return g.op("Div", e, total) if r.random() < 0.7 else g.op("Mul", e, g.op("Reciprocal", total))
    if way == "bare":
        e = g.op("Exp", score)
        return g.op("Div", e, g.reduced("ReduceSum", e))
    if way == "log":
        return g.op("Exp", g.op("LogSoftmax", score, axis=-1))
    if way == "lse":
        return g.op("Exp", g.op("Sub", score, g.reduced("ReduceLogSumExp", score)))
    if way == "plus_one":
        top = g.op("Max", g.reduced("ReduceMax", score), g.floats(0.0))
        e = g.op("Exp", g.op("Sub", score, top))
        return g.op("Div", e, g.op("Add", g.reduced("ReduceSum", e), g.op("Exp", g.op("Neg", top))))
    if way == "column":
        both = g.op("Concat", score, g.floats(np.full((*g.lead, g.S, 1), 0.3)), axis=-1)
        return g.op("Slice", g.op("Softmax", both, axis=-1), g.ints([0]), g.ints([-1]), g.ints([-1]))
    if way == "cast":
        return g.op("Cast", g.op("Softmax", g.op("Cast", score, to=T.FLOAT), axis=-1), to=g.float_type)
    if way == "keys":
        return g.swapped(g.op("Softmax", g.swapped(score), axis=-2))
    return g.op("Softmax", score, axis=-1)


def exponentials(g: Sketch, score: str) -> tuple[str, str]:
    top = g.reduced("ReduceMax", score)
    return g.op("Exp", g.op("Sub", score, top)), top


def _changed(g: Sketch, p: str, score: str) -> str:
    """Probabilities, perhaps masked, divided anew, guarded or scaled."""
    r = g.r
    if g.kind == "positions":
        p = masked_again(g, p)
        if r.random() < 0.8:
            return p
    count = r.choice((1, 1, 2, 3)) if g.kind == "behind" else r.choice((0, 0, 0, 0, 1, 2))
    for _ in range(count):
        way = r.choice(USUAL if r.random() < 0.85 else UNUSUAL)
        if way == "anew" and r.random() < 0.7:  # what is divided anew has been masked before, mostly
            p = g.op("Mul", p, g.op("Cast", _known_condition(g), to=g.float_type))
        if way == "drop":
            keep = _known_condition(g)
            p = g.op("Where", keep, p, g.floats(0.0)) if r.random() < 0.7 else g.op("Where", keep, g.floats(0.0), p)
        elif way == "mask":
            p = g.op("Mul", p, g.op("Cast", _known_condition(g), to=g.float_type))
        elif way in ("anew", "anew_eps"):
            total = g.reduced("ReduceSum", p)
            if way == "anew_eps":
                total = g.op(r.choice(("Add", "Max")), total, g.floats(r.choice((1e-9, 1e-3))))
            if way == "anew" and r.random() < 0.4:  # rows of which nothing is left are zero
                some = g.op("Greater", total, g.floats(0.0))
                p = g.op("Div", p, g.op("Where", some, total, g.floats(1.0)))
                p = g.op("Where", some, p, g.floats(0.0)) if r.random() < 0.8 else p
            else:
                p = g.op("Div", p, total)
        elif way == "guard":
            lost = g.op("IsNaN", p)
            if r.random() < 0.7:
                p = g.op("Where", lost, g.floats(0.0), p)
            else:
                p = g.op("Where", g.op("Not", lost), p, g.floats(r.choice((0.0, 1.0))))
        elif way == "rows":
            p = g.op(r.choice(("Mul", "Div", "Add")), p, g.floats(np.linspace(0.5, 2, g.S)[:, None]))
        elif way == "keys":
            p = g.op(r.choice(("Mul", "Div")), p, g.floats(np.linspace(0.5, 2, g.L)))
        elif way == "scale":
            p = times(g, p, r.choice(FACTORS))
        elif way == "twice":
            p = g.op("Softmax", p, axis=-1)
        elif way == "lost" and g.L:
            lost = g.op("Equal", g.reduced("ReduceMax", score), g.floats(-np.inf))
            p = g.op("Where", lost, g.floats(0.0), p)
        elif way == "odd":
            p = g.op(r.choice(("Neg", "Abs", "Relu", "Exp")), p)
        elif way == "noop":
            p = g.op(r.choice(("Identity", "Dropout")), p)
    return p


def _known_condition(g: Sketch) -> str:
    """A condition by which the scores have been masked, mostly; else a new one."""
    return g.r.choice(g.kept) if g.kept and g.r.random() < 0.75 else condition(g)


def _times_v(g: Sketch, p: str, v: str) -> str:
    r = g.r
    p, v = lowered(g, p, v)
    ways = ["plain", "plain", "plain", "einsum", "turned", "fused", "split", "two"]
    if g.rank == 2:
        ways += ["gemm"] * 3
    way = r.choice(ways)
    if way == "fused" and g.float_type in (T.FLOAT, T.DOUBLE):
        return g.op("FusedMatMul", p, v, alpha=r.choice(FACTORS), domain="com.microsoft")
    if way == "einsum":
        letters = "bh"[: g.rank - 2]
        return g.op("Einsum", p, v, equation=f"{letters}ij,{letters}je->{letters}ie")
    if way == "turned":
        return g.swapped(g.op("MatMul", g.swapped(v), g.swapped(p)))
    if way == "gemm":
        return gemm(g, p, v, g.S, g.E, transposed=False)
    if way == "split" and g.L > 1:
        at = r.randint(1, g.L - 1)
        ends = ((0, at, 1), (at, 2**31 - 1, 1))
        parts = [g.op("MatMul", sliced(g, p, -1, e), sliced(g, v, -2, e)) for e in ends]
        return g.op("Add", *parts)
    if way == "two":
        second = g.op("MatMul", p, g.given("v", [*g.lead, g.L, g.E]))
        first = g.op("MatMul", p, v)
        if r.random() < 0.5:
            return g.op("Add", first, second)
        g.show(second, "result")
        return first
    return g.op("MatMul", p, v)


def _divided_late(g: Sketch, score: str, v: str) -> str:
    """Exponentials, masked or not, times V, divided by one sum or another, now and then twice."""
    r = g.r
    e = exponentials(g, score)[0] if g.L and r.random() < 0.85 else g.op("Exp", score)
    weights = e
    if r.random() < 0.35:
        weights = g.op("Mul", e, g.op("Cast", _known_condition(g), to=g.float_type))
    elif r.random() < 0.2:
        weights = g.op("Where", _known_condition(g), e, g.floats(0.0))

    def total() -> str:
        found = g.reduced("ReduceSum", weights if r.random() < 0.7 else e)
        if r.random() < 0.15:
            found = g.op("Add", found, g.floats(r.choice((1e-6, 1.0))))
        return g.op("Cast", found, to=g.float_type) if g.mixed else found

    p = g.op("Div", weights, total()) if r.random() < 0.4 else weights
    out = g.op("MatMul", *lowered(g, g.edge(p, "p"), v))
    for _ in range(r.choice((1, 1, 1, 2) if p == weights else (0, 0, 1))):
        out = g.op("Div", _step(g, out), total())
    return _behind(g, out)


def _step(g: Sketch, x: str) -> str:
    """Now and then a node that does nothing, or changes the number."""
    if g.r.random() < (0.6 if g.kind == "foreign" else 0.15):
        return g.op(g.r.choice(("Identity", "Identity", "Neg", "Relu", "Dropout")), x)
    return x


def _difference(g: Sketch, score: str, v: str) -> str:
    """Two softmaxes, or one of twice the heads in two halves; their difference times V."""
    r = g.r
    g.base += " difference/"
    if r.random() < 0.4:
        other = g.op("MatMul", g.given("q", [*g.lead, g.S, 2]), g.given("k", [*g.lead, 2, g.L]))
        halves = [softmax(g, score), softmax(g, other)]
    else:
        q = g.given("q", [g.B, 2 * g.H, g.S, g.D])
        both = g.op("MatMul", q, g.given("k", [g.B, 2 * g.H, g.D, g.L]))
        both = g.op("Softmax", masked(g, both) if r.random() < 0.3 and g.H == 1 else both, axis=r.choice((-1, 3)))
        halves = [sliced(g, both, r.choice((1, -3)), ends) for ends in _halves(g)]
    second = (
        times(g, halves[1], r.choice(FACTORS)) if r.random() < 0.7 else g.op("Mul", halves[1], g.given("factor", [1]))
    )
    return _behind(g, _times_v(g, g.op(r.choice(("Sub", "Sub", "Add")), halves[0], second), v))


def _halves(g: Sketch) -> list[tuple[int, int, int]]:
    """Slices of the first and the second half of the heads, with ends that say so in any way; sometimes others of that length."""
    r, n = g.r, g.H
    if r.random() < 0.75:
        return [
            (r.choice((0, -2 * n, -10, -(2**31))), r.choice((n, -n)), 1),
            (r.choice((n, -n)), r.choice((2 * n, 10, 2**31 - 1)), 1),
        ]
    found: list[tuple[int, int, int]] = []
    while len(found) < 2:
        whole, ends = cut(g, n)
        if whole == 2 * n:
            found.append(ends)
    return found


def _keys_first(g: Sketch, score: str, v: str) -> str:
    """Scores and probabilities with the keys before the queries."""
    p: Any = g.op("Softmax", g.swapped(score), axis=-2)
    p, v = lowered(g, p, v)
    if g.r.random() < 0.5:
        return g.op("MatMul", g.swapped(p), v)
    return g.swapped(g.op("MatMul", g.swapped(v), p))


def _behind(g: Sketch, out: str) -> str:
    """The result behind a scale, a guard, a division or a change of layout and back."""
    r = g.r
    out = returned(g, g.edge(out, "o"))
    for _ in range(r.choice((0, 0, 1, 2))):
        way = r.choice(("scale", "guard", "rows", "add", "step", "turn", "divide"))
        if way == "scale":
            out = times(g, out, r.choice(FACTORS))
        elif way == "guard":
            out = g.op("Where", g.op("IsNaN", out), g.floats(0.0), out)
        elif way == "rows":
            out = g.op("Mul", out, g.floats(np.linspace(0.5, 2, g.S)[:, None]))
        elif way == "add":
            out = g.op("Add", out, g.floats(1.0))
        elif way == "step":
            out = _step(g, out)
        elif way == "turn":
            out = g.swapped(g.op("Identity", g.swapped(out)))
        elif way == "divide":
            out = g.op("Div", out, g.floats(r.choice((3.0, 0.7))))
    return out
