"""Attention whose scores and softmax are in f32 while V, or Q and K, are f16 or bf16: one site, of one element type.

Where Q and K are both cast up from V's type, the site has that type and reads them in front of the casts: the products of such
numbers are exact in f32, in which every form and kernel computes scores. Else the site is one of f32, V is cast up, which is
exact, and the result is cast down. That the model rounds the probabilities to V's type is, as in every attention of that type, the
rounding of its own product with V.

Where Q and K are f16 or bf16 and V and the output f32, the product is cast up: PyTorch's exporter makes an f32 of a mask, and of
what that is added to. The site is one of f32, of Q and K that are cast up, which is exact. That the model rounds the product is, as
in every attention of the type of Q and K, a rounding that no form makes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from onnx_fa.graph.view import DTYPES, GraphView
from onnx_fa.match.exprs import Call
from onnx_fa.match.misses import NoMatch
from onnx_fa.match.types import Anchor, Behind, OperandChoice, Operands, Product

_NARROW = ("f16", "bf16")


@dataclass(frozen=True)
class Types:
    """The element types of a site, and what its result is cast to at last (None: nothing)."""

    site: str | None
    scores: str | None
    leaves_as: ir.DataType | None = None


def is_mixed(qk: Product, dtype: str | None) -> bool:
    """Whether the product of Q and K is in f32, and the output of the narrower type `dtype`."""
    return dtype in _NARROW and qk.output.dtype == ir.DataType.FLOAT


def is_cast_up(view: GraphView, qk: Product, dtype: str | None) -> bool:
    """Whether the product of Q and K is cast up to f32, the output's type, at once."""
    own, readers = DTYPES.get(qk.output.dtype or ir.DataType.UNDEFINED), view.users(qk.output)
    if own not in _NARROW or dtype != "f32" or len(readers) != 1:
        return False
    return view.producer(readers[0].outputs[0], "Cast") is not None and readers[0].outputs[0].dtype == ir.DataType.FLOAT


def check_scores(qk: Product, dtype: str | None, at: ir.Node) -> None:
    """Raises NoMatch where the product of Q and K is in floats of another type than `dtype`."""
    own = DTYPES.get(qk.output.dtype or ir.DataType.UNDEFINED)
    if own is not None and dtype is not None and own != dtype:
        raise NoMatch("Q, K, V and the output have different element types", at)


def cast_up_scores(operands: Operands) -> Operands:
    """The operands with Q and K in f32."""
    return replace(operands, q=_cast_up(operands.q), k=_cast_up(operands.k))


def check_mixed(anchor: Anchor, behind: Behind) -> None:
    """Raises NoMatch where a cast of the probabilities to V's type may do more than round them."""
    at = behind.weighting.product.node
    if anchor.weight is not None:
        raise NoMatch("weights in f32 that no softmax makes are cast to V's type, in which they might overflow", at)
    if anchor.row_sum is not None or anchor.unscaled or anchor.op.startswith("Exp/"):
        raise NoMatch("exponentials in f32 are cast to V's type before they are divided by their sum", at)
    if behind.keys or behind.wrap or behind.weights is not None or behind.total is not None:
        raise NoMatch("probabilities in f32 are multiplied by a factor, and cast to V's type", at)
    if behind.rounding is not None:
        raise NoMatch("probabilities in f32 are rounded to integers, and cast to V's type", at)
    if behind.shown:
        raise NoMatch("the probabilities are an output, and are cast to V's type before they multiply V", at)


def in_one_type(operands: Operands, dtype: str | None, output: ir.Value) -> tuple[Operands, Types]:
    """Operands of one element type, and the types, for scores in f32 and an output of the narrower `dtype`."""
    if operands.q.widened and operands.k.widened:
        return operands, Types(dtype, "f32")
    return replace(operands, v=_cast_up(operands.v)), Types("f32", "f32", output.dtype)


def _cast_up(x: OperandChoice) -> OperandChoice:
    x = x if x.integers is None else x.integers.plain
    return replace(x, value=Call("Cast", (x.value,), (("to", int(ir.DataType.FLOAT)),)))
