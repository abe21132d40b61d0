"""Shapes that slices, products and reshapes have, from the dims of what they read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import onnx_ir as ir
import sympy

from onnx_fa.graph.axes import OPEN_END
from onnx_fa.graph.dims import (
    Shape,
    add_dims,
    broadcast,
    divide_dims,
    larger_dim,
    multiply_dims,
    product_of,
    quotient,
    smaller_dim,
    subtract_dims,
    tail_dim,
)
from onnx_fa.graph.lengths import dim_of, expression, is_never_negative
from onnx_fa.graph.ops import attr_int, typed_attr
from onnx_fa.spec.terms import Dim


@lru_cache(maxsize=4096)
def slice_dim(dim: Dim | None, start: Dim | None, end: Dim | None, step: Dim | None) -> Dim | None:
    """The length of dim[start:end:step]."""
    # NumPy and ONNX clamp alike, save that ONNX stops a backward slice at the start where Python wraps around.
    if isinstance(dim, int) and isinstance(start, int) and isinstance(end, int) and isinstance(step, int) and step > 0:
        return len(range(dim)[start:end:step])
    if (start, end, step) == (0, 1, 1) and dim is not None:
        return 1  # unless the axis is empty, and then so is what is made of it
    if isinstance(step, int) and step < 0:
        return _backward(dim, start, end, -step)
    if not isinstance(step, int) or step < 1 or dim is None:
        return None
    if (
        isinstance(end, int)
        and end >= OPEN_END
        and step == 1
        and isinstance(start, str)
        and is_never_negative(-expression(start))
    ):
        return tail_dim(dim, subtract_dims(0, start))
    last = dim if isinstance(end, int) and end >= OPEN_END else smaller_dim(_from_front(dim, end), dim)
    # A start behind the end needs no clamping: nothing is left then.
    length = larger_dim(subtract_dims(last, _from_front(dim, start)), 0)
    return divide_dims(add_dims(length, step - 1), step)


def _backward(dim: Dim | None, start: Dim | None, end: Dim | None, step: int) -> Dim | None:
    """The length of a slice from `start` back to behind `end`."""
    if not isinstance(start, int) or not isinstance(end, int):
        return None
    if isinstance(dim, int):
        first = min(start + dim if start < 0 else start, dim - 1)
        last = max(end + dim if end < 0 else end, -1)
        return len(range(first, last, -step))
    whole = (start == -1 or start >= OPEN_END) and end <= -OPEN_END
    return divide_dims(add_dims(dim, step - 1), step) if whole else None


def _from_front(dim: Dim, at: Dim | None) -> Dim | None:
    """A bound of a slice counted from the front; it is counted from the end where it is negative."""
    if at is None:
        return None
    # A length is not negative, whether its expression shows it or not.
    if at == dim or is_never_negative(expression(at)) or _is_share(at, dim):
        return at
    if is_never_negative(-1 - expression(at)):
        return larger_dim(add_dims(dim, at), 0)
    return None  # which of the two it is depends on the run


def _is_share(at: Dim, dim: Dim) -> bool:
    """Whether a length is so many times `at` and less than as much again, as 2 T - 1 is of T - 1: then `at`, a whole number, is not
    negative either."""
    for times in (2, 3):
        rest = expression(dim) - times * expression(at)
        if rest.is_Integer and 0 <= rest < times:
            return True
    return False


def multiply_shapes(a: Shape, b: Shape | None, swap_a: bool = False, swap_b: bool = False) -> Shape | None:
    """The shape of a product of matrices, each perhaps with its last two axes swapped."""
    if b is None or len(a) < 2 or len(b) < 2:
        return None
    a, b = ((*x[:-2], x[-1], x[-2]) if swap else x for x, swap in ((a, swap_a), (b, swap_b)))
    return (*broadcast([a[:-2], b[:-2]]), a[-2], b[-1])


def einsum_dims(equation: str, shapes: Sequence[Shape]) -> Shape | None:
    """The shape that an Einsum with an explicit output has. What "..." stands for is aligned at the right, as in broadcasting."""
    terms, arrow, out = equation.replace(" ", "").partition("->")
    if not arrow or len(terms.split(",")) != len(shapes):
        return None
    dims: dict[str, list[Shape]] = {}
    unnamed: list[Shape] = []
    for term, shape in zip(terms.split(","), shapes, strict=True):
        before, dots, behind = term.partition("...")
        if len(before) + len(behind) > len(shape) or (not dots and len(before) != len(shape)):
            return None
        end = len(shape) - len(behind)
        for letter, dim in zip(before + behind, shape[: len(before)] + shape[end:], strict=True):
            dims.setdefault(letter, []).append((dim,))
        unnamed += [shape[len(before) : end]] if dots else []
    before, dots, behind = out.partition("...")
    if any(letter not in dims for letter in before + behind):
        return None
    named = [broadcast(dims[letter])[0] for letter in before + behind]
    return (*named[: len(before)], *(broadcast(unnamed) if dots else ()), *named[len(before) :])


def reshape_dims(source: Shape, to: tuple[Dim | None, ...], allow_zero: bool) -> Shape:
    """Dims after a Reshape, where 0 copies and -1 is what is left over, if that can be told."""
    dims = [source[i] if d == 0 and not allow_zero and i < len(source) else d for i, d in enumerate(to)]
    if -1 not in dims:
        return tuple(dims)
    others = [d for i, d in enumerate(dims) if i != dims.index(-1)]
    left: Dim | None = None
    if None not in source and None not in others:
        kept = Counter(d for d in others if d is not None)
        rest = Counter(d for d in source if d is not None)
        over, under = product_of((rest - kept).elements()), product_of((kept - rest).elements())
        left = None if over is None or under is None else quotient(over, under)
        if left is None and not (isinstance(over, int) and isinstance(under, int)):
            left = divide_dims(over, under)  # a Reshape fails where that leaves a remainder
    dims[dims.index(-1)] = left
    return tuple(dims)


def gather_nd_dims(source: Shape, indices: Shape | None, batch: int) -> Shape | None:
    """What GatherND picks: for every index, the last axis of `indices`, what stands there behind the axes that it counts along. The
    first `batch` axes both have."""
    if not indices or not isinstance(indices[-1], int) or not 0 <= batch < len(indices):
        return None
    behind = batch + indices[-1]
    return None if behind > len(source) else (*indices[:-1], *source[behind:])


@dataclass(frozen=True)
class Window:
    """How a window is moved; `pads` are those before all axes, then those behind; `same` for auto_pad SAME_*; `ceil` for
    one more place where the last window is not filled."""

    strides: Sequence[int]
    dilations: Sequence[int]
    pads: Sequence[int]
    same: bool
    ceil: bool = False

    @staticmethod
    def of(node: ir.Node, rank: int) -> Window:
        """Raises ModelError for an attribute of another type."""
        lists = {}
        for name, default, size in (("strides", 1, rank), ("dilations", 1, rank), ("pads", 0, 2 * rank)):
            found = typed_attr(node, name, ir.AttributeType.INTS)
            lists[name] = [default] * size if found is None else list(found.as_ints())
        auto = typed_attr(node, "auto_pad", ir.AttributeType.STRING)
        how = "NOTSET" if auto is None else auto.as_string()
        pads = [0] * (2 * rank) if how == "VALID" else lists["pads"]
        ceil = attr_int(node, "ceil_mode", 0) != 0
        return Window(lists["strides"], lists["dilations"], pads, how.startswith("SAME"), ceil)


def window_dims(source: Shape, kernel: Shape, window: Window) -> Shape | None:
    """What a convolution or pooling makes of the axes behind the first two: one number per place of its window.

    floor((d + pads - dilation * (k - 1) - 1) / stride) + 1, as ONNX defines it for Conv and MaxPool. With `ceil`
    the number is known where the last window begins inside of the axis: of others runtimes differ on whether they count.
    """
    rank = len(source) - 2
    lists = (window.strides, window.dilations, window.pads[:rank], window.pads[rank:])
    if len(kernel) != rank or any(len(x) != rank for x in lists):
        return None
    dims: list[Dim | None] = []
    for axis in range(rank):
        dim, size, stride = source[axis + 2], kernel[axis], window.strides[axis]
        if dim is None or size is None or stride < 1:
            dims.append(None)
        elif window.same:
            dims.append(divide_dims(add_dims(dim, stride - 1), stride))
        else:
            covered = window.dilations[axis] * (expression(size) - 1) + 1
            padded = expression(dim) + window.pads[axis] + window.pads[axis + rank] - covered
            if window.ceil:
                dims.append(_rounded_up(dim, padded, stride, window.pads[axis]))
            else:
                dims.append(dim_of(sympy.floor(padded / stride) + 1))
    return tuple(dims)


def spread_dims(source: Shape, weight: Shape | None, node: ir.Node) -> Shape | None:
    """What a ConvTranspose makes, as ONNX defines it: stride * (d - 1) + output_padding + dilation * (k - 1) + 1 - pads along each
    axis, which stays unknown where an `auto_pad` or an `output_shape` says it."""
    rank = len(source) - 2
    if weight is None or len(weight) != len(source) or rank < 1:
        return None
    window, more = Window.of(node, rank), typed_attr(node, "output_padding", ir.AttributeType.INTS)
    added = [0] * rank if more is None else list(more.as_ints())
    told = window.same or "output_shape" in node.attributes
    lists = (window.strides, window.dilations, window.pads[:rank], window.pads[rank:], added)
    if any(len(x) != rank for x in lists):
        return None
    dims: list[Dim | None] = []
    for dim, size, stride, dilation, low, high, behind in zip(source[2:], weight[2:], *lists, strict=True):
        if dim is None or size is None or told:
            dims.append(None)
        else:
            reach = dilation * (expression(size) - 1) + 1
            dims.append(dim_of(stride * (expression(dim) - 1) + reach + behind - low - high))
    return (source[0], multiply_dims(weight[1], attr_int(node, "group", 1)), *dims)


def _rounded_up(dim: Dim, padded: sympy.Expr, stride: int, before: int) -> Dim | None:
    """How many places a window has that may reach past the end, of an axis whose length is a number; else None."""
    if not isinstance(dim, int) or not padded.is_Integer:
        return None
    steps = -(-int(padded) // stride)
    return steps + 1 if 0 <= steps * stride < dim + before else None
