"""What the tracer knows of the elements of values so far, and the questions that its steps ask about them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.axes import placed_axis
from onnx_fa.graph.view import FLOATS, GraphView
from onnx_fa.patterns.masks.algebra import Algebra
from onnx_fa.patterns.masks.expressions import AxisPosition, integer
from onnx_fa.spec.expr import SKV, SQ, K, Kind, Q, ScoreExpr
from onnx_fa.spec.terms import Dim

Index = tuple[ScoreExpr, ...]
INTEGERS = {
    ir.DataType.INT64,
    ir.DataType.INT32,
    ir.DataType.INT16,
    ir.DataType.INT8,
    ir.DataType.UINT8,
    ir.DataType.UINT16,
    ir.DataType.UINT32,
}


class Untraceable(Exception):
    """A value cannot be read at an index."""


class Unread(Exception):
    """Another value has to be read first."""

    def __init__(self, value: ir.Value, index: Index) -> None:
        super().__init__()
        self.key = (value, index)


def kind_of_value(value: ir.Value) -> Kind | None:
    if value.dtype in FLOATS:
        return "float"
    if value.dtype == ir.DataType.BOOL:
        return "bool"
    return "int" if value.dtype in INTEGERS else None


def place_axis(axis: int, rank: int) -> int:
    """The axis counted from the front. Raises Untraceable where there is no such axis."""
    placed = placed_axis(axis, rank)
    if placed is None:
        raise Untraceable
    return placed


def type_range(dtype: ir.DataType) -> tuple[int, int]:
    held = np.iinfo(dtype.numpy())
    return int(held.min), int(held.max)


class Elements:
    """Elements of values, for scores of `shape` (*B, Hq, Sq, Skv), as far as they are known: each step of the tracer asks here for
    those that it is made of. `compute` is the type that score expressions are computed in."""

    def __init__(self, view: GraphView, shape: tuple[Dim, ...], dtype: str) -> None:
        self.view, self.shape = view, shape
        self.compute = "f64" if dtype == "f64" else "f32"
        rank = len(shape)
        self.position: Index = (*(AxisPosition(i) for i in range(rank - 2)), Q, K)
        self.sizes: dict[ScoreExpr, int] = {
            p: d for p, d in zip(self.position, shape, strict=True) if isinstance(d, int)
        }
        self.algebra = Algebra(self.sizes)
        self.known: dict[tuple[ir.Value, Index], ScoreExpr | None] = {}
        """What has been read; None: it cannot be."""
        self.anywhere: dict[ir.Node, ScoreExpr] = {}
        """A variable for any position of an axis that a CumSum runs along."""

    def read(self, value: ir.Value | None, index: Index) -> ScoreExpr:
        if value is None:
            raise Untraceable
        if (value, index) not in self.known:
            raise Unread(value, index)
        found = self.known[value, index]
        if found is None:
            raise Untraceable
        return found

    def read_number(self, value: ir.Value | None) -> ScoreExpr:
        """The only element of an operand that is one number: onnxruntime takes a vector of one for a scalar."""
        return self.read(value, tuple(integer(0) for _ in self.view.shape(value) or ()))

    def broadcast_index(self, source: ir.Value | None, out: ir.Value, index: Index) -> Index:
        """The index into `source` for one into `out`, to whose shape `source` broadcasts."""
        have, want = self.view.shape(source), self.view.shape(out)
        if have is None or want is None or len(want) != len(index) or len(have) > len(want):
            raise Untraceable
        result: list[ScoreExpr] = []
        for h, w, i in zip(have, want[len(want) - len(have) :], index[len(want) - len(have) :], strict=True):
            if h == 1:
                result.append(integer(0))
            elif (isinstance(h, int) and h > 1) or (h is not None and h == w):
                result.append(i)
            else:
                raise Untraceable
        return tuple(result)

    def count_from_front(self, i: ScoreExpr, dim: Dim | None) -> ScoreExpr:
        """An index as Gather takes it, negative ones counted from the end. Raises Untraceable where its sign is unknown."""
        lo, hi = self.algebra.bounds(i)
        if lo >= 0:
            return i
        size = self.express_size(dim)
        if hi < 0 and size is not None:
            return self.algebra.add(i, size)
        raise Untraceable

    def express_size(self, dim: Dim | None) -> ScoreExpr | None:
        if isinstance(dim, int):
            return integer(dim)
        sq, skv = self.shape[-2:]
        if dim is None or dim.startswith("unk__"):
            return None
        if dim == skv:
            return SKV
        if dim == sq:
            return SQ
        if isinstance(skv, str) and isinstance(sq, str) and skv in (f"{dim} + {sq}", f"{sq} + {dim}"):
            return self.algebra.add(SKV, SQ, -1)
        return None

    def may_wrap(self, e: ScoreExpr, dtype: ir.DataType) -> bool:
        """Whether an int type is not certain to hold a whole number, which is computed in int64."""
        if dtype not in INTEGERS or dtype == ir.DataType.INT64:
            return False
        (lo, hi), (least, most) = self.algebra.bounds(e), type_range(dtype)
        return not (least <= lo and hi <= most)

    def keeps_float(self, dtype: ir.DataType | None) -> bool:
        return dtype != ir.DataType.DOUBLE or self.compute == "f64"

    def is_computed_in(self, dtype: ir.DataType | None) -> bool:
        return dtype == (ir.DataType.DOUBLE if self.compute == "f64" else ir.DataType.FLOAT)
