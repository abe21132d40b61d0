"""Casts to integers of 16 bits and to uint32, which IREE refuses: looked up in tables of 65,536 numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnx_fa.iree.legalise.writer import GraphWriter

WORDS: dict[int, type[np.integer[Any]]] = {
    TensorProto.INT16: np.int16,
    TensorProto.UINT16: np.uint16,
    TensorProto.UINT32: np.uint32,
}
_COUNT = 1 << 16


def cast_to_word(g: GraphWriter, x: str, kind: int, to: int, hint: str, *, out: str | None = None) -> str:
    """x of type `kind` as one of WORDS: its last bits, as integers have them; floats are cut to whole numbers first."""
    number, count = g.cast(x, kind, TensorProto.INT64, hint), g.scalar(_COUNT, TensorProto.INT64, hint)
    low = g.add("Mod", [number, count], hint)  # not below 0
    table = np.arange(_COUNT, dtype=np.uint32)
    if to != TensorProto.UINT32:
        return g.add("Gather", [g.const(table.astype(np.uint16).view(WORDS[to]), hint), low], hint, out=out, axis=0)
    above = g.add("Div", [g.add("Sub", [number, low], hint), count], hint)
    high = g.add("Mod", [above, count], hint)
    parts = [(table, low), (table << np.uint32(16), high)]
    found = [g.add("Gather", [g.const(numbers, hint), places], hint, axis=0) for numbers, places in parts]
    return g.add("Add", found, hint, out=out)
