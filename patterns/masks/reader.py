"""The tensors of masks as operands of mask terms: which type and shape each has, and that it provably broadcasts to the score."""

from __future__ import annotations

from typing import get_args

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.axes import placed_axes
from onnx_fa.graph.moves import MOVES
from onnx_fa.graph.view import GraphView
from onnx_fa.match import Call, Const, Expr, NoMatch
from onnx_fa.match.hints import refuse_rank, say_sizes
from onnx_fa.patterns.masks.elements import Untraceable, kind_of_value
from onnx_fa.patterns.masks.expressions import AxisPosition, MaskTensor, reads
from onnx_fa.patterns.masks.tracer import Leaf, Tracer
from onnx_fa.spec.dtypes import ONNX
from onnx_fa.spec.expr import Int, K, Kind, Q, ScoreExpr, Tensor, parts
from onnx_fa.spec.terms import Dim, ElementType, TensorArg

_TYPES: dict[ir.DataType, ElementType] = {ir.DataType(ONNX[name]): name for name in get_args(ElementType)}
_NARROW_INTS = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16)


class Reader(Tracer):
    """A tracer whose tensors become operands of mask terms. Where it does not trace, every value is read as one tensor."""

    def __init__(self, view: GraphView, shape: tuple[Dim, ...], dtype: str, *, traces: bool = True) -> None:
        super().__init__(view, shape, dtype)
        self.dtype, self.traces = dtype, traces
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
            if any(isinstance(x, AxisPosition) for x in reads(found)):
                return self.whole(value)
            if want != "bool" or kind_of_value(value) == "bool":
                return found
        return self.whole(value)

    def whole(self, value: Expr) -> ScoreExpr:
        """The value as one tensor, whatever it is computed from."""
        element = self.element(value)
        if element is None:
            raise NoMatch("a mask is neither float, int nor bool", producer_of(value))
        operand, dims = self._fit(value)
        kind: Kind = TensorArg(dims, element).kind
        source = value if isinstance(value, (ir.Value, Const)) else Const(np.zeros(0))  # only names the leaf
        aligned = self.position[len(self.position) - len(dims) :]
        index = tuple(Int(0) if d == 1 else p for d, p in zip(dims, aligned, strict=True))
        self.leaves.append(Leaf(source, index))
        self._given[len(self.leaves) - 1] = (operand, dims, element)
        found = MaskTensor(len(self.leaves) - 1, kind)
        if element == "i32":
            self.algebra.ranges[found] = (-(1 << 31), (1 << 31) - 1)
        return found

    def tensor(self, leaf: Tensor) -> tuple[Expr, TensorArg]:
        """The operand of a tensor and what the spec says of it."""
        given = self._given.get(leaf.index)
        if given is not None:
            return given[0], TensorArg(given[1], given[2])
        operand, dims = self.operand(leaf)
        element = self.element(operand)
        if element is None:
            operand, element = Call("Cast", (operand,), (("to", int(ir.DataType.INT64)),)), "i64"
        return operand, TensorArg(dims, element)

    def element(self, value: Expr) -> ElementType | None:
        """The element type of an operand: that of the value itself, of a constant, or of what is moved."""
        while isinstance(value, Call) and value.op in MOVES:
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
            raise refuse_rank(self.view, "a mask", value)
        if len(dims) > len(shape):
            extra = dims[: len(dims) - len(shape)]
            if any(d != 1 for d in extra):
                raise NoMatch("a mask has more dims than the score", producer_of(value))
            value = Call("Squeeze", (value, Const(np.arange(len(extra), dtype=np.int64))))
            dims = dims[len(extra) :]
        fitted: list[Dim] = []
        for have, want in zip(dims, shape[len(shape) - len(dims) :], strict=True):
            if have is None or have not in (1, want):
                what = f"a mask of shape {list(dims)} does not provably broadcast to the score's {list(shape)}"
                raise NoMatch(what + say_sizes(self.view, (have, want)), producer_of(value))
            fitted.append(have)
        return value, tuple(fitted)

    def wide(self, e: ScoreExpr) -> bool:
        """Whether an expression reads a tensor that has both a query and a key axis."""
        return any(isinstance(x, Tensor) and self.is_wide(x) for x in reads(e))

    def spread(self, e: ScoreExpr) -> bool:
        """Whether an expression depends on the query and on the key."""
        used = {y for x in reads(e) for y in (self.leaves[x.index].index if isinstance(x, Tensor) else (x,))}
        return {Q, K} <= {y for x in used for y in parts(x)}

    def as_tensor(self, e: ScoreExpr) -> MaskTensor | None:
        """The graph's own value of an expression, if it has one that can be read as a tensor."""
        found = self.origin.get(e)
        if found is None or not isinstance(found.value, ir.Value):
            return None
        kind = kind_of_value(found.value)
        try:
            return self.leaf(found.value, found.index, kind) if kind is not None else None
        except Untraceable:
            return None


def producer_of(value: Expr) -> ir.Node | None:
    return value.producer() if isinstance(value, ir.Value) else None
