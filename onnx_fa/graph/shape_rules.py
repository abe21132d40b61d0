"""Shapes that slices, products and reshapes have, from the dims of what they read."""

from __future__ import annotations

import math
import re
from collections import Counter

from onnx_fa.graph.dims import Shape, add_dims, broadcast, product_of
from onnx_fa.spec.terms import Dim

_SYMBOL_PLUS_NUMBER = re.compile(r"(?:(?P<n>\d+) \+ )?(?P<symbol>[A-Za-z_]\w*)(?: \+ (?P<m>\d+))?")
"""A symbol plus a number."""
_MIN_END_OF_ALL = (1 << 31) - 1
"""An end of a Slice that no length reaches."""


def slice_dim(dim: Dim | None, start: Dim | None, end: Dim | None, step: Dim | None) -> Dim | None:
    """The length of dim[start:end:step]."""
    # NumPy and ONNX clamp alike, save that ONNX stops a backward slice at the start where Python wraps around.
    if isinstance(dim, int) and isinstance(start, int) and isinstance(end, int) and isinstance(step, int) and step > 0:
        return len(range(dim)[start:end:step])
    if (
        dim is not None
        and start == 0
        and step == 1
        and (end == dim or (isinstance(end, int) and end >= _MIN_END_OF_ALL))
    ):
        return dim
    if (start, end, step) == (0, 1, 1) and dim is not None:
        return 1  # unless the axis is empty, and then so is what is made of it
    return _cut_dim(dim, start, end) if step == 1 else None


def _cut_dim(dim: Dim | None, start: Dim | None, end: Dim | None) -> Dim | None:
    """The length of dim[start:end] where dim is "symbol + number" and no more than the number is cut off."""
    found = _SYMBOL_PLUS_NUMBER.fullmatch(dim) if isinstance(dim, str) else None
    if found is None or not isinstance(start, int) or not isinstance(end, int) or start < 0:
        return None
    rest = int(found["n"] or 0) + int(found["m"] or 0) - start + (end if end < 0 else 0)
    if 0 <= end < _MIN_END_OF_ALL or rest < 0:
        return None
    return add_dims(found["symbol"], rest)


def multiply_shapes(a: Shape, b: Shape | None, swap_a: bool = False, swap_b: bool = False) -> Shape | None:
    """The shape of a product of matrices, each perhaps with its last two axes swapped."""
    if b is None or len(a) < 2 or len(b) < 2:
        return None
    a, b = ((*x[:-2], x[-1], x[-2]) if swap else x for x, swap in ((a, swap_a), (b, swap_b)))
    return (*broadcast([a[:-2], b[:-2]]), a[-2], b[-1])


def reshape_dims(source: Shape, to: tuple[Dim | None, ...], allow_zero: bool) -> Shape:
    """Dims after a Reshape, where 0 copies and -1 is what is left over, if that can be told."""
    dims = [source[i] if d == 0 and not allow_zero and i < len(source) else d for i, d in enumerate(to)]
    if -1 not in dims:
        return tuple(dims)
    rest: Counter[Dim | None] = Counter(d for d in source if d != 1)
    rest.subtract(Counter(d for d in dims if d not in (1, -1)))
    over = [d for d, n in rest.items() for _ in range(n)]
    under = [d for d, n in rest.items() for _ in range(-n)]
    ints, symbols = [d for d in over if isinstance(d, int)], [d for d in over if not isinstance(d, int)]
    divisor = math.prod(d for d in under if isinstance(d, int))
    left: Dim | None = None
    told = None not in dims and None not in over
    if told and all(isinstance(d, int) for d in under) and divisor and math.prod(ints) % divisor == 0:
        left = product_of([math.prod(ints) // divisor, *symbols])
    dims[dims.index(-1)] = left
    return tuple(dims)
