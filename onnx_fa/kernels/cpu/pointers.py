"""Memory by its address, an i64: what AMX's tiles are loaded from, vectors write there."""

from __future__ import annotations

from onnx_fa.kernels.mlir.text import Text
from onnx_fa.kernels.mlir.vectors import Lanes

LINE = 64
"""Bytes of a cache's line, at which vectors of 16 f32 are written."""


def moved(t: Text, pointer: str, index: str, by: int) -> str:
    """The pointer, `by` bytes further for each of an index."""
    count = t.let(f"arith.index_cast {index} : index to i64")
    return t.arith("addi", pointer, t.arith("muli", count, t.constant(str(by), "i64"), "i64"), "i64")


def behind(t: Text, pointer: str, byte: int) -> str:
    """The pointer so many bytes further."""
    return t.arith("addi", pointer, t.constant(str(byte), "i64"), "i64") if byte else pointer


def pointer_at(t: Text, pointer: str, byte: int) -> str:
    """The same as LLVM takes it."""
    return t.let(f"llvm.inttoptr {behind(t, pointer, byte)} : i64 to !llvm.ptr")


def load_vector(t: Lanes, pointer: str, byte: int, lanes: int | None = None, *, aligned: int = 4) -> str:
    """A vector of f32 from so many bytes behind a pointer; of fewer `lanes`, if they are given, the others are 0."""
    if lanes is None or lanes >= t.width:
        return t.let(
            f'"llvm.load"({pointer_at(t, pointer, byte)}) <{{alignment = {aligned} : i64, ordering = 0 : i64}}> : '
            f"(!llvm.ptr) -> {t.vec}"
        )
    if lanes <= 0:
        return t.splat(0.0)
    mask = t.constant(f"dense<[{', '.join('true' if i < lanes else 'false' for i in range(t.width))}]>", t.bvec)
    return t.let(
        f'"llvm.intr.masked.load"({pointer_at(t, pointer, byte)}, {mask}, {t.splat(0.0)}) '
        f"<{{alignment = {aligned} : i64}}> : (!llvm.ptr, {t.bvec}, {t.vec}) -> {t.vec}"
    )


def store_vector(t: Lanes, value: str, type_: str, pointer: str, byte: int) -> None:
    """Writes a vector of that type, at whole lines."""
    t.do(
        f'"llvm.store"({value}, {pointer_at(t, pointer, byte)}) <{{alignment = {LINE} : i64, ordering = 0 : i64}}> : '
        f"({type_}, !llvm.ptr) -> ()"
    )
