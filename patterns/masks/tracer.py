"""Reads a mask's graph backwards: what is the value's element at score position (b, h, q, k), as a score expression?

`Tracer.at(value, index)` asks a value for the element at an index, each component an expression of the position. Shape ops
(Expand, Transpose, Slice, Gather, GatherND, ...) only change the index; Range, Trilu, EyeLike, ConstantOfShape and constants that
follow a rule become expressions; elementwise ops are expressions of expressions. Where nothing of that is left, or where the value
does not depend on query and key at once, it is read as a tensor: then it is small.

Values are read one at a time, each at each index once: a step that needs another value gives way to it and is taken again when
that is known, so that a chain of any length takes no stack.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import Array, GraphView
from onnx_fa.match import Call, Const, Expr
from onnx_fa.patterns.masks.choosing import (
    choose_by_concat,
    choose_by_gather,
    choose_by_gather_elements,
    choose_by_gather_nd,
    choose_by_split,
)
from onnx_fa.patterns.masks.computing import apply_elementwise, cast_element, clip_element
from onnx_fa.patterns.masks.constant_rule import rule_of
from onnx_fa.patterns.masks.elements import Elements, Index, Unread, Untraceable, kind_of_value, type_range
from onnx_fa.patterns.masks.expressions import (
    INT64,
    AnyPosition,
    AxisPosition,
    MaskTensor,
    TooComplex,
    integer,
    is_choice,
    reads,
)
from onnx_fa.patterns.masks.making import count_range, cut_triangle, fill_constant, mark_diagonal, sum_up
from onnx_fa.patterns.masks.moving import (
    undo_expand,
    undo_reshape,
    undo_slice,
    undo_squeeze,
    undo_tile,
    undo_transpose,
    undo_unsqueeze,
)
from onnx_fa.spec.expr import OPS, Apply, Int, K, Kind, Q, ScoreExpr, Tensor, parts
from onnx_fa.spec.terms import Dim

_MAX_WORTH_COMPUTING = 24
"""Nodes of an expression that are worth computing instead of reading a small tensor."""
_MAX_STEPS = 20_000
"""Steps that may be taken to read one mask. What takes more is read as a tensor."""
_Step = Callable[[Elements, ir.Node, Index], "ScoreExpr | None"]
_STEPS: dict[str, _Step] = {
    "Identity": lambda elements, node, index: elements.read(node.inputs[0], index),
    "Cast": cast_element,
    "CastLike": cast_element,
    "Transpose": undo_transpose,
    "Unsqueeze": undo_unsqueeze,
    "Squeeze": undo_squeeze,
    "Expand": undo_expand,
    "Tile": undo_tile,
    "Reshape": undo_reshape,
    "Flatten": undo_reshape,
    "Slice": undo_slice,
    "Gather": choose_by_gather,
    "GatherND": choose_by_gather_nd,
    "GatherElements": choose_by_gather_elements,
    "Concat": choose_by_concat,
    "Range": count_range,
    "Trilu": cut_triangle,
    "EyeLike": mark_diagonal,
    "ConstantOfShape": fill_constant,
    "CumSum": sum_up,
    "Clip": clip_element,
}


@dataclass(frozen=True)
class Leaf:
    """A value read as a tensor at an index whose components are single positions."""

    value: ir.Value | Const
    index: Index


class Tracer:
    """Reads values for scores of `shape` (*B, Hq, Sq, Skv)."""

    def __init__(self, view: GraphView, shape: tuple[Dim, ...], dtype: str) -> None:
        self.view, self.shape = view, shape
        self.elements = Elements(view, shape, dtype)
        self.position, self.algebra = self.elements.position, self.elements.algebra
        self.leaves: list[Leaf] = []
        self.origin: dict[ScoreExpr, Leaf] = {}
        self._tables: dict[bytes, Const] = {}
        self._steps = 0

    def trace(self, value: ir.Value) -> ScoreExpr:
        """The value's element at the position of a score, to which it must provably broadcast. Raises Untraceable."""
        dims = self.view.shape(value)
        if dims is None or len(dims) > len(self.shape):
            raise Untraceable
        aligned = self.position[len(self.position) - len(dims) :]
        index = []
        for have, want, p in zip(dims, self.shape[len(self.shape) - len(dims) :], aligned, strict=True):
            if have is None or have not in (1, want):
                raise Untraceable
            index.append(integer(0) if have == 1 else p)
        try:
            return self.at(value, tuple(index))
        except TooComplex as e:
            raise Untraceable from e

    def everywhere(self, value: ir.Value) -> ScoreExpr:
        """The value's element at any index. Raises Untraceable."""
        dims = self.view.shape(value)
        if dims is None or len(dims) > len(self.shape):
            raise Untraceable
        try:
            return self.at(value, self.position[len(self.position) - len(dims) :])
        except TooComplex as e:
            raise Untraceable from e

    def at(self, value: ir.Value, index: Index) -> ScoreExpr:
        """The element of `value` at `index`. Raises Untraceable."""
        todo = [(value, index)]
        while todo:
            key = todo[-1]
            try:
                if key not in self.elements.known:
                    self.elements.known[key] = self._found(*key)
                todo.pop()
            except Unread as missing:
                todo.append(missing.key)
        return self.elements.read(value, index)

    def _found(self, value: ir.Value, index: Index) -> ScoreExpr | None:
        """The element, None where it cannot be read. Raises Unread for what has to be read before."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            return None
        try:
            found = self._at(value, index)
        except (Untraceable, TooComplex):
            return None
        known = self.origin.get(found)
        if known is None or _positions(known.index) == _positions(index):
            self.origin[found] = Leaf(value, index)  # the one nearest to the score, unless it is larger
        return found

    def _at(self, value: ir.Value, index: Index) -> ScoreExpr:
        kind, dims = kind_of_value(value), self.view.shape(value)
        if kind is None or (dims is not None and len(dims) != len(index)):
            raise Untraceable
        try:
            down = self._down(value, index, kind)
        except (Untraceable, TooComplex):
            down = None
        used = _positions(index)
        if down is not None:
            if Q in used and K in used:
                return self._highest(value, index, kind, down, used)
            read = {type(x) for x in reads(down)}
            # An index may be a batch row.
            free = {MaskTensor, AnyPosition} if kind == "int" else {MaskTensor, AnyPosition, AxisPosition}
            computed = not read & free and sum(1 for _ in parts(down)) <= _MAX_WORTH_COMPUTING
            whole = is_choice(down) and not read & {AnyPosition, AxisPosition}
            if whole if kind == "float" else computed:
                return down
            if computed and isinstance(down, Apply) and down.op == "ToFloat":
                return down
        try:
            return self.leaf(value, index, kind)
        except Untraceable:
            if down is None:
                raise
            return down

    def _highest(
        self, value: ir.Value, index: Index, kind: Kind, down: ScoreExpr, used: frozenset[ScoreExpr]
    ) -> ScoreExpr:
        """Of a tensor and what it is computed from by moving elements, the one nearest to the score, unless it is larger."""
        if isinstance(down, Tensor) and _positions(self.leaves[down.index].index) == used:
            try:
                return self.leaf(value, index, kind)
            except Untraceable:
                return down
        return down

    def leaf(self, value: ir.Value, index: Index, kind: Kind) -> MaskTensor:
        """The value as a tensor. Raises Untraceable where it is not read at plain positions."""
        while (node := self.view.producer(value, "Identity", "Cast")) is not None:
            inner = node.inputs[0]
            widens = (
                (inner.dtype, value.dtype) == (ir.DataType.INT32, ir.DataType.INT64) if inner is not None else False
            )
            if inner is None or (inner.dtype != value.dtype and not widens):
                break
            value = inner
        if kind == "float" and value.dtype == ir.DataType.DOUBLE and self.elements.compute != "f64":
            raise Untraceable  # would be rounded
        dims = self.view.shape(value)
        if dims is None or len(dims) != len(index):
            raise Untraceable
        seen: set[ScoreExpr] = set()
        for dim, i in zip(dims, index, strict=True):
            terms, shift = self.algebra.linear(i)
            if not terms:
                if not (isinstance(dim, int) and 0 <= shift < dim):
                    raise Untraceable
                continue
            (atom, n), *more = terms.items()
            if more or n != 1 or atom not in self.position or atom in seen:
                raise Untraceable
            seen.add(atom)
            size = self.shape[self.position.index(atom)]
            plain = shift == 0 and dim == size
            if not plain and not (isinstance(dim, int) and isinstance(size, int) and 0 <= shift <= dim - size):
                raise Untraceable
        leaf = Leaf(value, index)
        if leaf not in self.leaves:
            self.leaves.append(leaf)
        found = MaskTensor(self.leaves.index(leaf), kind)
        if kind == "int":
            self.algebra.ranges[found] = self._bound_elements(value)
        return found

    def _bound_elements(self, value: ir.Value) -> tuple[int, int]:
        """The least and the largest element that an integer tensor may have."""
        array = self.view.const(value)
        if array is not None and array.size:
            return int(array.min()), int(array.max())
        return type_range(value.dtype) if value.dtype is not None else INT64

    def table(self, array: Array, x: ScoreExpr) -> ScoreExpr:
        """A tensor of a one-dimensional constant, read at one position. Raises Untraceable."""
        if x not in self.position or array.shape[0] != self.shape[self.position.index(x)]:
            raise Untraceable
        known = self._tables.setdefault(array.dtype.str.encode() + array.tobytes(), Const(array))
        leaf = Leaf(known, (x,))
        if leaf not in self.leaves:
            self.leaves.append(leaf)
        return MaskTensor(self.leaves.index(leaf), "float" if array.dtype.kind == "f" else "int")

    def is_wide(self, tensor: Tensor) -> bool:
        """Whether a tensor leaf has both a query and a key axis."""
        used = _positions(self.leaves[tensor.index].index)
        return Q in used and K in used

    def operand(self, tensor: Tensor) -> tuple[Expr, tuple[Dim, ...]]:
        """A tensor leaf as an operand that lies as the score does, and its dims."""
        leaf = self.leaves[tensor.index]
        value: Expr = leaf.value
        source = leaf.value
        dims = list(source.array.shape if isinstance(source, Const) else self.view.shape(source) or ())
        places: list[int | None] = []
        for axis, i in enumerate(leaf.index):
            terms, shift = self.algebra.linear(i)
            place = self.position.index(next(iter(terms))) if terms else None
            size = 1 if place is None else self.shape[place]
            if dims[axis] != size:
                assert isinstance(size, int)
                bounds = [Const(np.asarray([x], np.int64)) for x in (shift, shift + size, axis)]
                value = Call("Slice", (value, *bounds))
                dims[axis] = size
            places.append(place)
        rank = len(self.shape)
        offset = rank - len(places)
        if all(p is None or p == axis + offset for axis, p in enumerate(places)):
            return value, tuple(d for d in dims if d is not None)
        units = [axis for axis, p in enumerate(places) if p is None]
        kept = [p for p in places if p is not None]
        if units:
            value = Call("Squeeze", (value, _ints(*units)))
        order = sorted(range(len(kept)), key=kept.__getitem__)
        if order != list(range(len(kept))):
            value = Call("Transpose", (value,), (("perm", tuple(order)),))
        first = min(kept)
        put = [p - first for p in range(first, rank) if p not in kept]
        if put:
            value = Call("Unsqueeze", (value, _ints(*put)))
        return value, tuple(self.shape[p] if p in kept else 1 for p in range(first, rank))

    def _down(self, value: ir.Value, index: Index, kind: Kind) -> ScoreExpr | None:
        array = self.view.const(value)
        if array is None:
            return self._computed(value, index)
        if array.ndim == len(index) and array.size == 1:
            return rule_of(self.algebra, array, tuple(integer(0) for _ in index), kind, self.table)
        try:
            found = self._computed(value, index)
        except (Untraceable, TooComplex):
            found = None
        if found is not None and not any(isinstance(x, Tensor) and self.is_wide(x) for x in reads(found)):
            return found
        return rule_of(self.algebra, array, index, kind, self.table) or found

    def _computed(self, value: ir.Value, index: Index) -> ScoreExpr | None:
        node = self.view.producer(value)
        if node is None:
            return self._dimension(value, index)
        step = _STEPS.get(op_of(node))
        if step is not None and node.outputs[0] is value:
            return step(self.elements, node, index)
        if op_of(node) == "Split":
            return choose_by_split(self.elements, node, value, index)
        dim = self._dimension(value, index)
        if dim is not None:
            return dim
        return apply_elementwise(self.elements, node, index) if op_of(node) in OPS else None

    def _dimension(self, value: ir.Value, index: Index) -> ScoreExpr | None:
        """An element of a shape computation."""
        places = [i.value for i in index if isinstance(i, Int)]
        if len(index) > 1 or len(places) != len(index):
            return None
        found = self.view.dims(value)
        if found is None or not found:
            return None
        at = places[0] if places else 0
        return None if not 0 <= at < len(found) else self.elements.express_size(found[at])


def _positions(index: Index) -> frozenset[ScoreExpr]:
    """The positions that an index depends on."""
    return frozenset(x for i in index for x in reads(i) if not isinstance(x, Int))


def _ints(*values: int) -> Const:
    return Const(np.asarray(values, np.int64))
