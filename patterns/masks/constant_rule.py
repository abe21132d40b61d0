"""Constant masks examined by value: the rule that a constant follows, as an expression of the index it is read at.

A rule is given only when it reproduces every element exactly (floats: bit by bit, computed in f32).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from onnx_fa.graph.view import Array
from onnx_fa.patterns.masks.algebra import Algebra
from onnx_fa.patterns.masks.apply import apply_op
from onnx_fa.patterns.masks.expressions import TRUE, boolean, integer, number
from onnx_fa.spec.expr import Apply, Int, Kind, ScoreExpr, parts

Table = Callable[[Array, ScoreExpr], ScoreExpr]
"""Makes a tensor of a one-dimensional constant that is read at one position."""
Bool = npt.NDArray[np.bool_]
_MAX_ELEMENTS = 1 << 26
"""A larger constant is not examined."""
_MAX_MASKING_FILL = -1e4
"""The lowest number of a constant bias is taken for a mask if it is this or lower."""
_MAX_NUMBER = 1 << 32
"""A rule holds no number beyond this: its multiples would leave int64."""


def rule_of(algebra: Algebra, array: Array, index: tuple[ScoreExpr, ...], kind: Kind, table: Table) -> ScoreExpr | None:
    """The element of `array` at `index`, None where no rule is found."""
    if array.size == 0 or array.size > _MAX_ELEMENTS or array.ndim != len(index):
        return None
    axes = list(index)
    for axis in range(array.ndim):
        place = axes[axis]
        if isinstance(place, Int):
            at = place.value
            if not -array.shape[axis] <= at < array.shape[axis]:
                return None
            array = array.take([at], axis)
        elif bool((array == array.take([0], axis)).all()):
            array = array.take([0], axis)
    axes = [a for a, n in zip(axes, array.shape, strict=True) if n > 1]
    array = array.reshape([n for n in array.shape if n > 1])
    if kind == "float" and array.dtype != np.float64:
        array = array.astype(np.float32)  # exact for every narrower type
    if array.ndim == 0:
        return _scalar(array, kind)
    if kind == "float":
        return _float_rule(algebra, array, axes, table)
    found = _affine(algebra, array, axes) if kind == "int" else None
    if found is not None:
        return found
    if kind == "bool":
        return _bool_rule(algebra, array.astype(bool), axes, table)
    return _step_rule(algebra, array, axes[0]) if array.ndim == 1 else None


def _scalar(array: Array, kind: Kind) -> ScoreExpr:
    x = array[()]
    if kind == "bool":
        return boolean(bool(x))
    return integer(int(x)) if kind == "int" else number(float(x))


def _affine(algebra: Algebra, array: Array, axes: list[ScoreExpr]) -> ScoreExpr | None:
    """c + a * x + b * y + ..., or the distance of two positions."""
    numbers = array.astype(np.int64)
    if int(numbers.min()) < -_MAX_NUMBER or int(numbers.max()) > _MAX_NUMBER:
        return None
    zero = (0,) * array.ndim
    base = int(numbers[zero])
    by = [int(numbers[(*zero[:n], 1, *zero[n + 1 :])]) - base for n in range(array.ndim)]
    for start, factors in ((base, by), *(((c, [1, -1]) for c in (base, -base)) if array.ndim == 2 else ())):
        plane = np.full((1,) * array.ndim, start, np.int64)
        for n, f in enumerate(factors):
            plane = plane + f * np.arange(array.shape[n]).reshape([-1 if m == n else 1 for m in range(array.ndim)])
        distance = factors is not by
        if not np.array_equal(np.abs(plane) if distance else plane, numbers):
            continue
        total: ScoreExpr = integer(start)
        for x, f in zip(axes, factors, strict=True):
            total = algebra.add(total, algebra.multiply(x, f))
        return apply_op(algebra, "Abs", (total,), "int", np.dtype(np.int64)) if distance else total
    return None


def _step_rule(algebra: Algebra, array: Array, x: ScoreExpr) -> ScoreExpr | None:
    """x // c or x % c."""
    t = np.arange(array.shape[0])
    changes = np.flatnonzero(array != array[0])
    if array[0] != 0 or changes.size == 0:
        return None
    c = int(changes[0])
    if np.array_equal(array, t // c):
        return algebra.divide(x, c)
    period = int(array.max()) + 1
    if period >= array.shape[0]:  # it would be t itself, or no rule at all
        return None
    return algebra.modulo(x, period) if np.array_equal(array, t % period) else None


def _bool_rule(algebra: Algebra, keep: Bool, axes: list[ScoreExpr], table: Table) -> ScoreExpr | None:
    """The rule of what is true, or of what is false: of the latter none with a remainder, which the stock road does not carry."""
    found = _kept(algebra, keep, axes, table)
    if found is not None:
        return found
    hidden = _kept(algebra, ~keep, axes, table)
    return (
        None
        if hidden is None or any(isinstance(e, Apply) and e.op == "Mod" for e in parts(hidden))
        else algebra.negate(hidden)
    )


def _kept(algebra: Algebra, keep: Bool, axes: list[ScoreExpr], table: Table) -> ScoreExpr | None:
    if keep.ndim == 1:
        return _run(algebra, keep, axes[0], 0)
    if keep.ndim != 2:
        return None
    rows, columns = axes
    diagonal = _diagonals(keep)
    if diagonal is not None:
        return _run(algebra, diagonal, algebra.add(columns, rows, -1), keep.shape[0] - 1)
    return _blocks(algebra, keep, rows, columns, table) or _prefix(algebra, keep, rows, columns)


def _diagonals(array: Array) -> Array | None:
    """The values of a matrix (or a stack of them) that is constant along its diagonals, from column - row = 1 - rows on."""
    if not np.array_equal(array[..., 1:, 1:], array[..., :-1, :-1]):
        return None
    return np.concatenate([array[..., :0:-1, 0], array[..., 0, :]], axis=-1)


def _run(algebra: Algebra, keep: Array, x: ScoreExpr, before: int) -> ScoreExpr | None:
    """`keep` is at 0 .. n-1 where x is -before ..: one run, or every so many in one."""
    places = np.flatnonzero(keep)
    if places.size == 0:
        return boolean(False)
    lo, hi, n = int(places[0]), int(places[-1]), keep.shape[0]
    step = math.gcd(*(int(d) for d in np.diff(places))) if places.size > 1 else 1
    if not np.array_equal(places, np.arange(lo, hi + 1, step)):
        return None
    result: ScoreExpr = TRUE
    if lo >= step:
        result = algebra.compare("LessOrEqual", integer(lo - before), x)
    if hi <= n - 1 - step:
        result = algebra.both(result, algebra.compare("LessOrEqual", x, integer(hi - before)))
    if step > 1:
        moved = algebra.modulo(algebra.add(x, integer((before - lo) % step)), step)
        result = algebra.both(result, algebra.compare("Equal", moved, integer(0)))
    return result


def _blocks(algebra: Algebra, keep: Bool, rows: ScoreExpr, columns: ScoreExpr, table: Table) -> ScoreExpr | None:
    """Blocks along the diagonal, of equal or of any lengths, whole or up to the diagonal."""
    n = keep.shape[0]
    if keep.shape != (n, n) or not keep.diagonal().all():
        return None
    start = keep.argmax(axis=1)
    same = start[:, None] == start[None, :]
    causal = None
    if not np.array_equal(keep, same):
        if not np.array_equal(keep, same & np.tri(n, dtype=bool)):
            return None
        causal = algebra.compare("LessOrEqual", columns, rows)
    length = int(np.count_nonzero(start == 0))
    if np.array_equal(start, np.arange(n) // length * length):
        blocks = algebra.compare("Equal", algebra.divide(rows, length), algebra.divide(columns, length))
    else:
        ids = np.unique(start, return_inverse=True)[1].astype(np.int64)  # a block may come back further down
        blocks = algebra.compare("Equal", table(ids, rows), table(ids, columns))
    return blocks if causal is None else algebra.both(causal, blocks)


def _prefix(algebra: Algebra, keep: Bool, rows: ScoreExpr, columns: ScoreExpr) -> ScoreExpr | None:
    """Up to the diagonal, and the first keys for everybody."""
    prefix = int(keep[0].argmin())
    if prefix == 0 or not keep[:, :prefix].all():
        return None
    first = int(keep[:, prefix].argmax())
    if first == 0:
        return None
    offset = prefix - first
    n, m = keep.shape
    if not np.array_equal(keep, np.tri(n, m, offset, dtype=bool) | (np.arange(m) < prefix)):
        return None
    causal = algebra.compare("LessOrEqual", columns, algebra.add(rows, integer(offset)))
    return algebra.either(causal, algebra.compare("Less", columns, integer(prefix)))


def _float_rule(algebra: Algebra, array: Array, axes: list[ScoreExpr], table: Table) -> ScoreExpr | None:
    floats = array.astype(np.float64)
    if np.isnan(floats).any():
        return None
    low, high = float(floats.min()), float(floats.max())
    if bool(((floats == low) | (floats == high)).all()):
        keep = _bool_rule(algebra, floats == high, axes, table)
        return None if keep is None else algebra.where(keep, number(high), number(low))
    masked = floats == low if low <= _MAX_MASKING_FILL else np.zeros(floats.shape, bool)
    if array.dtype != np.float32 or array.ndim not in (2, 3):
        return None
    heads = floats.reshape(-1, *floats.shape[-2:])
    hidden = masked.reshape(heads.shape)
    if not bool((hidden == hidden[:1]).all()) or hidden[0].all():
        return None
    seen = ~hidden[0]
    n, m = seen.shape
    relative = np.arange(m, dtype=np.float32)[None, :] - np.arange(n, dtype=np.float32)[:, None]
    distance: ScoreExpr = algebra.add(axes[-1], axes[-2], -1)
    for values, e in (
        (relative, distance),
        (np.abs(relative), apply_op(algebra, "Abs", (distance,), "int", np.dtype(np.int64))),
    ):
        at = np.argwhere(seen & (np.abs(relative) == 1))
        if at.size == 0 or e is None:
            return None
        r, c = at[0]
        slopes = (heads[:, r, c] / values[r, c]).astype(np.float32)
        exact = all(
            np.array_equal((s * values)[seen], h.astype(np.float32)[seen]) for s, h in zip(slopes, heads, strict=True)
        )
        if not exact:
            continue
        slope = table(slopes, axes[0]) if array.ndim == 3 else number(float(slopes[0]))
        bias: ScoreExpr = Apply("Mul", Apply("ToFloat", e), slope)
        if not hidden.any():
            return bias
        keep = _bool_rule(algebra, seen, axes[-2:], table)
        return None if keep is None else Apply("Where", keep, bias, number(low))
    return None
