"""Random masks: which key a query sees, as the integer arithmetic, casts and chains that a model may write."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto as T

from .sketch import FILLS, Sketch

NARROW = (T.INT8, T.UINT8, T.INT16, T.UINT16, T.INT32, T.UINT32)
HUGE = (2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63), 2**32 + 1, 255, 256, -129)
COMPARISONS = ("LessOrEqual", "Less", "GreaterOrEqual", "Greater", "Equal")


def positions(g: Sketch, axis: int, dtype: int) -> str:
    """Positions of the queries (axis -2, shape (S, 1)) or of the keys (axis -1, shape (1, L))."""
    length = g.S if axis == -2 else g.L
    numpy_type = np.int32 if dtype == T.INT32 else np.int64
    shape = [length, 1] if axis == -2 else [1, length]
    way = g.r.randrange(4)
    if way == 0:
        return g.const(np.arange(length).reshape(shape), numpy_type)
    if way == 1 and length:
        ones = g.const(np.ones(length), numpy_type)
        summed = g.op("CumSum", ones, g.const(0, np.int64))
        flat = g.op("Sub", summed, g.const(1, numpy_type))
    else:
        flat = g.op("Range", *(g.const(x, numpy_type) for x in (0, length, 1)))
    if way == 2:
        return (
            g.op("Reshape", flat, g.ints([-1, 1] if axis == -2 else [1, -1]))
            if length
            else g.op("Unsqueeze", flat, g.ints([1 if axis == -2 else 0]))
        )
    return g.op("Unsqueeze", flat, g.ints([1 if axis == -2 else 0]))


def integer(g: Sketch, depth: int, dtype: int) -> str:
    """An integer for every place of the scores, by broadcasting."""
    r = g.r
    numpy_type = np.int32 if dtype == T.INT32 else np.int64
    if depth <= 0 or r.random() < 0.2:
        kind = r.choice(("q", "k", "q", "k", "ids", "ids", "length", "small", "huge"))
        if kind in "qk":
            return positions(g, -2 if kind == "q" else -1, dtype)
        if kind == "ids":
            lead = [n if r.random() < 0.5 else 1 for n in g.lead]
            tail = r.choice(([g.S, 1], [1, g.L], [1, 1]))
            return g.given("ids", [*lead, *tail], dtype, "ids")
        if kind == "length":
            return g.given("len", [*([g.B] if g.rank == 4 else []), *[1] * min(3, g.rank)], dtype, "length")
        value = r.randint(-3, 7)
        if kind == "huge" and (g.kind == "wraps" or r.random() < 0.2):
            value = r.choice(HUGE)
        return g.const(np.asarray(value).astype(numpy_type), numpy_type)
    kind = r.choice(
        ("Add", "Sub", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Neg", "Abs", "Where", "Cast", "Cast", "there")
    )
    if g.kind == "wraps" and r.random() < 0.3:
        kind = "Mul"
    inner = integer(g, depth - 1, dtype)
    if kind in ("Div", "Mod"):
        divisor = g.const(r.choice((2, 3, 1, 4)), numpy_type)
        return g.op(kind, inner, divisor, **({"fmod": 0} if kind == "Mod" else {}))
    if kind in ("Neg", "Abs"):
        return g.op(kind, inner)
    if kind == "Cast":
        narrow = r.choice(NARROW)
        return g.op("Cast", g.op("Cast", inner, to=narrow), to=dtype)
    if kind == "there":
        return g.op("Cast", g.op("Cast", inner, to=r.choice((T.FLOAT, T.DOUBLE, T.FLOAT16, T.INT32))), to=dtype)
    if kind == "Where":
        return g.op("Where", boolean(g, depth - 1), inner, integer(g, depth - 1, dtype))
    if kind == "Mul" and (g.kind == "wraps" or r.random() < 0.1):
        return g.op("Mul", inner, g.const(np.asarray(r.choice(HUGE)).astype(numpy_type), numpy_type))
    if kind == "Mul":
        return g.op("Mul", inner, g.const(r.choice((-1, 2, 3)), numpy_type))
    return g.op(kind, inner, integer(g, depth - 1, dtype))


def compared_ids(g: Sketch) -> str:
    """Documents: whoever has the same id, perhaps as a narrower type."""
    dtype = g.r.choice((T.INT32, T.INT64))
    lead = [n if g.r.random() < 0.5 else 1 for n in g.lead]
    pair = [g.given("ids", [*lead, *tail], dtype, "ids") for tail in ([g.S, 1], [1, g.L])]
    if g.r.random() < 0.6:
        narrow = g.r.choice(NARROW)
        pair = [g.op("Cast", x, to=narrow) for x in pair]
        if narrow not in (T.INT32,) and (g.opset < 19 or g.r.random() < 0.5):
            pair = [g.op("Cast", x, to=dtype) for x in pair]
    return g.op("Equal", *pair)


def boolean(g: Sketch, depth: int) -> str:
    """A boolean for every place of the scores, by broadcasting."""
    r = g.r
    if depth <= 0 or r.random() < 0.25:
        return _condition(g, depth)
    kind = r.choice(("And", "And", "Or", "Xor", "Not", "Equal", "Cast", "Where"))
    inner = boolean(g, depth - 1)
    if kind == "Not":
        return g.op("Not", inner)
    if kind == "Cast":
        return g.op("Cast", g.op("Cast", inner, to=r.choice((T.INT64, T.FLOAT, T.INT32))), to=T.BOOL)
    if kind == "Where":
        numbers = [g.op("Cast", x, to=T.INT64) for x in (inner, boolean(g, depth - 1))]
        return g.op("Cast", g.op("Where", boolean(g, depth - 1), *numbers), to=T.BOOL)
    return g.op(kind, inner, boolean(g, depth - 1))


def _condition(g: Sketch, depth: int) -> str:
    r = g.r
    kind = r.choice(("causal", "causal", "compare", "compare", "input", "input", "table", "ids", "trilu"))
    if g.kind == "wraps" and r.random() < 0.4:
        return _wrapped(g)
    if kind == "input":
        return g.given("keep", g.broadcast_shape(), T.BOOL, "keep")
    if kind == "table":
        table = np.asarray([r.random() < 0.7 for _ in range(g.S * g.L)], bool).reshape(g.S, g.L)
        return g.const(table if r.random() < 0.5 else table[None], bool)
    if kind == "ids":
        return compared_ids(g)
    if kind == "trilu" and g.opset >= 14:
        ones = g.const(np.ones((g.S, g.L)), np.float32)
        return g.op("Cast", g.op("Trilu", ones, g.ints(r.randint(-1, 2)), upper=r.randint(0, 1)), to=T.BOOL)
    dtype = r.choice((T.INT64, T.INT64, T.INT32))
    if kind == "causal":
        rows, columns = positions(g, -2, dtype), positions(g, -1, dtype)
        if r.random() < 0.4:
            numpy_type = np.int32 if dtype == T.INT32 else np.int64
            rows = g.op("Add", rows, g.const(r.randint(-2, 5), numpy_type))
        return g.op(r.choice(COMPARISONS), columns, rows)
    steps = max(1, depth)
    return g.op(r.choice(COMPARISONS), integer(g, steps, dtype), integer(g, steps - 1, dtype))


def _wrapped(g: Sketch) -> str:
    """A position times, or plus, a number near the end of its type, compared with a small one."""
    r = g.r
    dtype = r.choice((T.INT64, T.INT64, T.INT32))
    numpy_type = np.int32 if dtype == T.INT32 else np.int64
    place = positions(g, r.choice((-2, -1)), dtype)
    if r.random() < 0.4:
        place = g.op(r.choice(("Add", "Sub")), place, positions(g, r.choice((-2, -1)), dtype))
    far = g.op(
        r.choice(("Mul", "Mul", "Add", "Sub")),
        place,
        g.const(np.asarray(r.choice(HUGE)).astype(numpy_type), numpy_type),
    )
    return g.op(r.choice(COMPARISONS), far, g.const(r.choice((0, 1, -1, 3)), numpy_type))


def ladder(g: Sketch, count: int) -> str:
    """Two conditions that are made of each other, `count` times."""
    a, b = boolean(g, 0), boolean(g, 0)
    fixed = g.r.choice((0, 0, 1, 2, None))
    for i in range(count):
        way = i % 3 if fixed is None else fixed
        new = (
            (g.op("Xor", a, b), g.op("Or", a, g.op("Not", b))),
            (g.op("And", a, b), g.op("Xor", b, a)),
            (g.op("Or", b, a), g.op("And", g.op("Not", a), b)),
        )[way]
        a, b = new
    return g.op("Or", a, b)


def chained(g: Sketch, count: int) -> str:
    """One condition after the other."""
    x = boolean(g, 1)
    other = boolean(g, 0)
    way = g.r.choice(("Not", "And", "mixed", "numbers", "where"))
    if way in ("numbers", "where"):
        number = g.op("Cast", x, to=T.INT64)
        one, zero = g.ints(1), g.ints(0)
        for _ in range(count):
            number = g.op("Add", number, zero) if way == "numbers" else g.op("Where", other, number, one)
        return g.op("Greater", number, zero)
    for i in range(count):
        if way == "Not" or (way == "mixed" and i % 3 == 0):
            x = g.op("Not", x)
        else:
            x = g.op("And" if way == "And" or i % 3 == 1 else "Or", x, other)
    return x


def condition(g: Sketch) -> str:
    """A mask as a boolean, of any size that the kind asks for."""
    r = g.r
    if g.likes("deep", 0.75, 0.01):
        if r.random() < 0.5:
            return ladder(g, r.choice((3, 6, 12, 18, 24)))
        return chained(g, r.choice((10, 40, 120, 200, 450)))
    if g.likes("masks", 0.25, 0.05):
        return compared_ids(g)
    return boolean(g, r.choice((0, 1, 2, 3)) if g.kind in ("masks", "wraps") else r.choice((0, 0, 1, 2)))


def masked(g: Sketch, score: str) -> str:
    """The scores (.., S, L) behind one mask, in any of the usual ways to apply it."""
    r = g.r
    way = r.choice(("where", "where", "where_not", "add", "add", "one_minus", "sub", "bias", "float_mask"))
    fill = r.choice(FILLS)
    if way == "bias":
        return g.op("Add", *r.sample([score, g.given_to_scores("bias", g.broadcast_shape())], 2))
    if way == "float_mask":
        return g.op(
            r.choice(("Add", "Add", "Sub")), score, g.given_to_scores("mask", g.broadcast_shape(), f"mask {fill}")
        )
    keep = condition(g)
    g.kept.append(keep)
    if way == "where":
        return g.op("Where", keep, score, g.floats(fill))
    if way == "where_not":
        return g.op("Where", g.op("Not", keep), g.floats(fill), score)
    if way == "add":
        return g.op("Add", *r.sample([score, g.op("Where", keep, g.floats(0.0), g.floats(fill))], 2))
    number: Any = g.op("Cast", keep, to=g.float_type)
    if way == "one_minus":
        finite = fill if np.isfinite(fill) else -1e9
        return g.op("Add", score, g.op("Mul", g.op("Sub", g.floats(1.0), number), g.floats(finite)))
    dropped = g.op("Cast", g.op("Not", keep), to=g.float_type)
    return g.op("Sub", score, g.op("Mul", dropped, g.floats(r.choice((1e9, 1e4, 3e38)))))
