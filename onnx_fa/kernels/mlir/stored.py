"""Operands as dispatches see them: booleans and small integers are bytes, and of 4-bit integers two make one."""

from __future__ import annotations

from onnx_fa.errors import UnsupportedError
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.terms import Dim

_PACKED = ("i4", "u4")


def is_packed(dtype: str) -> bool:
    """Whether two integers make a byte, the first in its low half."""
    return dtype in _PACKED


def stored_shape(shape: tuple[Dim, ...], dtype: str) -> tuple[Dim, ...]:
    """An operand's shape as a dispatch sees it: of 4-bit integers, two make a byte."""
    return (*shape[:-1], shape[-1] // 2) if is_packed(dtype) and isinstance(shape[-1], int) else shape


def operand_types(spec: AttentionSpec) -> list[str]:
    """Element types of the operands as the dispatch sees them: booleans and small integers are bytes."""
    return ["i8" if d in ("bool", "i8", "u8", *_PACKED) else d for d in spec.operand_dtypes]


def operand_shapes(spec: AttentionSpec) -> list[tuple[Dim, ...]]:
    """Shapes of the operands as the dispatch sees them."""
    return [stored_shape(s, d) for s, d in zip(spec.operand_shapes, spec.operand_dtypes, strict=True)]


def check_packed(spec: AttentionSpec, body: str) -> None:
    """Raises UnsupportedError, which names the body, for 4-bit integers of which a byte holds two of different rows."""
    for quant, width, layout in ((spec.k_quant, spec.D, spec.k_layout), (spec.v_quant, spec.Dv, spec.v_layout)):
        if quant is not None and is_packed(quant.dtype) and (width % 2 or layout[-1] != spec.rank - 1):
            raise UnsupportedError(f"{body} kernel: {quant.dtype} in bytes that hold two rows")
