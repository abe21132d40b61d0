"""Arithmetic on dims: ints, or symbols whose sums and products are symbols again."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnx_fa.spec.terms import Dim

Shape = tuple[Dim | None, ...]
_MAX_SYMBOL_LENGTH = 400
"""Letters of a symbol for a sum or product. A dim that is doubled again and again would have a name of any length."""


def known(dim: Dim | None) -> bool:
    """An int, or a symbol that someone named."""
    return isinstance(dim, int) or (dim is not None and not dim.startswith("unk__"))


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
    """NumPy broadcasting; a dim is None where two symbols differ. An int above 1 wins: otherwise the op would fail."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    result: list[Dim | None] = []
    for dims in zip(*padded, strict=True):
        wide = {d for d in dims if d != 1}
        fixed = {d for d in wide if isinstance(d, int)}
        if fixed:
            result.append(next(iter(fixed)))
        elif len(wide) == 1:
            result.append(next(iter(wide)))
        else:
            result.append(None if wide else 1)
    return tuple(result)


def compare_dims(a: Dim | None, b: Dim | None) -> Dim | None:
    """1 or 0 where it is certain; a length is never negative."""
    if isinstance(a, int) and isinstance(b, int):
        return int(a == b)
    number = a if isinstance(a, int) else b
    if isinstance(number, int) and number < 0:
        return 0
    return 1 if a is not None and a == b else None


def _term(dim: Dim) -> str:
    if isinstance(dim, int) or dim.isidentifier():
        return str(dim)
    return f"({dim})"


def _symbol(op: str, a: Dim, b: Dim) -> Dim | None:
    symbol = op.join(sorted((_term(a), _term(b))))
    return symbol if len(symbol) <= _MAX_SYMBOL_LENGTH else None


def add_dims(a: Dim | None, b: Dim | None) -> Dim | None:
    if a is None or b is None:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if a == 0 or b == 0:
        return b if a == 0 else a
    return _symbol(" + ", a, b)


def subtract_dims(a: Dim | None, b: Dim | None) -> Dim | None:
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    return a if b == 0 else None


def multiply_dims(a: Dim | None, b: Dim | None) -> Dim | None:
    if a is None or b is None:
        return None
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if a == 1 or b == 1:
        return b if a == 1 else a
    if a == 0 or b == 0:
        return 0
    return _symbol("*", a, b)


def divide_dims(a: Dim | None, b: Dim | None, whole: bool = True) -> Dim | None:
    """a / b; integers are cut off unless the division is one of floats."""
    if isinstance(a, int) and isinstance(b, int) and b:
        if a % b == 0:
            return a // b
        return int(a / b) if whole else None
    return a if b == 1 else None


def product_of(dims: Sequence[Dim | None]) -> Dim | None:
    total: Dim | None = 1
    for d in sorted(dims, key=lambda d: (isinstance(d, str), str(d))):
        total = multiply_dims(total, d)
    return total
