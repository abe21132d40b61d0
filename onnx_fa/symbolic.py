"""Symbolic shapes where ONNX's own inference gives up: dims computed by Shape, Gather and Concat keep their names.

ONNX invents a new symbol ("unk__7") for every dim that it cannot follow, so that equal lengths no longer look equal. This walks
the graph once, carrying dims (ints or symbols) and small integer tensors made of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

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
_REDUCE = frozenset(
    "ReduceMax ReduceSum ReduceMin ReduceMean ReduceProd ReduceLogSumExp ReduceSumSquare ReduceL2".split()
)


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
        vector = self._vector_of(node)
        if vector is not None:
            self._vectors[node.outputs[0]] = vector
        todo = [o for o in node.outputs if not all(known(d) for d in recorded(o) or (None,))]
        if not todo:
            return
        shapes = self._split(node) if node.op_type == "Split" else [self._infer(node)]
        for out, found in zip(node.outputs, shapes, strict=False):
            if found is None or out not in todo:
                continue
            have = recorded(out)
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
        if kind == "ConstantOfShape":
            return self.elements(node.inputs[0])
        if kind == "Concat":
            return self._concat(node)
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
        if kind in _REDUCE:
            return self._reduced(node, first)
        if kind == "Gather":
            indices = self._in(node, 1)
            axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
            axis %= max(len(first), 1)
            return None if indices is None else (*first[:axis], *indices, *first[axis + 1 :])
        if kind == "Slice":
            return self._sliced(node, first)
        if kind == "Tile":
            repeats = self.elements(node.inputs[1])
            return tuple(map(_mul, first, repeats)) if repeats is not None and len(repeats) == len(first) else None
        if kind == "Pad":
            return self._padded(node, first)
        return None

    def _concat(self, node: ir.Node) -> Shape | None:
        shapes = [self._in(node, i) for i in range(len(node.inputs))]
        if any(s is None for s in shapes):
            return None
        parts = [s for s in shapes if s is not None]
        axis = node.attributes["axis"].as_int() % len(parts[0])
        joined = [p[axis] for p in parts]
        sizes = [d for d in joined if isinstance(d, int)]
        length: Dim | None = sum(sizes) if len(sizes) == len(joined) else None
        # Off the axis all are equal, so whichever names a dim best will do.
        rest = [next((d for d in dims if known(d)), dims[0]) for dims in zip(*parts, strict=True)]
        return (*rest[:axis], length, *rest[axis + 1 :])

    def _sliced(self, node: ir.Node, shape: Shape) -> Shape | None:
        bounds = [self._numbers(i) for i in node.inputs[1:3]]
        if len(bounds) != 2:
            return None  # before opset 10 these are attributes
        starts, ends = bounds
        axes = (
            self._numbers(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else range(len(shape))
        )
        steps = self._numbers(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] is not None else None
        if axes is None:
            return None
        result = list(shape)
        for i, axis in enumerate(axes if starts is None else axes[: len(starts)]):
            size = shape[axis]
            start, end = (x[i] if x is not None else None for x in (starts, ends))
            step = 1 if len(node.inputs) < 5 or node.inputs[4] is None else steps[i] if steps is not None else None
            if start is None or end is None or not step:
                result[axis] = None
            elif isinstance(size, int):
                # NumPy and ONNX clamp alike, save that ONNX stops a backward slice at the start where Python wraps around.
                result[axis] = len(range(size)[start:end:step]) if step > 0 else None
            elif not (start == 0 and step == 1 and end >= _NO_END):
                result[axis] = None
        return tuple(result)

    def _padded(self, node: ir.Node, shape: Shape) -> Shape | None:
        pads = self._numbers(node.inputs[1]) if len(node.inputs) > 1 else None
        axes = (
            self._numbers(node.inputs[3]) if len(node.inputs) > 3 and node.inputs[3] is not None else range(len(shape))
        )
        if pads is None or axes is None:
            return None
        result = list(shape)
        for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
            result[axis] = _add(shape[axis], before + after)
        return tuple(result)

    def _split(self, node: ir.Node) -> list[Shape | None]:
        shape = self._in(node, 0)
        axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
        count = len(node.outputs)
        if shape is None:
            return [None] * count
        sizes: Sequence[Dim | None] | None
        if "split" in node.attributes:
            sizes = list(node.attributes["split"].as_ints())
        elif len(node.inputs) > 1 and node.inputs[1] is not None:
            sizes = self.elements(node.inputs[1])
        else:
            whole = shape[axis]
            part = -(-whole // count) if isinstance(whole, int) else None  # the last may be smaller
            sizes = [part] * (count - 1) + [whole - part * (count - 1) if isinstance(whole, int) and part else None]
        at = axis % len(shape)
        return [(*shape[:at], d, *shape[at + 1 :]) for d in sizes or [None] * count]

    def _numbers(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """`elements`, when all are numbers."""
        dims = self.elements(value)
        numbers = tuple(d for d in dims or () if isinstance(d, int))
        return numbers if dims is not None and len(numbers) == len(dims) else None

    def _reduced(self, node: ir.Node, shape: Shape) -> Shape | None:
        axes = node_axes(node, self._const)
        if not axes:
            return None
        gone = {a % len(shape) for a in axes}
        if "keepdims" in node.attributes and not node.attributes["keepdims"].as_int():
            return tuple(d for i, d in enumerate(shape) if i not in gone)
        return tuple(1 if i in gone else d for i, d in enumerate(shape))

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
        if kind == "Reshape":
            flat = len(self._numbers(node.inputs[1]) or (0, 0)) <= 1  # of rank 0 or 1 again
            return self._vectors.get(node.inputs[0]) if flat and node.inputs[0] is not None else None
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
        if kind in _ARITHMETIC:
            return self._arithmetic(node)
        if kind == "ConstantOfShape":
            length = self._numbers(node.inputs[0])
            if length is None or len(length) > 1 or math.prod(length) > 8:
                return None
            fill = (
                node.attributes["value"].as_tensor().numpy() if "value" in node.attributes else np.zeros(1, np.float32)
            )
            return (int(fill[0]),) * math.prod(length) if fill.dtype.kind in "iu" else None
        if kind == "Slice" and node.inputs[0] in self._vectors:
            bounds = [self.elements(i) for i in node.inputs[1:3]]
            step = self.elements(node.inputs[4]) if len(node.inputs) > 4 else (1,)
            (a,), (b,) = (x if x is not None and len(x) == 1 else (None,) for x in bounds)
            if isinstance(a, int) and isinstance(b, int) and step == (1,):
                return self._vectors[node.inputs[0]][a:b]
        return None

    def _arithmetic(self, node: ir.Node) -> tuple[Dim | None, ...] | None:
        """Sums and products of lengths. What is not a number of two numbers is unknown, save for neutral elements."""
        a, b = (self.elements(i) for i in node.inputs)
        if a is None or b is None or not (self._is_integer(node)):
            return None
        if len(a) != len(b) and 1 not in (len(a), len(b)):
            return None
        if not a or not b:
            return ()
        n = max(len(a), len(b))
        op = _ARITHMETIC[node.op_type]
        return tuple(op(x, y) for x, y in zip(a * (n // len(a)), b * (n // len(b)), strict=True))

    def _is_integer(self, node: ir.Node) -> bool:
        return any(
            v is not None and v.dtype in (ir.DataType.INT64, ir.DataType.INT32) for v in (*node.outputs, *node.inputs)
        )


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


def _equal(a: Dim | None, b: Dim | None) -> Dim | None:
    """1 or 0 where it is certain; a length is never negative."""
    if isinstance(a, int) and isinstance(b, int):
        return int(a == b)
    number = a if isinstance(a, int) else b
    return 0 if isinstance(number, int) and number < 0 else 1 if a is not None and a == b else None


def _where(test: Dim | None, yes: Dim | None, no: Dim | None) -> Dim | None:
    return None if not isinstance(test, int) else yes if test else no


def _add(a: Dim | None, b: Dim | None) -> Dim | None:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return a if b == 0 else b if a == 0 else None


def _sub(a: Dim | None, b: Dim | None) -> Dim | None:
    if isinstance(a, int) and isinstance(b, int):
        return a - b
    return a if b == 0 else None


def _mul(a: Dim | None, b: Dim | None) -> Dim | None:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return a if b == 1 else b if a == 1 else None


def _div(a: Dim | None, b: Dim | None) -> Dim | None:
    if isinstance(a, int) and isinstance(b, int):
        return a // b if a >= 0 and b > 0 else None  # ONNX truncates towards zero
    return a if b == 1 else None


_ARITHMETIC = {"Add": _add, "Sub": _sub, "Mul": _mul, "Div": _div}
_NO_END = (1 << 31) - 1
"""What a slice to the end is given as its end, or more."""


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
