"""How the cache of GroupQueryAttention keeps K or V: as numbers of the queries' type, or as integers with a scale.

The integers are what onnxruntime's CPU provider makes: round_half_even(x * (1 / scale)) in f32, cut off at the ends, without a zero
point. Those of 4 bits stand in pairs along the head dim, the first one in the low half of a byte, each with 8 added. What is new is
rounded as what is kept, and the attention sees it as it is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnx_fa.graph.ops import attr_int, typed_attr
from onnx_fa.graph.view import DTYPES, GraphView
from onnx_fa.match import Const, Expr, Integers, NoMatch, OperandChoice
from onnx_fa.patterns.ops.exprs import cast, ints, op, reshape
from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.terms import Dim, Quantized

_ENDS = {8: (-128, 127), 4: (-8, 7)}
_STORED = {8: ir.DataType.INT8, 4: ir.DataType.UINT8}
_STRAIGHT = (0, 1, 2, 3)


@dataclass(frozen=True)
class Kept:
    """`number` is the type of the queries, `stored` that of the cache. `scale` is a number, or (1, Hkv, 1, D) where it differs from
    channel to channel; None where the cache holds numbers."""

    number: ir.DataType
    stored: ir.DataType
    head_dim: int
    bits: int = 0
    scale: Expr | None = None
    shape: tuple[Dim, ...] = ()

    @property
    def width(self) -> int:
        """The last dim of the cache."""
        return (self.head_dim + 1) // 2 if self.bits == 4 else self.head_dim

    @property
    def zero(self) -> Const:
        """An element of the cache all of whose bits are zero."""
        return Const(np.asarray(0, NUMPY["u8" if self.bits == 4 else "i8" if self.bits else DTYPES[self.stored]]))

    def store(self, x: Expr) -> Expr:
        """Rows (B, Hkv, S, D) as the cache keeps them."""
        if self.scale is None:
            return x
        low, high = _ENDS[self.bits]
        # onnxruntime's optimiser makes x / scale of x * (1 / scale), which rounds otherwise, where the inverse is a Div.
        by = op("Reciprocal", self.scale)
        wide = x if self.number == ir.DataType.FLOAT else cast(x, ir.DataType.FLOAT)
        whole: Expr = op("Round", op("Mul", wide, by))
        whole = op("Min", op("Max", whole, _float(low)), _float(high))
        if self.bits == 8:
            return cast(whole, self.stored)
        whole = op("Add", whole, _float(-low))
        first, second = (op("Slice", whole, ints(i), ints(self.head_dim), ints(-1), ints(2)) for i in (0, 1))
        return cast(op("Add", first, op("Mul", second, _float(16))), self.stored)

    def load(self, cache: Expr, heads: Dim) -> OperandChoice:
        """K or V as the attention reads it from a cache (B, `heads`, T, width)."""
        if self.scale is None:
            return OperandChoice(cache, _STRAIGHT, 1.0, heads)
        whole = cache if self.bits == 8 else self._unpacked(cache)
        numbers: Expr = op("Mul", cast(whole, ir.DataType.FLOAT), self.scale)
        plain = OperandChoice(numbers, _STRAIGHT, 1.0, heads)
        if self.number != ir.DataType.FLOAT:
            return OperandChoice(cast(numbers, self.number), _STRAIGHT, 1.0, heads)
        if self.bits == 4:
            return plain
        return OperandChoice(
            cache, _STRAIGHT, 1.0, heads, Integers(Quantized("i8", self.shape), (self.scale,), plain, "f32")
        )

    def _unpacked(self, cache: Expr) -> Expr:
        """Integers of 4 bits from their pairs."""
        byte = cast(cache, ir.DataType.INT32)
        sixteen, eight = (Const(np.asarray(n, np.int32)) for n in (16, 8))
        halves = (op(kind, byte, sixteen) for kind in ("Mod", "Div"))
        both = op("Concat", *(op("Unsqueeze", op("Sub", half, eight), ints(4)) for half in halves), axis=4)
        return reshape(both, 0, 0, 0, self.head_dim)


def read_kept(
    view: GraphView,
    node: ir.Node,
    which: str,
    past: ir.Value,
    number: ir.DataType,
    scale: ir.Value | None,
    dims: tuple[int, int],
) -> Kept:
    """How `past` keeps K or V (`which` is "k" or "v"), of `dims` heads and numbers in each. Raises NoMatch for formats that are not
    known."""
    heads, width = dims
    attr = typed_attr(node, f"{which}_quant_type", ir.AttributeType.STRING)
    how = "NONE" if attr is None else attr.as_string()
    if how == "NONE":
        if scale is not None or past.dtype != number:
            raise NoMatch("Q, K, V and the cache have different element types")
        if DTYPES.get(number) not in ("f32", "f16", "bf16"):
            raise NoMatch("a cache that is neither f32, f16 nor bf16")
        return Kept(number, number, width)
    bits = attr_int(node, "kv_cache_bit_width", 8)
    stored = _STORED.get(bits)
    if how not in ("PER_TENSOR", "PER_CHANNEL") or stored is None or past.dtype != stored or width % 2:
        kind = "an unknown type" if past.dtype is None else past.dtype.name
        raise NoMatch(
            f"a quantised cache of {kind}, {how}, {bits} bits, where int8, and uint8 for pairs of 4 bits, are known"
        )
    if scale is None or scale.dtype != ir.DataType.FLOAT:
        raise NoMatch(f"a quantised cache without a {which}_scale of f32")
    if view.opset < 13:
        raise NoMatch(f"a quantised cache in a model of opset {view.opset}: rounding is written for opset 13 and later")
    if how == "PER_TENSOR":
        return Kept(number, stored, width, bits, reshape(scale))
    return Kept(number, stored, width, bits, reshape(scale, 1, heads, 1, width), (1, heads, 1, width))


def _float(number: float) -> Const:
    return Const(np.asarray(number, np.float32))
