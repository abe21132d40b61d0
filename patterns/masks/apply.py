"""Any op of a graph, and casts, on expressions in their normal form: what the algebra can say, and constants folded."""

from __future__ import annotations

import math

import numpy as np

from onnx_fa.patterns.masks.algebra import Algebra
from onnx_fa.patterns.masks.expressions import (
    FALSE,
    Wraps,
    boolean,
    integer,
    is_choice,
    is_const,
    number,
    outcomes,
    sized,
)
from onnx_fa.patterns.masks.sums import MAX_SAFE_SUM, keep_op, magnitude
from onnx_fa.spec.expr import OPS, ScoreExpr

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
        if is_const(a) or is_const(b) or a == b:
            same = algebra.either(algebra.both(a, b), algebra.both(algebra.negate(a), algebra.negate(b)))
            return algebra.negate(same) if op == "Xor" else same
        return sized((op, a, b))
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
    return sized(keep_op(op, args) if kind == "int" else (op, *args))


def _adds_masks(op: str, args: tuple[ScoreExpr, ...]) -> bool:
    """Two masks added: better as two terms than as one with four outcomes."""
    wide = [a for a in args if a[0] == "Where"]
    return op in ("Add", "Sub") and len(wide) > 1 and all(any(o[1] < -1e3 for o in outcomes(a)) for a in wide)


def _apply_to_whole(algebra: Algebra, op: str, args: tuple[ScoreExpr, ...]) -> ScoreExpr | None:
    match op:
        case "Add" | "Sub":
            return algebra.add(args[0], args[1], 1 if op == "Add" else -1)
        case "Neg":
            return algebra.add(integer(0), args[0], -1)
        case "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "Equal":
            return algebra.compare(op, *args)
        case "Mul":
            for by, x in (args, args[::-1]):
                if by[0] == "i":
                    return algebra.multiply(x, by[1])
        case "Div" | "Mod" if args[1][0] == "i" and args[1][1] > 0 and args[0][0] != "Where":
            return (algebra.divide if op == "Div" else algebra.modulo)(args[0], args[1][1])
        case "Abs" if args[0][0] != "Where":
            lo, hi = algebra.bounds(args[0])
            if lo >= 0:
                return args[0]
            if hi <= 0:
                return algebra.add(integer(0), args[0], -1)
            mirrored = algebra.add(integer(0), args[0], -1)
            return ("Abs", min(args[0], mirrored, key=repr))
    return None


def _apply_as_whole(algebra: Algebra, op: str, args: tuple[ScoreExpr, ...]) -> ScoreExpr | None:
    """Float arithmetic on positions is exact: it is done on whole numbers."""
    inner = [_equal_whole(algebra, a) for a in args]
    if op in ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal") and sum(x is None for x in inner) == 1:
        found = _compare_with_fraction(algebra, op, args, inner)
        if found is not None:
            return found
    if any(x is None for x in inner) or all(map(is_const, args)):
        return None
    whole = tuple(x for x in inner if x is not None)
    if op in ("Add", "Sub", "Neg", "Abs"):
        found = _apply_to_whole(algebra, op, whole)
        return None if found is None else ("ToFloat", found)
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
    if x is None or by[0] != "f" or not math.isfinite(by[1]):
        return None
    if op == "Equal":
        return FALSE
    below = math.floor(by[1])
    if abs(below) >= MAX_SAFE_SUM:
        return boolean(op.startswith("Less") == (below > 0))
    return algebra.compare("LessOrEqual" if op.startswith("Less") else "Greater", x, integer(below))


def to_float(algebra: Algebra, e: ScoreExpr, kind: str, dtype: np.dtype[np.generic]) -> ScoreExpr:
    """A cast to `dtype`, a float type."""
    if kind == "bool":
        return algebra.where(e, number(1.0), number(0.0))
    if is_choice(e):
        return algebra.over_choice(lambda c: number(round_to(c[1], dtype)), e)
    if kind == "float":
        return e
    return ("ToFloat", e)


def to_int(algebra: Algebra, e: ScoreExpr, kind: str) -> ScoreExpr | None:
    """A cast to a whole number; None where a constant is too large for one."""
    if kind == "bool":
        return algebra.where(e, integer(1), integer(0))
    if kind == "int":
        return e
    if is_choice(e):
        if not all(math.isfinite(o[1]) and abs(o[1]) < 2**31 for o in outcomes(e)):
            return None
        return algebra.over_choice(lambda c: integer(int(c[1])), e)
    whole = _equal_whole(algebra, e)
    return whole if whole is not None else sized(("ToInt", e))


def to_bool(algebra: Algebra, e: ScoreExpr, kind: str) -> ScoreExpr:
    """A cast to a truth value."""
    if kind == "bool":
        return e
    if is_choice(e):
        return algebra.over_choice(lambda c: boolean(c[1] != 0), e)
    if kind == "int":
        return algebra.negate(algebra.compare("Equal", e, integer(0)))
    return ("ToBool", e)


def _equal_whole(algebra: Algebra, e: ScoreExpr) -> ScoreExpr | None:
    """The int that a float certainly equals."""
    if e[0] == "ToFloat" and algebra.is_whole(e[1]):
        inner: ScoreExpr = e[1]
        return inner if magnitude(algebra.bounds(inner)) <= _EXACT_IN_F32 else None
    if e[0] == "f" and math.isfinite(e[1]) and e[1] == int(e[1]) and abs(e[1]) <= _EXACT_IN_F32:
        return integer(int(e[1]))
    return None


def fold_constants(op: str, args: tuple[ScoreExpr, ...], dtype: np.dtype[np.generic]) -> ScoreExpr:
    """An op on constants, computed in the type that the graph computes it in."""
    compares = OPS[op].result == "bool"
    types = {"i": np.dtype(np.int64), "b": np.dtype(np.bool_), "f": np.dtype(np.float64) if compares else dtype}
    arrays = [np.asarray(a[1], types[a[0]]) for a in args]
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
