"""Names what a traced mask means: Causal, SlidingWindow, BoolMask and AddMask where these are exact, else an Elementwise term."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.symbolic import placed_axes
from onnx_fa.graph.view import DTYPES, FLOATS, GraphView
from onnx_fa.match import NUMPY, Call, Const, Expr, NoMatch, Term
from onnx_fa.patterns.masks.algebra import (
    FALSE,
    TRUE,
    Linear,
    TooComplex,
    flatten,
    is_choice,
    number,
    outcomes,
    parts,
    reads,
)
from onnx_fa.patterns.masks.tracer import Leaf, Tracer, Untraceable, kind_of_value
from onnx_fa.spec.attention import (
    AddMask,
    BoolMask,
    Causal,
    Dim,
    ElementType,
    Elementwise,
    Offset,
    SlidingWindow,
    TensorArg,
)
from onnx_fa.spec.expr import SCORE, K, Kind, Q, ScoreExpr, is_small

_SWALLOWS = -1e37
"""Adding this or less to a float32 score gives the fill itself: the score is below half an ulp of it."""
_SWALLOWS_F16 = -6e4
_HUGE = 1e15
_MASKS = -1e4
"""A fill above this may be of a score's own size."""
_SHAPE_OPS = ("Unsqueeze", "Squeeze", "Reshape", "Transpose", "Expand", "Slice", "Gather", "Identity")
_TYPES: dict[ir.DataType, ElementType] = {
    **DTYPES,
    ir.DataType.BOOL: "bool",
    ir.DataType.INT32: "i32",
    ir.DataType.INT64: "i64",
}
_NARROW_INTS = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16)


class Reader(Tracer):
    """A tracer whose tensors become operands of mask terms. Where it does not trace, every value is read as one tensor."""

    def __init__(self, view: GraphView, shape: tuple[Dim, ...], dtype: str, *, traces: bool = True) -> None:
        super().__init__(view, shape, dtype)
        self.dtype, self.traces = dtype, traces
        self.swallows = _SWALLOWS_F16 if dtype == "f16" else _SWALLOWS
        self._given: dict[int, tuple[Expr, tuple[Dim, ...], ElementType]] = {}

    @staticmethod
    def leaves_of(e: ScoreExpr) -> frozenset[ScoreExpr]:
        return reads(e)

    def read(self, value: Expr, want: Kind | None = None) -> ScoreExpr:
        """What the value is at a score's position. Raises NoMatch when it does not provably broadcast to the score."""
        if isinstance(value, ir.Value) and self.traces:
            try:
                found = self.trace(value)
            except Untraceable:
                return self.whole(value)
            if any(x[0] == "axis" for x in reads(found)):
                return self.whole(value)
            if want != "bool" or kind_of_value(value) == "bool":
                return found
        return self.whole(value)

    def whole(self, value: Expr) -> ScoreExpr:
        """The value as one tensor, whatever it is computed from."""
        element = self.element(value)
        if element is None:
            raise NoMatch("a mask is neither float, int nor bool", _node(value))
        operand, dims = self._fit(value)
        kind: Kind = TensorArg(dims, element).kind
        source = value if isinstance(value, (ir.Value, Const)) else Const(np.zeros(0))  # only names the leaf
        aligned = self.position[len(self.position) - len(dims) :]
        index = tuple(("i", 0) if d == 1 else p for d, p in zip(dims, aligned, strict=True))
        self.leaves.append(Leaf(source, index))
        self._given[len(self.leaves) - 1] = (operand, dims, element)
        found = ("tensor", len(self.leaves) - 1, kind)
        if element == "i32":
            self.algebra.ranges[found] = (-(1 << 31), (1 << 31) - 1)
        return found

    def tensor(self, leaf: ScoreExpr) -> tuple[Expr, TensorArg]:
        """The operand of a tensor and what the spec says of it."""
        given = self._given.get(leaf[1])
        if given is not None:
            return given[0], TensorArg(given[1], given[2])
        operand, dims = self.operand(leaf)
        element = self.element(operand)
        if element is None:
            operand, element = Call("Cast", (operand,), (("to", int(ir.DataType.INT64)),)), "i64"
        return operand, TensorArg(dims, element)

    def element(self, value: Expr) -> ElementType | None:
        """The element type of an operand: that of the value itself, of a constant, or of what shape ops were applied to."""
        while isinstance(value, Call) and value.op in _SHAPE_OPS:
            value = value.args[0]
        if isinstance(value, Call):
            to = dict(value.attrs).get("to") if value.op == "Cast" else None
            if value.op in ("Not", "And", "Or"):
                return "bool"
            if value.op in ("Mul", "Add", "Sub", "Div", "Concat", "Where"):
                return self.element(value.args[-1])
            return _TYPES.get(ir.DataType(to)) if isinstance(to, int) else None
        dtype = ir.DataType.from_numpy(value.array.dtype) if isinstance(value, Const) else value.dtype
        return _TYPES.get(dtype) if dtype is not None else None

    def shape_of(self, value: Expr) -> tuple[Dim | None, ...] | None:
        """The dims of an operand expression."""
        if isinstance(value, ir.Value):
            return self.view.shape(value)
        if isinstance(value, Const):
            return tuple(value.array.shape)
        if value.shape is not None:
            return value.shape
        dims = self.shape_of(value.args[0])
        extra = value.args[1] if len(value.args) > 1 else None
        given = [int(x) for x in extra.array.reshape(-1)] if isinstance(extra, Const) else None
        if dims is None:
            return None
        match value.op:
            case "Not" | "Cast" | "Identity":
                return dims
            case "Transpose":
                perm = dict(value.attrs).get("perm")
                return tuple(dims[p] for p in perm) if isinstance(perm, tuple) else dims[::-1]
            case "Unsqueeze" if given is not None:
                rank, rest = len(dims) + len(given), iter(dims)
                put = placed_axes(given, rank)
                return None if put is None else tuple(1 if n in put else next(rest) for n in range(rank))
            case "Squeeze" if given is not None:
                drop = placed_axes(given, len(dims))
                return None if drop is None else tuple(d for n, d in enumerate(dims) if n not in drop)
            case "Reshape" if given is not None and -1 not in given:
                return tuple(dims[n] if d == 0 else d for n, d in enumerate(given))
        return None

    def _fit(self, value: Expr) -> tuple[Expr, tuple[Dim, ...]]:
        """The value as an operand whose dims are 1 or provably those of the score."""
        dims, shape = self.shape_of(value), self.shape
        if dims is None:
            raise NoMatch("the rank of a mask is unknown", _node(value))
        if len(dims) > len(shape):
            extra = dims[: len(dims) - len(shape)]
            if any(d != 1 for d in extra):
                raise NoMatch("a mask has more dims than the score", _node(value))
            value = Call("Squeeze", (value, Const(np.arange(len(extra), dtype=np.int64))))
            dims = dims[len(extra) :]
        fitted: list[Dim] = []
        for have, want in zip(dims, shape[len(shape) - len(dims) :], strict=True):
            if have is None or have not in (1, want):
                raise NoMatch(
                    f"a mask of shape {list(dims)} does not provably broadcast to the score's {list(shape)}",
                    _node(value),
                )
            fitted.append(have)
        return value, tuple(fitted)

    def wide(self, e: ScoreExpr) -> bool:
        """Whether an expression reads a tensor that has both a query and a key axis."""
        return any(x[0] == "tensor" and self.is_wide(x) for x in reads(e))

    def spread(self, e: ScoreExpr) -> bool:
        """Whether an expression depends on the query and on the key."""
        used = {y for x in reads(e) for y in ((x,) if x[0] != "tensor" else self.leaves[x[1]].index)}
        return {Q, K} <= {y for x in used for y in parts(x)}

    def as_tensor(self, e: ScoreExpr) -> ScoreExpr | None:
        """The graph's own value of an expression, if it has one that can be read as a tensor."""
        found = self.origin.get(e)
        if found is None or not isinstance(found.value, ir.Value):
            return None
        kind = kind_of_value(found.value)
        try:
            return self.leaf(found.value, found.index, kind) if kind is not None else None
        except Untraceable:
            return None


def mapped(reader: Reader, expr: ScoreExpr, tensors: Sequence[ScoreExpr], label: str) -> Term:
    """`expr`, whose tensors are the expressions given."""

    def put(e: ScoreExpr) -> ScoreExpr:
        if e[0] == "tensor":
            return tensors[e[1]]
        return e if e[0] in ("score", "q", "k", "Sq", "Skv", "f", "i", "b") else (e[0], *map(put, e[1:]))

    if not is_small(expr):
        raise TooComplex
    return elementwise(reader, put(expr), label)


def elementwise(reader: Reader, expr: ScoreExpr, label: str) -> Term:
    """An Elementwise term with its tensors numbered. Raises ValueError where the kinds in it do not fit."""
    order: list[ScoreExpr] = []

    def renumber(e: ScoreExpr) -> ScoreExpr:
        if e[0] == "tensor":
            if e not in order:
                order.append(e)
            return ("tensor", order.index(e))
        return e if e[0] in ("score", "q", "k", "Sq", "Skv", "f", "i", "b") else (e[0], *map(renumber, e[1:]))

    if not is_small(expr):
        raise TooComplex
    numbered = renumber(expr)
    read = [reader.tensor(e) for e in order]
    if any(arg.dtype == "f64" for _, arg in read) and reader.dtype != "f64":
        raise NoMatch("a mask of element type f64 on scores of another")
    return Term(Elementwise(numbered, tuple(arg for _, arg in read), label), tuple(value for value, _ in read))


# Conditions


def kept(reader: Reader, keep: ScoreExpr, fill: float) -> list[Term]:
    """The score where `keep` holds, else `fill`."""
    if keep == TRUE:
        return []
    conditions = flatten("And", keep)
    if any(reader.wide(c) and _tensor_of(reader, c) is None for c in conditions):
        whole = _tensor_of(reader, keep)
        if whole is not None:
            conditions = [whole]
    huge = fill <= reader.swallows
    result: list[Term] = []
    for c in conditions:
        bound = _bound(reader, c, fill) if huge else None
        tensor = _tensor_of(reader, c) if bound is None else None
        if bound is not None:
            result.append(Term(bound))
        elif tensor is not None and fill <= _MASKS:
            inner = tensor[1] if tensor[0] == "Not" else tensor
            operand, arg = reader.tensor(inner)
            result.append(Term(BoolMask(arg.shape, fill), (Call("Not", (operand,)) if inner != tensor else operand,)))
        else:
            chosen = c if tensor is None else tensor
            inside = ("Where", chosen, SCORE, number(fill))
            if chosen[0] == "Not":
                inside = ("Where", chosen[1], number(fill), SCORE)
            result.append(elementwise(reader, inside, label_of(c)))
    return merge_bounds(result)


def _tensor_of(reader: Reader, c: ScoreExpr) -> ScoreExpr | None:
    """A condition as one tensor, or the negation of one, if that is what it is best read as."""
    bare = c[1] if c[0] == "Not" else c
    if bare[0] == "tensor":
        if bare is not c and (own := reader.as_tensor(c)) is not None and own[0] == "tensor":
            return own
        return c
    return reader.as_tensor(c) if reader.wide(c) else None


def _difference(reader: Reader, c: ScoreExpr) -> Linear | None:
    if c[0] not in ("LessOrEqual", "Equal") or not reader.algebra.is_whole(c[1]):
        return None
    (a, x), (b, y) = reader.algebra.linear(c[1]), reader.algebra.linear(c[2])
    total = {e: a.get(e, 0) - b.get(e, 0) for e in {*a, *b}}
    return {e: n for e, n in total.items() if n}, x - y


def _bound(reader: Reader, c: ScoreExpr, fill: float) -> Causal | SlidingWindow | None:
    """A condition on key - query as a term."""
    found = _difference(reader, c)
    if found is None:
        return None
    terms, rest = found
    if reader.shape[-2] == 1 and Q not in terms and abs(terms.get(K, 0)) == 1:
        terms = {**terms, Q: -terms[K]}  # the only query stands at 0
    sign = terms.get(K)
    if sign not in (1, -1) or terms.get(Q) != -sign:
        return None
    further = {e: n for e, n in terms.items() if e not in (K, Q)}
    at_end = further == {("Skv",): -sign, ("Sq",): sign}
    if further and not at_end:
        return None
    offset: Offset = "end" if at_end else 0
    # sign * (k - q - start) + rest <= 0
    if c[0] == "Equal":
        return SlidingWindow(left=sign * rest, right=-sign * rest, offset=offset, fill=fill)
    if sign > 0:
        right = -rest
        if not at_end:
            return Causal(right, fill)
        return Causal("end", fill) if right == 0 else SlidingWindow(right=right, offset="end", fill=fill)
    return SlidingWindow(left=-rest, offset=offset, fill=fill)


def merge_bounds(terms: list[Term]) -> list[Term]:
    """Bounds on key - query with the same fill and start are one window."""
    result: list[Term] = []
    for term in terms:
        new = term.term
        for i, other in enumerate(result):
            both = _intersection(other.term, new)
            if both is not None:
                result[i] = Term(both)
                break
        else:
            result.append(term)
    return result


def _intersection(a: object, b: object) -> Causal | SlidingWindow | None:
    if not isinstance(a, (Causal, SlidingWindow)) or not isinstance(b, (Causal, SlidingWindow)) or a.fill != b.fill:
        return None
    x, y = _window(a), _window(b)
    if x.offset != y.offset:
        return None
    lefts = [w.left for w in (x, y) if w.left is not None]
    rights = [w.right for w in (x, y) if w.right is not None]
    left, right = min(lefts, default=None), min(rights, default=None)
    if left is None and right is not None and (x.offset == 0 or right == 0):
        return Causal(right if x.offset == 0 else "end", a.fill)
    return SlidingWindow(left, right, x.offset, a.fill)


def _window(a: Causal | SlidingWindow) -> SlidingWindow:
    if isinstance(a, SlidingWindow):
        if isinstance(a.offset, int) and a.offset:
            left, right = (
                (None if a.left is None else a.left - a.offset),
                (None if a.right is None else a.right + a.offset),
            )
            return replace(a, left=left, right=right, offset=0)
        return a
    return SlidingWindow(None, 0, "end", a.fill) if a.offset == "end" else SlidingWindow(None, a.offset, 0, a.fill)


# What is added


def added(reader: Reader, bias: ScoreExpr, factor: float, before: Sequence[Term]) -> list[Term]:
    """The score plus factor * bias."""
    result: list[Term] = []
    for piece, by in _summands(reader, bias, factor):
        result += _added(reader, piece, by, [*before, *result])
    return result


def _summands(reader: Reader, e: ScoreExpr, factor: float) -> Iterator[tuple[ScoreExpr, float]]:
    """A sum in its parts, where the sum is larger than each."""
    if e[0] in ("Add", "Sub") and reader.spread(e) and not reader.algebra.is_whole(e):
        yield from _summands(reader, e[1], factor)
        yield from _summands(reader, e[2], factor if e[0] == "Add" else -factor)
    elif e[0] == "Neg":
        yield from _summands(reader, e[1], -factor)
    else:
        yield e, factor


def _added(reader: Reader, e: ScoreExpr, factor: float, before: Sequence[Term]) -> list[Term]:
    algebra, dtype = reader.algebra, np.dtype(NUMPY["f64" if reader.dtype == "f64" else "f32"])
    if is_choice(e):
        whole = algebra.apply("Mul", (e, number(factor)), "float", dtype) if factor != 1.0 else e
        assert whole is not None
        if whole[0] == "f" and whole[1] == 0:
            return []
        selected = _selected(reader, whole, before)
        if selected is not None:
            return selected
        own = reader.as_tensor(e)
        if own is not None and (reader.wide(e) or not reader.spread(e)):
            return [_tensor_added(reader, own, factor)]
        return [elementwise(reader, ("Add", SCORE, whole), label_of(e))]
    if e[0] == "tensor":
        return [_tensor_added(reader, e, factor)]
    if e[0] == "Where" and not reader.algebra.is_whole(e):
        for keep, rest, low in ((e[1], e[2], e[3]), (algebra.negate(e[1]), e[3], e[2])):
            if low[0] == "f" and factor > 0 and _may_swallow(reader, low[1] * factor, before):
                inner = added(reader, rest, factor, before)
                return [*inner, *kept(reader, keep, max(low[1] * factor, -math.inf))]
    if reader.wide(e):
        own = reader.as_tensor(e)
        if own is not None:
            return [_tensor_added(reader, own, factor)]
    whole = e if factor == 1.0 else ("Mul", e, number(factor))
    return [elementwise(reader, ("Add", SCORE, whole), label_of(e))]


def _tensor_added(reader: Reader, tensor: ScoreExpr, factor: float) -> Term:
    operand, arg = reader.tensor(tensor)
    if arg.dtype not in ("f32", "f16", "bf16"):
        raise NoMatch("an additive mask whose element type is not f32, f16 or bf16", _node(operand))
    return Term(AddMask(arg.shape, arg.dtype, factor), (operand,))


def _selected(reader: Reader, choice: ScoreExpr, before: Sequence[Term]) -> list[Term] | None:
    """score + (0 where kept, else a fill that swallows any score) is the score where kept, else the fill."""
    found = {o[1] for o in outcomes(choice)}
    lows = found - {0.0}
    if len(lows) != 1 or len(found) != 2:
        return None
    (low,) = lows
    if not _may_swallow(reader, low, before):
        return None
    keep = reader.algebra.over_outcomes(choice, lambda c: TRUE if c[1] == 0 else FALSE)
    return kept(reader, keep, low)


def _may_swallow(reader: Reader, low: float, before: Sequence[Term]) -> bool:
    """Whether any score plus `low` is `low`. A finite one on a score that is already masked would sink to -inf instead."""
    if low == -math.inf:
        return True
    return low <= _SWALLOWS and reader.dtype != "f16" and all(_moderate(reader, t) for t in before)


def _moderate(reader: Reader, term: Term) -> bool:
    """Whether a term leaves scores at the size that products of Q and K have."""
    match term.term:
        case AddMask():
            return _bounded(reader.view, term.operands[0])
        case Elementwise(expr, tensors):
            if any(x[0] == "f" and not abs(x[1]) < _HUGE for x in reads(expr)):
                return False
            return all(
                t.kind != "float" or _bounded(reader.view, o) for t, o in zip(tensors, term.operands, strict=True)
            )
    return False


_MOST_ABOVE = 64
"""Nodes above a bias that are looked at."""


def _bounded(view: GraphView, value: Expr) -> bool:
    """Whether a float operand cannot hold a fill: it comes from constants of ordinary size or from a matmul."""
    while isinstance(value, Call):
        if value.op not in _SHAPE_OPS:
            return False
        value = value.args[0]
    stack: list[Expr] = [value]
    seen: set[Expr] = {value}
    while stack:
        above = _bounded_if(view, stack.pop())
        if above is None or len(seen) > _MOST_ABOVE:
            return False
        new = [x for x in dict.fromkeys(above) if x not in seen]
        seen.update(new)
        stack += new
    return True


def _bounded_if(view: GraphView, value: Expr) -> list[ir.Value] | None:
    """The values that have to be bounded for this one to be; None where it may hold a fill whatever they are."""
    if isinstance(value, ir.Value) and value.dtype is not None and value.dtype not in FLOATS:
        return []
    array = value.array if isinstance(value, Const) else view.const(value) if isinstance(value, ir.Value) else None
    if array is not None:
        return [] if bool((np.abs(array.astype(np.float64)) < _HUGE).all()) else None
    node = view.producer(value) if isinstance(value, ir.Value) else None
    if node is None or (op_of(node) == "Cast" and node.outputs[0].dtype == ir.DataType.FLOAT16):
        return None
    inputs = [i for i in node.inputs if i is not None]
    if op_of(node) in ("MatMul", "Gemm", "Einsum"):
        return []
    if op_of(node) in (*_SHAPE_OPS, "Cast", "GatherND", "GatherElements", "Neg", "Tile", "Sigmoid", "Tanh"):
        return inputs[:1]
    if op_of(node) in ("Add", "Sub", "Mul", "Concat"):
        return inputs
    if op_of(node) == "Where":
        return inputs[1:]
    if op_of(node) == "Div":
        divisor = view.const(node.inputs[1])
        least = float(np.abs(divisor.astype(np.float64)).min()) if divisor is not None and divisor.size else 0.0
        return inputs[:1] if least > 1 / _HUGE**0.5 else None
    return None


# Words


def label_of(e: ScoreExpr) -> str:
    """What people call such a term."""
    everything = list(parts(e))
    heads = {x[0] for x in everything}
    for x in everything:
        if x[0] == "Equal":
            inner = {y[0] for y in parts(x)}
            if "Div" in inner:
                return "chunked"
            if "Mod" in inner:
                return "dilated"
            if sum(y[0] == "tensor" for y in parts(x)) == 2:
                return "document"
    if "Mod" in heads:
        return "dilated"
    if "ToFloat" in heads and {Q, K} <= set(everything):
        return "alibi"
    keep = e[1] if e[0] == "Where" else e
    if keep[0] == "Or" and K in everything:
        return "prefix"
    if K in everything and "tensor" in heads and Q not in everything:
        return "padding"
    if {Q, K} <= set(everything):
        return "window"
    return "mask" if "tensor" in heads else "bias"


def _node(value: Expr) -> ir.Node | None:
    return value.producer() if isinstance(value, ir.Value) else None
