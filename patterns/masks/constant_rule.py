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
    """start + factor * position + ..., or the distance of two positions."""
    numbers = array.astype(np.int64)
    if int(numbers.min()) < -_MAX_NUMBER or int(numbers.max()) > _MAX_NUMBER:
        return None
    zero = (0,) * array.ndim
    base = int(numbers[zero])
    by = [int(numbers[(*zero[:axis], 1, *zero[axis + 1 :])]) - base for axis in range(array.ndim)]
    distances = [(start, [1, -1]) for start in (base, -base)] if array.ndim == 2 else []
    for start, factors in ((base, by), *distances):
        plane = np.full((1,) * array.ndim, start, np.int64)
        for axis, factor in enumerate(factors):
            along = [-1 if other == axis else 1 for other in range(array.ndim)]
            plane = plane + factor * np.arange(array.shape[axis]).reshape(along)
        distance = factors is not by
        if not np.array_equal(np.abs(plane) if distance else plane, numbers):
            continue
        total: ScoreExpr = integer(start)
        for position, factor in zip(axes, factors, strict=True):
            total = algebra.add(total, algebra.multiply(position, factor))
        return apply_op(algebra, "Abs", (total,), "int", np.dtype(np.int64)) if distance else total
    return None


def _step_rule(algebra: Algebra, array: Array, x: ScoreExpr) -> ScoreExpr | None:
    """x // length or x % period."""
    counted = np.arange(array.shape[0])
    changes = np.flatnonzero(array != array[0])
    if array[0] != 0 or changes.size == 0:
        return None
    length = int(changes[0])
    if np.array_equal(array, counted // length):
        return algebra.divide(x, length)
    period = int(array.max()) + 1
    if period >= array.shape[0]:  # the remainder would be the position itself
        return None
    return algebra.modulo(x, period) if np.array_equal(array, counted % period) else None


def _bool_rule(algebra: Algebra, keep: Bool, axes: list[ScoreExpr], table: Table) -> ScoreExpr | None:
    """The rule of what is true, or else the negation of the rule of what is false. The latter holds no remainder, since the stock
    road cannot carry one."""
    found = _kept(algebra, keep, axes, table)
    if found is not None:
        return found
    hidden = _kept(algebra, ~keep, axes, table)
    if hidden is None or any(isinstance(e, Apply) and e.op == "Mod" for e in parts(hidden)):
        return None
    return algebra.negate(hidden)


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
    """Whether `keep` holds at place x + before: one run of places is kept, or every so many within a run."""
    places = np.flatnonzero(keep)
    if places.size == 0:
        return boolean(False)
    first, last, count = int(places[0]), int(places[-1]), keep.shape[0]
    step = math.gcd(*(int(d) for d in np.diff(places))) if places.size > 1 else 1
    if not np.array_equal(places, np.arange(first, last + 1, step)):
        return None
    result: ScoreExpr = TRUE
    if first >= step:
        result = algebra.compare("LessOrEqual", integer(first - before), x)
    if last <= count - 1 - step:
        result = algebra.both(result, algebra.compare("LessOrEqual", x, integer(last - before)))
    if step > 1:
        moved = algebra.modulo(algebra.add(x, integer((before - first) % step)), step)
        result = algebra.both(result, algebra.compare("Equal", moved, integer(0)))
    return result


def _blocks(algebra: Algebra, keep: Bool, rows: ScoreExpr, columns: ScoreExpr, table: Table) -> ScoreExpr | None:
    """Blocks along the diagonal, of equal or of any lengths, whole or up to the diagonal."""
    size = keep.shape[0]
    if keep.shape != (size, size) or not keep.diagonal().all():
        return None
    start = keep.argmax(axis=1)
    same = start[:, None] == start[None, :]
    causal = None
    if not np.array_equal(keep, same):
        if not np.array_equal(keep, same & np.tri(size, dtype=bool)):
            return None
        causal = algebra.compare("LessOrEqual", columns, rows)
    length = int(np.count_nonzero(start == 0))
    if np.array_equal(start, np.arange(size) // length * length):
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
    count_rows, count_columns = keep.shape
    causal_keep = np.tri(count_rows, count_columns, offset, dtype=bool)
    if not np.array_equal(keep, causal_keep | (np.arange(count_columns) < prefix)):
        return None
    causal = algebra.compare("LessOrEqual", columns, algebra.add(rows, integer(offset)))
    return algebra.either(causal, algebra.compare("Less", columns, integer(prefix)))


def _float_rule(algebra: Algebra, array: Array, axes: list[ScoreExpr], table: Table) -> ScoreExpr | None:
    """A choice between two numbers, or a slope times the distance of query and key, perhaps one for each head, and masked."""
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
    row, column = (np.arange(size, dtype=np.float32) for size in seen.shape)
    relative = column[None, :] - row[:, None]
    distance: ScoreExpr = algebra.add(axes[-1], axes[-2], -1)
    for values, e in (
        (relative, distance),
        (np.abs(relative), apply_op(algebra, "Abs", (distance,), "int", np.dtype(np.int64))),
    ):
        at = np.argwhere(seen & (np.abs(relative) == 1))
        if at.size == 0 or e is None:
            return None
        beside = tuple(at[0])
        slopes = (heads[(slice(None), *beside)] / values[beside]).astype(np.float32)
        pairs = zip(slopes, heads, strict=True)
        if not all(np.array_equal((slope * values)[seen], head.astype(np.float32)[seen]) for slope, head in pairs):
            continue
        factor = table(slopes, axes[0]) if array.ndim == 3 else number(float(slopes[0]))
        bias: ScoreExpr = Apply("Mul", Apply("ToFloat", e), factor)
        if not hidden.any():
            return bias
        keep = _bool_rule(algebra, seen, axes[-2:], table)
        return None if keep is None else Apply("Where", keep, bias, number(low))
    return None
