"""Arithmetic on dims: ints, or symbols whose sums and products are symbols again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import onnx_ir as ir
import sympy

from onnx_fa.graph.lengths import Tail, Widest, dim_of, expression, is_never_negative, larger_of, smaller_of
from onnx_fa.spec.terms import Dim

Shape = tuple[Dim | None, ...]
_MOST_TIMES = 4
"""Powers of a length: of an image's sides, and of what is skewed."""


def known(dim: Dim | None) -> bool:
    """An int, or a symbol that someone named."""
    return isinstance(dim, int) or (dim is not None and "unk__" not in dim)


def settled(value: ir.Value, shape: Shape | None) -> bool:
    """Whether the recorded shape leaves nothing to find out. The symbols of what a node makes are only names that somebody gave:
    another builder may call the same length by another name at every value, so that what the ops say comes first."""
    return shape is not None and all(is_trusted(value, d) for d in shape)


def is_trusted(value: ir.Value, dim: Dim | None) -> bool:
    return isinstance(dim, int) or (known(dim) and value.producer() is None)


def recorded(value: ir.Value) -> Shape | None:
    """What the model or ONNX's inference says."""
    return None if value.shape is None else tuple(d if isinstance(d, int) else d.value for d in value.shape)


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """NumPy broadcasting; a dim is None where it is not certain. An int above 1 wins: otherwise the op would fail."""
    return tuple(broadcast_dims(dims) for dims in pad_shapes(shapes))


def pad_shapes(shapes: Sequence[Shape]) -> list[Shape]:
    """The dims of every axis, shapes being aligned at the right and filled with 1 as NumPy does."""
    rank = max(map(len, shapes), default=0)
    return list(zip(*((1,) * (rank - len(s)) + s for s in shapes), strict=True))


def broadcast_dims(dims: Iterable[Dim | None]) -> Dim | None:
    """The length that all of `dims` broadcast to, in every run in which they do."""
    wide = _without_guards({d for d in dims if d != 1})
    fixed = {d for d in wide if isinstance(d, int)}
    if fixed:
        return next(iter(fixed))
    if None in wide or len(wide) < 2:
        return None if None in wide else next(iter(wide), 1)
    wide = {part for d in wide for part in broadcast_parts(d)}
    left = [expression(d) for d in wide if d is not None and not any(is_cut_to(d, other) for other in wide)]
    return dim_of(Widest(*left)) if left else None


def broadcast_parts(dim: Dim | None) -> tuple[Dim | None, ...]:
    """The lengths of which a dim is the one that they broadcast to; the dim itself if it is no such length."""
    if not isinstance(dim, str) or not dim.startswith("broadcast("):
        return (dim,)
    expr = expression(dim)
    return tuple(map(dim_of, expr.args)) if isinstance(expr, Widest) else (dim,)


def takes_in(whole: Dim | None, dim: Dim | None) -> bool:
    """Whether what has `dim` broadcasts beside what has `whole` to nothing but `whole`."""
    return whole is not None and dim is not None and broadcast_dims((whole, dim)) == whole


def _without_guards(dims: set[Dim | None]) -> set[Dim | None]:
    """The dims with n for max(1, n) beside one that is never more than n: where n is 0 that other one is 0 too, and so is what
    both broadcast to, beside a 1 as beside a 0. Elsewhere max(1, n) is n."""
    found: set[Dim | None] = set()
    for dim in dims:
        guarded = None if not isinstance(dim, str) or "min(" not in dim else _guarded(expression(dim))
        others = [expression(d) for d in dims if d is not None and d != dim]
        bounded = guarded is not None and any(is_never_negative(guarded - other) for other in others)
        found.add(dim_of(guarded) if bounded and guarded is not None else dim)
    return found


def _guarded(expr: sympy.Expr) -> sympy.Expr | None:
    """n of max(1, n), which is 1 + n - min(1, n)."""
    for cut in expr.atoms(sympy.Min):
        rest = sympy.expand(expr - 1 + cut)
        if set(cut.args) == {sympy.Integer(1), rest}:
            return rest
    return None


def is_cut_to(dim: Dim | None, whole: Dim | None) -> bool:
    """Whether `dim` broadcasts beside `whole` to nothing but `whole`, because it is cut to it: the smaller one of it and a number
    above 1, or the last `whole` of no fewer."""
    if not isinstance(dim, str) or whole is None or not dim.startswith(("min(", "tail(")):
        return False
    cut, length = expression(dim), expression(whole)
    if isinstance(cut, Tail):
        # Where nothing is cut off because `whole` is 0, it is no other number than 0 or 1, and the result is empty. Of a number
        # above 1 there are `whole` or, where that is 0 or larger, the number itself, which does not broadcast beside it.
        number = cut.args[0]
        return bool(cut.args[1] == length) and (
            bool(number.is_Integer and number > 1) or is_never_negative(number - length)
        )
    if not isinstance(cut, sympy.Min) or length not in cut.args:
        return False
    # Where `whole` is the larger one, the number is neither 1 nor `whole`, and they do not broadcast.
    return all(a.is_Integer and a > 1 for a in cut.args if a != length)


def tail_dim(dim: Dim, count: Dim | None) -> Dim | None:
    """The length of x[-count:] of an axis of length `dim`."""
    if count is None:
        return None
    if is_never_negative(expression(count) - expression(dim)):
        return dim  # all of it, also for a count of 0
    if is_never_negative(expression(count) - 1):
        return smaller_dim(dim, count)
    return dim_of(Tail(expression(dim), expression(count)))


def compare_dims(a: Dim | None, b: Dim | None) -> Dim | None:
    """1 or 0 where it is certain."""
    if a is None or b is None:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return int(a == b)
    apart = sympy.expand(expression(a) - expression(b))
    if apart == 0:
        return 1
    return 0 if is_never_negative(apart - 1) or is_never_negative(-apart - 1) else None


def add_dims(a: Dim | None, b: Dim | None) -> Dim | None:
    if a is None or b is None:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return dim_of(expression(a) + expression(b))


def subtract_dims(a: Dim | None, b: Dim | None) -> Dim | None:
    """a - b, which is no length where it may be negative."""
    if a is None or b is None:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    return dim_of(expression(a) - expression(b))


def multiply_dims(a: Dim | None, b: Dim | None) -> Dim | None:
    if a == 0 or b == 0:
        return 0
    if a is None or b is None:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return dim_of(expression(a) * expression(b))


def raise_dim(dim: Dim | None, times: Dim | None) -> Dim | None:
    """dim to a small power."""
    return product_of([dim] * times) if isinstance(times, int) and 0 < times <= _MOST_TIMES else None


def divide_dims(
    a: Dim | None, b: Dim | None, whole: bool = True, is_length: Callable[[str], bool] = lambda dim: False
) -> Dim | None:
    """a / b; integers are cut off unless the division is one of floats. `is_length`: of which dims it is known that they are not
    negative, beside those that never are."""
    if a is None or b is None or b == 0:
        return None
    if isinstance(a, int) and isinstance(b, int):
        if a % b == 0:
            return a // b
        return int(a / b) if whole else None
    if (exact := quotient(a, b)) is not None:
        return exact
    # Else ONNX rounds towards zero.
    lengths = all(is_never_negative(expression(d)) or (isinstance(d, str) and is_length(d)) for d in (a, b))
    return dim_of(sympy.floor(expression(a) / expression(b))) if whole and lengths else None


def quotient(a: Dim, b: Dim) -> Dim | None:
    """a / b where b is sure to divide it, b not being zero."""
    if isinstance(b, int) and b == 0:
        return None
    ratio = sympy.cancel(expression(a) / expression(b))
    return dim_of(ratio) if sympy.denom(ratio) == 1 else None


def remainder_dim(a: Dim | None, b: Dim | None) -> Dim | None:
    """a modulo b, of a length and a positive number."""
    if isinstance(a, int) and isinstance(b, int) and b:
        return a % b
    if a is None or not isinstance(b, int) or b < 1:
        return None
    return dim_of(expression(a) - b * sympy.floor(expression(a) / b))


def smaller_dim(a: Dim | None, b: Dim | None) -> Dim | None:
    return None if a is None or b is None else dim_of(smaller_of(expression(a), expression(b)))


def larger_dim(a: Dim | None, b: Dim | None) -> Dim | None:
    return None if a is None or b is None else dim_of(larger_of(expression(a), expression(b)))


def range_dim(start: Dim | None, limit: Dim | None, step: Dim | None) -> Dim | None:
    """The length of Range(start, limit, step)."""
    if step == 1:
        return larger_dim(subtract_dims(limit, start), 0)
    if isinstance(start, int) and isinstance(limit, int) and isinstance(step, int) and step:
        return len(range(start, limit, step))
    if step == -1:
        return larger_dim(subtract_dims(start, limit), 0)
    return None


def factors_of(dim: Dim) -> tuple[Dim, ...]:
    """The numbers and lengths whose product a dim is; the dim itself where that cannot be said."""
    parts = [dim_of(part) for part in sympy.Mul.make_args(expression(dim))]
    return tuple(p for p in parts if p is not None) if None not in parts else (dim,)


def product_of(dims: Iterable[Dim | None]) -> Dim | None:
    total: Dim | None = 1
    for d in dims:
        total = multiply_dims(total, d)
    return total
