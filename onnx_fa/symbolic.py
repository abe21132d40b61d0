"""Symbolic shapes where ONNX's own inference gives up: dims computed by Shape, Gather and Concat keep their names.

ONNX invents a new symbol ("unk__7") for every dim that it cannot follow, so that equal lengths no longer look equal. This walks
the graph once, carrying dims (ints or symbols) and small integer tensors made of them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_fa.spec import Dim

Shape = tuple[Dim | None, ...]
Const = Callable[[ir.Value | None], "npt.NDArray[np.generic] | None"]

_SAME = frozenset(
    "Identity Cast Softmax LogSoftmax LayerNormalization RMSNormalization SimplifiedLayerNormalization Neg Abs Sqrt Reciprocal Exp "
    "Log Erf Tanh Sigmoid Relu Gelu LeakyRelu Dropout IsNaN Not Clip Softplus HardSwish Floor Ceil Cos Sin CumSum Trilu".split()
)
_BROADCAST = frozenset(
    "Add Sub Mul Div Pow Where And Or Xor Equal Less LessOrEqual Greater GreaterOrEqual Max Min Mod PRelu".split()
)


_FOREVER = 1 << 31
"""A Slice's end at or above this means the end of the axis."""


def known(dim: Dim | None) -> bool:
    """An int, or a symbol that someone named."""
    return isinstance(dim, int) or (dim is not None and not dim.startswith("unk__"))


def node_axes(node: ir.Node, const: Const) -> list[int] | None:
    """Axes of a Reduce*, Squeeze or Unsqueeze in either spelling (attribute, or constant second input); None when unknown."""
    if "axes" in node.attributes:
        return list(node.attributes["axes"].as_ints())
    array = const(node.inputs[1]) if len(node.inputs) > 1 else None
    return None if array is None else [int(a) for a in array.reshape(-1)]


class SymbolicShapes:
    """Shapes of all values of a model, as far as they follow from its inputs' symbols. `const` gives constants' contents."""

    def __init__(self, model: ir.Model, const: Const) -> None:
        self._const = const
        self._shapes: dict[ir.Value, Shape | None] = {}
        self._vectors: dict[ir.Value, tuple[Dim | None, ...]] = {}  # small integer tensors of rank 0 and 1
        for node in model.graph.all_nodes():
            self._visit(node)

    def shape(self, value: ir.Value) -> Shape | None:
        """Dims as ints, symbol names, or None; None when not even the rank is known."""
        if value in self._shapes:
            return self._shapes[value]
        return recorded(value)

    def _visit(self, node: ir.Node) -> None:
        if node.domain not in ("", "ai.onnx") or not node.outputs:
            return
        out = node.outputs[0]
        vector = self._vector_of(node)
        if vector is not None:
            self._vectors[out] = vector
        have = recorded(out)
        if have is not None and all(known(d) for d in have):
            return
        found = self._infer(node)
        if found is None:
            return
        if have is not None and len(have) == len(found):
            found = tuple(h if known(h) else f if known(f) else h for h, f in zip(have, found, strict=True))
        self._shapes[out] = found

    def _in(self, node: ir.Node, i: int) -> Shape | None:
        value = node.inputs[i] if i < len(node.inputs) else None
        return None if value is None else self.shape(value)

    def _infer(self, node: ir.Node) -> Shape | None:
        first = self._in(node, 0)
        kind = node.op_type
        if kind in _BROADCAST:
            shapes = [self._in(node, i) for i in range(len(node.inputs))]
            return None if any(s is None for s in shapes) else broadcast([s for s in shapes if s is not None])
        if kind == "Range":
            start, step = self.elements(node.inputs[0]), self.elements(node.inputs[2])
            size = self.elements(node.inputs[1])
            return size if start == (0,) and step == (1,) and size is not None else None
        if first is None:
            return None
        if kind in _SAME:
            return first
        if kind == "MatMul":
            return _matmul(first, self._in(node, 1))
        if kind == "Transpose":
            perm = node.attributes["perm"].as_ints() if "perm" in node.attributes else range(len(first))[::-1]
            return tuple(first[p] for p in perm)
        if kind in ("Reshape", "Expand"):
            to = self.elements(node.inputs[1])
            if to is None:
                return None
            allow_zero = kind == "Reshape" and "allowzero" in node.attributes and node.attributes["allowzero"].as_int()
            return broadcast([first, to]) if kind == "Expand" else _reshape(first, to, bool(allow_zero))
        if kind in ("Unsqueeze", "Squeeze"):
            return self._units(node, first)
        if kind == "Gather":
            indices = self._in(node, 1)
            axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
            axis %= max(len(first), 1)
            return None if indices is None else (*first[:axis], *indices, *first[axis + 1 :])
        if kind == "Concat":
            return self._concat(node, first)
        if kind == "Slice":
            return self._slice(node, first)
        return None

    def _concat(self, node: ir.Node, first: Shape) -> Shape | None:
        shapes = [self._in(node, i) for i in range(len(node.inputs))]
        axis = node.attributes["axis"].as_int() % len(first)
        total = _Sum()
        for shape in shapes:
            if shape is None or len(shape) != len(first):
                return None
            total = total.plus(shape[axis])
        return (*first[:axis], total.dim, *first[axis + 1 :])

    def _slice(self, node: ir.Node, shape: Shape) -> Shape | None:
        """Dims that are cut by constants."""
        if len(node.inputs) < 3:
            return None
        starts, ends = self.elements(node.inputs[1]), self.elements(node.inputs[2])
        axes = self.elements(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else None
        steps = self.elements(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] is not None else None
        if starts is None or ends is None:
            return None
        result = list(shape)
        for n, (start, end) in enumerate(zip(starts, ends, strict=True)):
            axis = axes[n] if axes is not None else n
            if not isinstance(axis, int):
                return None
            step = steps[n] if steps is not None else 1
            result[axis % len(shape)] = _cut(shape[axis % len(shape)], start, end) if step == 1 else None
        return tuple(result)

    def _units(self, node: ir.Node, shape: Shape) -> Shape | None:
        axes = node_axes(node, self._const)
        if axes is None:
            return None
        if node.op_type == "Squeeze":
            drop = {a % len(shape) for a in axes}
            return tuple(d for i, d in enumerate(shape) if i not in drop)
        rank = len(shape) + len(axes)
        put, rest = {a % rank for a in axes}, iter(shape)
        return tuple(1 if i in put else next(rest) for i in range(rank))

    def elements(self, value: ir.Value | None) -> tuple[Dim | None, ...] | None:
        """The elements of an integer tensor of rank 0 or 1, as dims."""
        if value is None:
            return None
        if value in self._vectors:
            return self._vectors[value]
        array = self._const(value)
        if array is None or array.ndim > 1 or array.dtype.kind not in "iu":
            return None
        return tuple(int(a) for a in array.reshape(-1))

    def _vector_of(self, node: ir.Node) -> tuple[Dim | None, ...] | None:
        """The elements of what a shape computation makes."""
        kind = node.op_type
        if kind == "Shape":
            shape = self._in(node, 0)
            start, end = (node.attributes[n].as_int() if n in node.attributes else None for n in ("start", "end"))
            return None if shape is None else shape[slice(start, end)]
        if kind == "Concat":
            parts = [self.elements(i) for i in node.inputs]
            return None if any(p is None for p in parts) else tuple(d for p in parts for d in p or ())
        if kind in ("Unsqueeze", "Squeeze", "Cast", "Identity"):
            return self._vectors.get(node.inputs[0]) if node.inputs[0] is not None else None
        if kind == "Gather":
            source, index = node.inputs
            vector = self._vectors.get(source) if source is not None else None
            at = self.elements(index)
            if (
                vector is None
                or at is None
                or not all(isinstance(i, int) and -len(vector) <= i < len(vector) for i in at)
            ):
                return None
            return tuple(vector[i] for i in at if isinstance(i, int))
        if kind in ("Equal", "Where"):
            parts = [self.elements(i) for i in node.inputs]
            if any(p is None for p in parts) or len({len(p or ()) for p in parts}) != 1:
                return None
            pick = _equal if kind == "Equal" else _where
            return tuple(pick(*dims) for dims in zip(*(p or () for p in parts), strict=True))
        if kind == "Slice" and node.inputs[0] in self._vectors:
            bounds = [self.elements(i) for i in node.inputs[1:3]]
            step = self.elements(node.inputs[4]) if len(node.inputs) > 4 else (1,)
            (a,), (b,) = (x if x is not None and len(x) == 1 else (None,) for x in bounds)
            if isinstance(a, int) and isinstance(b, int) and step == (1,):
                return self._vectors[node.inputs[0]][a:b]
        return None


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
        result.append(next(iter(fixed)) if fixed else next(iter(wide)) if len(wide) == 1 else None if wide else 1)
    return tuple(result)


_OTHER = re.compile(r"(\w+) \+ (\d+)")


@dataclass(frozen=True)
class _Sum:
    """A dim as one symbol (or none) plus a number, written "seq + 1"; `lost` when it is anything else."""

    symbol: str | None = None
    number: int = 0
    lost: bool = False

    @staticmethod
    def of(dim: Dim | None) -> _Sum:
        if isinstance(dim, int):
            return _Sum(None, dim)
        if dim is None:
            return _Sum(lost=True)
        found = _OTHER.fullmatch(dim)
        return _Sum(found[1], int(found[2])) if found else _Sum(dim)

    def plus(self, dim: Dim | None) -> _Sum:
        other = _Sum.of(dim)
        two = self.symbol is not None and other.symbol is not None
        return _Sum(self.symbol or other.symbol, self.number + other.number, self.lost or other.lost or two)

    @property
    def dim(self) -> Dim | None:
        if self.lost or self.number < 0:
            return None
        if self.symbol is None:
            return self.number
        return f"{self.symbol} + {self.number}" if self.number else self.symbol


def _cut(dim: Dim | None, start: Dim | None, end: Dim | None) -> Dim | None:
    """The length of dim[start:end]."""
    if isinstance(start, str) or start is None or end is None:
        return None
    if start == 0 and end == dim:
        return dim
    have = _Sum.of(dim)
    if have.lost or isinstance(end, str):
        return None
    if have.symbol is None:
        return len(range(have.number)[start:end])
    if (start, end) == (0, 1):
        return 1  # unless the axis is empty, and then so is everything made of it
    if start < 0:
        return None  # the symbol may be too small
    stop = have.number + end if end < 0 else have.number if end >= _FOREVER else None
    if stop is None:
        return end - start if start <= end <= have.number else None
    return _Sum(have.symbol, stop - start).dim


def _equal(a: Dim | None, b: Dim | None) -> Dim | None:
    """1 or 0 where it is certain; a length is never negative."""
    if isinstance(a, int) and isinstance(b, int):
        return int(a == b)
    number = a if isinstance(a, int) else b
    return 0 if isinstance(number, int) and number < 0 else 1 if a is not None and a == b else None


def _where(test: Dim | None, yes: Dim | None, no: Dim | None) -> Dim | None:
    return None if not isinstance(test, int) else yes if test else no


def _matmul(a: Shape, b: Shape | None) -> Shape | None:
    if b is None or len(a) < 2 or len(b) < 2:
        return None
    return (*broadcast([a[:-2], b[:-2]]), a[-2], b[-1])


def _reshape(source: Shape, to: tuple[Dim | None, ...], allow_zero: bool) -> Shape:
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
    if all(isinstance(d, int) for d in under) and divisor and math.prod(ints) % divisor == 0:
        quotient = math.prod(ints) // divisor
        left = quotient if not symbols else symbols[0] if len(symbols) == 1 and quotient == 1 else None
    dims[dims.index(-1)] = left
    return tuple(dims)
