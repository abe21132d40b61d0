"""Applies the ops of a graph, and casts, to expressions: by the algebra where that can say it, and folding constants."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnx_fa.patterns.masks.algebra import Algebra
from onnx_fa.patterns.masks.expressions import (
    FALSE,
    Wraps,
    boolean,
    integer,
    is_choice,
    is_where,
    number,
    outcomes,
    sized,
)
from onnx_fa.patterns.masks.sums import MAX_SAFE_SUM, keep_op, magnitude
from onnx_fa.spec.expr import OPS, Apply, Bool, Constant, Float, Int, ScoreExpr

_EXACT_IN_F32 = 1 << 24
"""Every whole number up to this is a float32."""


def apply_op(
    algebra: Algebra, op: str, args: tuple[ScoreExpr, ...], kind: str, dtype: np.dtype[np.generic]
) -> ScoreExpr | None:
    """An op of expr.OPS. `kind` is that of the arguments (of the last one for Where), `dtype` the result's in the graph,
    to which constants are rounded. None where the op has no exact expression."""
    if op == "Where":
        return algebra.where(*args)
    if op == "Not":
        return algebra.negate(args[0])
    if op in ("And", "Or"):
        return (algebra.both if op == "And" else algebra.either)(*args)
    if op == "Xor" or (op == "Equal" and kind == "bool"):
        a, b = args
        if isinstance(a, Constant) or isinstance(b, Constant) or a == b:
            same = algebra.either(algebra.both(a, b), algebra.both(algebra.negate(a), algebra.negate(b)))
            return algebra.negate(same) if op == "Xor" else same
        return sized(Apply(op, a, b))
    if kind == "int":
        try:
            found = _apply_to_whole(algebra, op, args)
        except Wraps:
            found = None
        if found is not None:
            return found
    if all(map(is_choice, args)) and op in OPS and not _adds_masks(op, args):
        return algebra.over_choice(lambda *c: fold_constants(op, c, dtype), *args)
    if kind == "float":
        found = _apply_as_whole(algebra, op, args)
        if found is not None:
            return found
    return sized(keep_op(op, args) if kind == "int" else Apply(op, *args))


def _adds_masks(op: str, args: tuple[ScoreExpr, ...]) -> bool:
    """Two masks added: better as two terms than as one with four outcomes."""
    wide = [a for a in args if is_where(a)]
    return op in ("Add", "Sub") and len(wide) > 1 and all(any(o.value < -1e3 for o in outcomes(a)) for a in wide)


def _apply_to_whole(algebra: Algebra, op: str, args: tuple[ScoreExpr, ...]) -> ScoreExpr | None:
    match op, args:
        case "Add" | "Sub", (x, y):
            return algebra.add(x, y, 1 if op == "Add" else -1)
        case "Neg", (x,):
            return algebra.add(integer(0), x, -1)
        case "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "Equal", (x, y):
            return algebra.compare(op, x, y)
        case ("Mul", (Int(by), x)) | ("Mul", (x, Int(by))):
            return algebra.multiply(x, by)
        case "Div" | "Mod", (x, Int(by)) if by > 0 and not is_where(x):
            return algebra.divide(x, by) if op == "Div" else algebra.modulo(x, by)
        case "Abs", (x,) if not is_where(x):
            lo, hi = algebra.bounds(x)
            if lo >= 0:
                return x
            mirrored = algebra.add(integer(0), x, -1)
            return mirrored if hi <= 0 else Apply("Abs", min(x, mirrored, key=repr))
    return None


def _apply_as_whole(algebra: Algebra, op: str, args: tuple[ScoreExpr, ...]) -> ScoreExpr | None:
    """Float arithmetic on positions is exact: it is done on whole numbers."""
    inner = [_equal_whole(algebra, a) for a in args]
    if op in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal") and sum(x is None for x in inner) == 1:
        found = _compare_with_fraction(algebra, op, args, inner)
        if found is not None:
            return found
    if any(x is None for x in inner) or all(isinstance(a, Constant) for a in args):
        return None
    whole = tuple(x for x in inner if x is not None)
    if op in ("Add", "Sub", "Neg", "Abs"):
        found = _apply_to_whole(algebra, op, whole)
        return None if found is None else Apply("ToFloat", found)
    if op in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"):
        return algebra.compare(op, *whole)
    return None


def _compare_with_fraction(
    algebra: Algebra, op: str, args: tuple[ScoreExpr, ...], inner: list[ScoreExpr | None]
) -> ScoreExpr | None:
    """A position compared with a constant that is no whole number."""
    if inner[0] is None:
        swap = {
            "Less": "Greater",
            "LessOrEqual": "GreaterOrEqual",
            "Greater": "Less",
            "GreaterOrEqual": "LessOrEqual",
        }
        op, args, inner = swap.get(op, op), args[::-1], inner[::-1]
    x, by = inner[0], args[1]
    if x is None or not isinstance(by, Float) or not math.isfinite(by.value):
        return None
    if op == "Equal":
        return FALSE
    below = math.floor(by.value)
    if abs(below) >= MAX_SAFE_SUM:
        return boolean(op.startswith("Less") == (below > 0))
    return algebra.compare("LessOrEqual" if op.startswith("Less") else "Greater", x, integer(below))


def to_float(algebra: Algebra, e: ScoreExpr, kind: str, dtype: np.dtype[np.generic]) -> ScoreExpr:
    """A cast to `dtype`, a float type."""
    if kind == "bool":
        return algebra.where(e, number(1.0), number(0.0))
    if is_choice(e):
        return algebra.over_choice(lambda c: number(round_to(c.value, dtype)), e)
    if kind == "float":
        return e
    return Apply("ToFloat", e)


def to_int(algebra: Algebra, e: ScoreExpr, kind: str) -> ScoreExpr | None:
    """A cast to a whole number; None where a constant is too large for one."""
    if kind == "bool":
        return algebra.where(e, integer(1), integer(0))
    if kind == "int":
        return e
    if is_choice(e):
        if not all(math.isfinite(o.value) and abs(o.value) < 2**31 for o in outcomes(e)):
            return None
        return algebra.over_choice(lambda c: integer(int(c.value)), e)
    whole = _equal_whole(algebra, e)
    return whole if whole is not None else sized(Apply("ToInt", e))


def to_bool(algebra: Algebra, e: ScoreExpr, kind: str) -> ScoreExpr:
    """A cast to a truth value."""
    if kind == "bool":
        return e
    if is_choice(e):
        return algebra.over_choice(lambda c: boolean(c.value != 0), e)
    if kind == "int":
        return algebra.negate(algebra.compare("Equal", e, integer(0)))
    return Apply("ToBool", e)


def _equal_whole(algebra: Algebra, e: ScoreExpr) -> ScoreExpr | None:
    """The int that a float certainly equals."""
    match e:
        case Apply("ToFloat", (inner,)) if algebra.is_whole(inner):
            return inner if magnitude(algebra.bounds(inner)) <= _EXACT_IN_F32 else None
        case Float(value) if math.isfinite(value) and value == int(value) and abs(value) <= _EXACT_IN_F32:
            return integer(int(value))
    return None


def fold_constants(op: str, args: tuple[Constant, ...], dtype: np.dtype[np.generic]) -> Constant:
    """An op on constants, computed in the type that the graph computes it in."""
    compares = OPS[op].result == "bool"
    types: dict[type[Constant], np.dtype[Any]] = {
        Int: np.dtype(np.int64),
        Bool: np.dtype(np.bool_),
        Float: np.dtype(np.float64) if compares else dtype,
    }
    arrays = [np.asarray(a.value, types[type(a)]) for a in args]
    with np.errstate(all="ignore"):
        result = np.asarray(OPS[op].run(*arrays))
    if result.dtype == np.bool_:
        return boolean(bool(result))
    if result.dtype.kind == "i":
        return integer(int(result))
    return number(float(result.astype(dtype)))


def round_to(x: float, dtype: np.dtype[np.generic]) -> float:
    with np.errstate(all="ignore"):
        return float(np.asarray(x, np.float64).astype(dtype))
