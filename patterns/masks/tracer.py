"""Reads a mask's graph backwards: what is the value's element at score position (b, h, q, k), as a score expression?

`Tracer.at(value, index)` asks a value for the element at an index, each component an expression of the position. Shape ops
(Expand, Transpose, Slice, Gather, GatherND, ...) only change the index; Range, Trilu, EyeLike, ConstantOfShape and constants that
follow a rule become expressions; elementwise ops are expressions of expressions. Where nothing of that is left, or where the value
does not depend on query and key at once, it is read as a tensor: then it is small.

Values are read one at a time, each at each index once: a step that needs another value gives way to it and is taken again when
that is known, so that a chain of any length takes no stack.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.ops import attr_int, op_of
from onnx_fa.graph.symbolic import placed_axis
from onnx_fa.graph.view import FLOATS, Array, GraphView, axes_of
from onnx_fa.match import Call, Const, Expr
from onnx_fa.patterns.masks.algebra import (
    FALSE,
    INT64,
    TRUE,
    Algebra,
    TooComplex,
    boolean,
    integer,
    is_choice,
    number,
    parts,
    reads,
)
from onnx_fa.patterns.masks.constant_rule import rule_of
from onnx_fa.spec.attention import Dim
from onnx_fa.spec.expr import OPS, Kind, ScoreExpr

Index = tuple[ScoreExpr, ...]
_INTS = {
    ir.DataType.INT64,
    ir.DataType.INT32,
    ir.DataType.INT16,
    ir.DataType.INT8,
    ir.DataType.UINT8,
    ir.DataType.UINT16,
    ir.DataType.UINT32,
}
_SIMPLE = 24
"""Nodes of an expression that are worth computing instead of reading a small tensor."""
_MOST_STEPS = 20_000
"""Steps that may be taken to read one mask. What takes more is read as a tensor."""


class Untraceable(Exception):
    """A value cannot be read at an index."""


class _Unread(Exception):
    """Another value has to be read first."""

    def __init__(self, value: ir.Value, index: Index) -> None:
        super().__init__()
        self.key = (value, index)


def kind_of_value(value: ir.Value) -> Kind | None:
    if value.dtype in FLOATS:
        return "float"
    return "bool" if value.dtype == ir.DataType.BOOL else "int" if value.dtype in _INTS else None


@dataclass(frozen=True)
class Leaf:
    """A value read as a tensor at an index whose components are single positions."""

    value: ir.Value | Const
    index: Index


def _placed(axis: int, rank: int) -> int:
    """The axis counted from the front. Raises Untraceable where there is no such axis."""
    placed = placed_axis(axis, rank)
    if placed is None:
        raise Untraceable
    return placed


class Tracer:
    """Reads values for scores of `shape` (*B, Hq, Sq, Skv). `compute` is the type that score expressions are computed in."""

    def __init__(self, view: GraphView, shape: tuple[Dim, ...], dtype: str) -> None:
        self.view, self.shape = view, shape
        self.compute = "f64" if dtype == "f64" else "f32"
        rank = len(shape)
        self.position: Index = (*(("axis", i) for i in range(rank - 2)), ("q",), ("k",))
        self.sizes: dict[ScoreExpr, int] = {
            p: d for p, d in zip(self.position, shape, strict=True) if isinstance(d, int)
        }
        self.algebra = Algebra(self.sizes)
        self.leaves: list[Leaf] = []
        self.origin: dict[ScoreExpr, Leaf] = {}
        self._memo: dict[tuple[ir.Value, Index], ScoreExpr | None] = {}
        self._tables: dict[bytes, Const] = {}
        self._anywhere: dict[ir.Node, ScoreExpr] = {}
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
                if key not in self._memo:
                    self._memo[key] = self._found(*key)
                todo.pop()
            except _Unread as missing:
                todo.append(missing.key)
        return self._read(value, index)

    def _found(self, value: ir.Value, index: Index) -> ScoreExpr | None:
        """The element, None where it cannot be read. Raises _Unread for what has to be read before."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
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
            if ("q",) in used and ("k",) in used:
                return self._highest(value, index, kind, down, used)
            free = {"tensor", "var"} if kind == "int" else {"tensor", "var", "axis"}  # an index may be a batch row
            computed = not any(x[0] in free for x in reads(down)) and sum(1 for _ in parts(down)) <= _SIMPLE
            whole = is_choice(down) and not any(x[0] in ("var", "axis") for x in reads(down))
            if whole if kind == "float" else computed:
                return down
            if computed and down[0] == "ToFloat":
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
        if down[0] == "tensor" and _positions(self.leaves[down[1]].index) == used:
            try:
                return self.leaf(value, index, kind)
            except Untraceable:
                return down
        return down

    def leaf(self, value: ir.Value, index: Index, kind: Kind) -> ScoreExpr:
        """The value as a tensor. Raises Untraceable where it is not read at plain positions."""
        while (node := self.view.producer(value, "Identity", "Cast")) is not None:
            inner = node.inputs[0]
            widens = (
                (inner.dtype, value.dtype) == (ir.DataType.INT32, ir.DataType.INT64) if inner is not None else False
            )
            if inner is None or (inner.dtype != value.dtype and not widens):
                break
            value = inner
        if kind == "float" and value.dtype == ir.DataType.DOUBLE and self.compute != "f64":
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
        found = ("tensor", self.leaves.index(leaf), kind)
        if kind == "int":
            self.algebra.ranges[found] = self._elements(value)
        return found

    def _elements(self, value: ir.Value) -> tuple[int, int]:
        """The least and the largest element that an integer tensor may have."""
        array = self.view.const(value)
        if array is not None and array.size:
            return int(array.min()), int(array.max())
        return _range(value.dtype) if value.dtype is not None else INT64

    def table(self, array: Array, x: ScoreExpr) -> ScoreExpr:
        """A tensor of a one-dimensional constant, read at one position. Raises Untraceable."""
        if x not in self.position or array.shape[0] != self.shape[self.position.index(x)]:
            raise Untraceable
        known = self._tables.setdefault(array.dtype.str.encode() + array.tobytes(), Const(array))
        leaf = Leaf(known, (x,))
        if leaf not in self.leaves:
            self.leaves.append(leaf)
        return ("tensor", self.leaves.index(leaf), "float" if array.dtype.kind == "f" else "int")

    def is_wide(self, tensor: ScoreExpr) -> bool:
        """Whether a tensor leaf has both a query and a key axis."""
        used = _positions(self.leaves[tensor[1]].index)
        return ("q",) in used and ("k",) in used

    def operand(self, tensor: ScoreExpr) -> tuple[Expr, tuple[Dim, ...]]:
        """A tensor leaf as an operand that lies as the score does, and its dims."""
        leaf = self.leaves[tensor[1]]
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

    # One node up

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
        if found is not None and not any(x[0] == "tensor" and self.is_wide(x) for x in reads(found)):
            return found
        return rule_of(self.algebra, array, index, kind, self.table) or found

    def _computed(self, value: ir.Value, index: Index) -> ScoreExpr | None:
        node = self.view.producer(value)
        if node is None:
            return self._dimension(value, index)
        step = _STEPS.get(op_of(node))
        if step is not None and node.outputs[0] is value:
            return step(self, node, index)
        if op_of(node) == "Split":
            return self._split(node, value, index)
        dim = self._dimension(value, index)
        if dim is not None:
            return dim
        return self._elementwise(node, index) if op_of(node) in OPS else None

    def _dimension(self, value: ir.Value, index: Index) -> ScoreExpr | None:
        """An element of a shape computation."""
        if len(index) > 1 or any(i[0] != "i" for i in index):
            return None
        found = self.view.dims(value)
        if found is None or not found:
            return None
        at = index[0][1] if index else 0
        return None if not 0 <= at < len(found) else self._dim(found[at])

    def _dim(self, dim: Dim | None) -> ScoreExpr | None:
        if isinstance(dim, int):
            return integer(dim)
        sq, skv = self.shape[-2:]
        if dim is None or dim.startswith("unk__"):
            return None
        if dim == skv:
            return ("Skv",)
        if dim == sq:
            return ("Sq",)
        if isinstance(skv, str) and isinstance(sq, str) and skv in (f"{dim} + {sq}", f"{sq} + {dim}"):
            return self.algebra.add(("Skv",), ("Sq",), -1)
        return None

    def _spread(self, source: ir.Value | None, out: ir.Value, index: Index) -> Index:
        """The index into `source` for one into `out`, to whose shape `source` broadcasts."""
        have, want = self.view.shape(source), self.view.shape(out)
        if have is None or want is None or len(want) != len(index) or len(have) > len(want):
            raise Untraceable
        result = []
        for h, w, i in zip(have, want[len(want) - len(have) :], index[len(want) - len(have) :], strict=True):
            if h == 1:
                result.append(integer(0))
            elif (isinstance(h, int) and h > 1) or (h is not None and h == w):
                result.append(i)
            else:
                raise Untraceable
        return tuple(result)

    def _inside(self, i: ScoreExpr, dim: Dim | None) -> ScoreExpr:
        """An index as Gather takes it, negative ones counted from the end. Raises Untraceable where its sign is unknown."""
        lo, hi = self.algebra.bounds(i)
        if lo >= 0:
            return i
        size = self._dim(dim)
        if hi < 0 and size is not None:
            return self.algebra.add(i, size)
        raise Untraceable

    def _number(self, value: ir.Value | None) -> ScoreExpr:
        """The only element of an operand that is one number: onnxruntime takes a vector of one for a scalar."""
        return self._read(value, tuple(integer(0) for _ in self.view.shape(value) or ()))

    def _read(self, value: ir.Value | None, index: Index) -> ScoreExpr:
        if value is None:
            raise Untraceable
        if (value, index) not in self._memo:
            raise _Unread(value, index)
        found = self._memo[value, index]
        if found is None:
            raise Untraceable
        return found

    def _elementwise(self, node: ir.Node, index: Index) -> ScoreExpr | None:
        out, op = node.outputs[0], op_of(node)
        kinds = [kind_of_value(i) for i in node.inputs if i is not None]
        if (op == "Mod" and attr_int(node, "fmod", 0)) or None in kinds or out.dtype is None:
            return None
        args = [self._read(i, self._spread(i, out, index)) for i in node.inputs]
        dtype = out.dtype.numpy()
        kind = kinds[-1]
        assert kind is not None
        if len(args) == 1 and op in ("Max", "Min"):
            return args[0]
        while len(args) > 2 and op in ("Max", "Min"):
            first = self.algebra.apply(op, (args[0], args[1]), kind, dtype)
            assert first is not None
            args = [first, *args[2:]]
        if len(args) != len(OPS[op].kinds):
            return None
        last = node.inputs[-1]
        assert last is not None
        if kind == "float" and op != "Where" and not all(map(is_choice, args)):
            exact = op in ("Neg", "Abs") or (op in _COMPARES and self._same_float(last.dtype))
            if not exact and not self._is_compute(last.dtype):
                return None  # rounds otherwise than the kernel would
        found = self.algebra.apply(op, tuple(args), kind, dtype)
        return None if found is None or self._wraps(found, out.dtype) else found

    def _wraps(self, e: ScoreExpr, dtype: ir.DataType) -> bool:
        """Whether an int type is not certain to hold a whole number, which is computed in int64."""
        if dtype not in _INTS or dtype == ir.DataType.INT64:
            return False
        (lo, hi), (least, most) = self.algebra.bounds(e), _range(dtype)
        return not (least <= lo and hi <= most)

    def _same_float(self, dtype: ir.DataType | None) -> bool:
        return dtype != ir.DataType.DOUBLE or self.compute == "f64"

    def _is_compute(self, dtype: ir.DataType | None) -> bool:
        return dtype == (ir.DataType.DOUBLE if self.compute == "f64" else ir.DataType.FLOAT)

    def _cast(self, node: ir.Node, index: Index) -> ScoreExpr | None:
        source, out = node.inputs[0], node.outputs[0]
        if source is None or out.dtype is None:
            return None
        kind, to = kind_of_value(source), kind_of_value(out)
        inner = self._read(source, index)
        if kind is None or to is None:
            return None
        if to == "bool":
            return self.algebra.to_bool(inner, kind)
        if to == "int":
            found = self.algebra.to_int(inner, kind)
            return None if found is None or self._wraps(found, out.dtype) else found
        if kind == "float" and not is_choice(inner):
            holds = out.dtype == source.dtype or _bits(out.dtype) > _bits(source.dtype)
            return inner if holds and self._same_float(out.dtype) else None
        if kind == "int" and not is_choice(inner) and not self._is_compute(out.dtype):
            lo, hi = self.algebra.bounds(inner)
            if max(abs(lo), abs(hi)) > _EXACT.get(out.dtype, 0):
                return None
        return self.algebra.to_float(inner, kind, out.dtype.numpy())

    def _transpose(self, node: ir.Node, index: Index) -> ScoreExpr:
        rank = len(index)
        perm = list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else list(range(rank))[::-1]
        return self._read(node.inputs[0], tuple(index[perm.index(i)] for i in range(rank)))

    def _unsqueeze(self, node: ir.Node, index: Index) -> ScoreExpr:
        axes = axes_of(self.view, node)
        if axes is None:
            raise Untraceable
        drop = {_placed(a, len(index)) for a in axes}
        return self._read(node.inputs[0], tuple(i for n, i in enumerate(index) if n not in drop))

    def _squeeze(self, node: ir.Node, index: Index) -> ScoreExpr:
        dims = self.view.shape(node.inputs[0])
        if dims is None:
            raise Untraceable
        axes = axes_of(self.view, node) if len(node.inputs) > 1 or "axes" in node.attributes else None
        units = [n for n, d in enumerate(dims) if d == 1] if axes is None else [_placed(a, len(dims)) for a in axes]
        if len(dims) - len(units) != len(index):
            raise Untraceable
        rest = iter(index)
        return self._read(node.inputs[0], tuple(integer(0) if n in units else next(rest) for n in range(len(dims))))

    def _expand(self, node: ir.Node, index: Index) -> ScoreExpr:
        return self._read(node.inputs[0], self._spread(node.inputs[0], node.outputs[0], index))

    def _tile(self, node: ir.Node, index: Index) -> ScoreExpr:
        dims, repeats = self.view.shape(node.inputs[0]), self.view.const(node.inputs[1])
        if dims is None:
            raise Untraceable
        result = []
        for n, (d, i) in enumerate(zip(dims, index, strict=True)):
            if d == 1:
                result.append(integer(0))
            elif repeats is not None and int(repeats.reshape(-1)[n]) == 1:
                result.append(i)
            elif isinstance(d, int):
                result.append(self.algebra.modulo(i, d))
            else:
                raise Untraceable
        return self._read(node.inputs[0], tuple(result))

    def _reshape(self, node: ir.Node, index: Index) -> ScoreExpr:
        """Runs of dims with equal products are taken apart by division and put together by multiplication."""
        before, after = self.view.shape(node.inputs[0]), self.view.shape(node.outputs[0])
        if before is None or after is None:
            raise Untraceable
        result: list[ScoreExpr] = []
        todo = list(zip(after, index, strict=True))
        old = list(before)
        while old:
            if old[0] == 1:
                old.pop(0)
                result.append(integer(0))
            elif todo and todo[0][0] == 1:
                todo.pop(0)
            elif todo and old[0] is not None and old[0] == todo[0][0]:
                old.pop(0)
                result.append(todo.pop(0)[1])
            else:
                result += self._regroup(old, todo)
        if any(d != 1 for d, _ in todo):
            raise Untraceable
        return self._read(node.inputs[0], tuple(result))

    def _regroup(self, old: list[Dim | None], todo: list[tuple[Dim | None, ScoreExpr]]) -> list[ScoreExpr]:
        """Takes the shortest runs of static dims with equal products off both lists: the index into the old dims."""
        a, b = [old.pop(0)], [todo.pop(0)] if todo else []
        while (x := _product(a)) != (y := _product([d for d, _ in b])):
            if x < y and old:
                a.append(old.pop(0))
            elif y < x and todo:
                b.append(todo.pop(0))
            else:
                raise Untraceable
        flat = integer(0)
        for d, i in b:
            assert isinstance(d, int)
            flat = self.algebra.add(self.algebra.multiply(flat, d), i)
        result = []
        for d in reversed(a):
            assert isinstance(d, int)
            result.append(self.algebra.modulo(flat, d))
            flat = self.algebra.divide(flat, d)
        return result[::-1]

    def _slice(self, node: ir.Node, index: Index) -> ScoreExpr:
        dims = self.view.shape(node.inputs[0])
        given = [self.view.const(i) for i in node.inputs[1:]]
        starts = given[0] if given else None
        if dims is None or starts is None or len(node.inputs) < 3:
            raise Untraceable
        first = [int(x) for x in starts.reshape(-1)]
        axes = given[2] if len(given) > 2 and node.inputs[3] is not None else np.arange(len(first))
        steps = given[3] if len(given) > 3 and node.inputs[4] is not None else np.ones(len(first))
        if axes is None or steps is None:
            raise Untraceable
        result = list(index)
        for start, axis, step in zip(first, axes.reshape(-1), steps.reshape(-1), strict=True):
            n = _placed(int(axis), len(dims))
            if int(step) < 1:
                raise Untraceable
            origin = integer(start)
            if start < 0:
                size = dims[n]
                if not isinstance(size, int):
                    raise Untraceable
                origin = integer(max(start + size, 0))
            result[n] = self.algebra.add(self.algebra.multiply(result[n], int(step)), origin)
        return self._read(node.inputs[0], tuple(result))

    def _gather(self, node: ir.Node, index: Index) -> ScoreExpr:
        data, where = node.inputs[0], node.inputs[1]
        dims, inner = self.view.shape(data), self.view.shape(where)
        if dims is None or inner is None:
            raise Untraceable
        axis = _placed(attr_int(node, "axis", 0), len(dims))
        chosen = self._read(where, index[axis : axis + len(inner)])
        chosen = self._inside(chosen, dims[axis])
        return self._read(data, (*index[:axis], chosen, *index[axis + len(inner) :]))

    def _gather_nd(self, node: ir.Node, index: Index) -> ScoreExpr:
        data, where = node.inputs[0], node.inputs[1]
        dims, inner = self.view.shape(data), self.view.shape(where)
        batch = attr_int(node, "batch_dims", 0)
        if dims is None or inner is None or not isinstance(inner[-1], int):
            raise Untraceable
        lead = index[: len(inner) - 1]
        chosen = [self._inside(self._read(where, (*lead, integer(n))), dims[batch + n]) for n in range(inner[-1])]
        return self._read(data, (*index[:batch], *chosen, *index[len(inner) - 1 :]))

    def _gather_elements(self, node: ir.Node, index: Index) -> ScoreExpr:
        dims = self.view.shape(node.inputs[0])
        axis = _placed(attr_int(node, "axis", 0), len(index))
        chosen = self._inside(self._read(node.inputs[1], index), dims[axis] if dims is not None else None)
        return self._read(node.inputs[0], (*index[:axis], chosen, *index[axis + 1 :]))

    def _concat(self, node: ir.Node, index: Index) -> ScoreExpr:
        axis = _placed(attr_int(node, "axis", 0), len(index))
        i = index[axis]
        result: list[tuple[ScoreExpr, ScoreExpr]] = []
        base = 0
        for n, x in enumerate(node.inputs):
            dims = self.view.shape(x)
            if dims is None:
                raise Untraceable
            dim = dims[axis]
            last = n == len(node.inputs) - 1
            if not last and not isinstance(dim, int):
                raise Untraceable
            ends = TRUE if last else self.algebra.compare("Less", i, integer(base + int(dim or 0)))
            if ends != FALSE:
                local = integer(0) if dim == 1 else self.algebra.add(i, integer(base), -1)
                piece = self._read(x, (*index[:axis], local, *index[axis + 1 :]))
                if (result or ends != TRUE) and any(r[0] == "tensor" for r in reads(piece)):
                    raise Untraceable  # would be read beyond its end
                result.append((ends, piece))
                if ends == TRUE:
                    break
            base += int(dim) if isinstance(dim, int) else 0
        total = result[-1][1]
        for ends, piece in reversed(result[:-1]):
            total = self.algebra.where(ends, piece, total)
        return total

    def _split(self, node: ir.Node, value: ir.Value, index: Index) -> ScoreExpr:
        axis = _placed(attr_int(node, "axis", 0), len(index))
        start = 0
        for out in node.outputs:
            if out is value:
                break
            dims = self.view.shape(out)
            if dims is None or not isinstance(dims[axis], int):
                raise Untraceable
            start += int(dims[axis] or 0)
        moved = self.algebra.add(index[axis], integer(start))
        return self._read(node.inputs[0], (*index[:axis], moved, *index[axis + 1 :]))

    def _range(self, node: ir.Node, index: Index) -> ScoreExpr | None:
        start, step = (self._number(node.inputs[i]) for i in (0, 2))
        kind = kind_of_value(node.outputs[0])
        if kind == "float":
            whole = [int(x[1]) if x[0] == "f" and x[1] == int(x[1]) else None for x in (start, step)]
            if None in whole or node.outputs[0].dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
                return None
            start, step = (integer(x) for x in whole if x is not None)
        if step[0] != "i":
            return None
        # All that Range makes lies between its ends, which its type holds.
        value = self.algebra.sum_of(self.algebra.multiply(index[0], step[1]), start)
        if kind == "int":
            return value
        return number(value[1]) if value[0] == "i" else ("ToFloat", value)

    def _trilu(self, node: ir.Node, index: Index) -> ScoreExpr | None:
        by = node.inputs[1] if len(node.inputs) > 1 else None
        shift = integer(0) if by is None else self._number(by)
        right = self.algebra.add(index[-1], index[-2], -1)
        op = "GreaterOrEqual" if attr_int(node, "upper", 1) else "LessOrEqual"
        keep = self.algebra.compare(op, right, shift)
        kind = kind_of_value(node.outputs[0])
        zero = FALSE if kind == "bool" else integer(0) if kind == "int" else number(0.0)
        return self.algebra.where(keep, self._read(node.inputs[0], index), zero)

    def _eye_like(self, node: ir.Node, index: Index) -> ScoreExpr | None:
        diagonal = self.algebra.compare(
            "Equal", self.algebra.add(index[1], index[0], -1), integer(attr_int(node, "k", 0))
        )
        match kind_of_value(node.outputs[0]):
            case "bool":
                return diagonal
            case "int":
                return self.algebra.where(diagonal, integer(1), integer(0))
        return self.algebra.where(diagonal, number(1.0), number(0.0))

    def _constant_of_shape(self, node: ir.Node, index: Index) -> ScoreExpr:
        x = node.attributes["value"].as_tensor().numpy().reshape(-1)[0] if "value" in node.attributes else np.float32(0)
        return (
            boolean(bool(x)) if x.dtype == np.bool_ else integer(int(x)) if x.dtype.kind in "iu" else number(float(x))
        )

    def _cum_sum(self, node: ir.Node, index: Index) -> ScoreExpr | None:
        """Of a value that is the same everywhere along the axis."""
        axis = self.view.scalar(node.inputs[1])
        if axis is None:
            return None
        n = _placed(int(axis), len(index))
        anywhere = self._anywhere.setdefault(node, ("var", len(self._anywhere)))
        each = self._read(node.inputs[0], (*index[:n], anywhere, *index[n + 1 :]))
        if each[0] != "i":
            return None
        count = index[n]
        if attr_int(node, "reverse", 0):
            dims = self.view.shape(node.inputs[0])
            size = self._dim(dims[n]) if dims is not None else None
            if size is None and each != integer(0):
                return None
            count = self.algebra.add(self.algebra.add(size or integer(0), integer(1), -1), count, -1)
        if not attr_int(node, "exclusive", 0):
            count = self.algebra.add(count, integer(1))
        total, dtype = self.algebra.multiply(count, each[1]), node.outputs[0].dtype
        return None if dtype is None or self._wraps(total, dtype) else total

    def _clip(self, node: ir.Node, index: Index) -> ScoreExpr | None:
        out = node.outputs[0]
        kind = kind_of_value(out)
        result = self._read(node.inputs[0], index)
        if kind is None or out.dtype is None or "min" in node.attributes or "max" in node.attributes:
            return None
        if kind == "float" and not is_choice(result) and not self._same_float(out.dtype):
            return None
        for op, bound in zip(("Max", "Min"), node.inputs[1:], strict=False):
            if bound is not None:
                found = self.algebra.apply(op, (result, self._number(bound)), kind, out.dtype.numpy())
                if found is None:
                    return None
                result = found
        return None if kind == "int" and self._wraps(result, out.dtype) else result


_Step = Callable[[Tracer, ir.Node, Index], "ScoreExpr | None"]
_STEPS: dict[str, _Step] = {
    "Identity": lambda t, node, index: t._read(node.inputs[0], index),
    "Cast": Tracer._cast,
    "CastLike": Tracer._cast,
    "Transpose": Tracer._transpose,
    "Unsqueeze": Tracer._unsqueeze,
    "Squeeze": Tracer._squeeze,
    "Expand": Tracer._expand,
    "Tile": Tracer._tile,
    "Reshape": Tracer._reshape,
    "Flatten": Tracer._reshape,
    "Slice": Tracer._slice,
    "Gather": Tracer._gather,
    "GatherND": Tracer._gather_nd,
    "GatherElements": Tracer._gather_elements,
    "Concat": Tracer._concat,
    "Range": Tracer._range,
    "Trilu": Tracer._trilu,
    "EyeLike": Tracer._eye_like,
    "ConstantOfShape": Tracer._constant_of_shape,
    "CumSum": Tracer._cum_sum,
    "Clip": Tracer._clip,
}
_COMPARES = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal", "IsNaN", "Max", "Min")
_EXACT = {ir.DataType.FLOAT16: 2**11, ir.DataType.BFLOAT16: 2**8, ir.DataType.DOUBLE: 2**53, ir.DataType.FLOAT: 2**24}


def _positions(index: Index) -> frozenset[ScoreExpr]:
    """The positions that an index depends on."""
    return frozenset(x for i in index for x in reads(i) if x[0] != "i")


def _range(dtype: ir.DataType) -> tuple[int, int]:
    held = np.iinfo(dtype.numpy())
    return int(held.min), int(held.max)


def _bits(dtype: ir.DataType | None) -> int:
    return {ir.DataType.DOUBLE: 64, ir.DataType.FLOAT: 32}.get(dtype, 16) if dtype is not None else 0


def _product(dims: list[Dim | None]) -> int:
    numbers = [d for d in dims if isinstance(d, int)]
    if len(numbers) != len(dims) or 0 in numbers:
        raise Untraceable
    return math.prod(numbers)


def _ints(*values: int) -> Const:
    return Const(np.asarray(values, np.int64))


__all__ = ["Index", "Leaf", "Tracer", "Untraceable", "kind_of_value"]
