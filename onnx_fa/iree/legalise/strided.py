"""A Slice with a step whose rows are gathered: IREE does not compile a gather that reads it in place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import GraphWriter

_GATHERS = ("Gather", "GatherElements", "Expand")
"""Operators that read elements by their numbers, Expand as `expand` writes it."""

_VIEWS = ("Cast", "Flatten", "Identity", "Not", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
"""Operators that IREE moves over the Slice or into the reader, so that a gather behind them reads the Slice too."""


def strided_slice(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Each axis with a step above 1 by a Gather of its rows; what is cut along others stays a Slice in front."""
    bounds = [g.array(name) for name in node.input[1:]]
    shape = g.shape(node.input[0])
    if shape is None or len(bounds) < 4 or any(b is None for b in bounds) or not _is_gathered(g, node.output[0]):
        return False
    cuts = list(zip(*(b.ravel().tolist() for b in bounds if b is not None), strict=True))
    strided = [cut for cut in cuts if cut[3] > 1]
    if not strided:
        return False
    hint, x = node.name or "Slice", node.input[0]
    plain = [cut for cut in cuts if cut[3] <= 1]
    if plain:
        x = g.add("Slice", [x, *(g.ints(column, hint) for column in zip(*plain, strict=True))], hint)
    for start, end, axis, step in strided:
        last = (start, end, axis, step) == strided[-1]
        rows = _rows(g, node.input[0], shape, start, end, axis % len(shape), step, hint)
        x = g.add("Gather", [x, rows], hint, axis=axis % len(shape), out=node.output[0] if last else None)
    return True


def _is_gathered(g: GraphWriter, value: str) -> bool:
    return any(
        (op in _GATHERS and reader.input[0] == value) or (op in _VIEWS and _is_gathered(g, reader.output[0]))
        for op, reader in _readers(g, value)
    )


def _readers(g: GraphWriter, value: str) -> Iterator[tuple[str, onnx.NodeProto]]:
    for place in g.readers(value):
        yield op_of(g.graph.node[place]), g.graph.node[place]


def _rows(
    g: GraphWriter, x: str, shape: list[int | str | None], start: int, end: int, axis: int, step: int, hint: str
) -> str:
    """The numbers of the rows that Slice takes along an axis, by ONNX's rules for bounds that are negative or beyond the end."""
    length = shape[axis]
    if isinstance(length, int):
        return g.ints(range(*slice(start, end, step).indices(length)), hint)
    whole = g.add("Gather", [g.add("Shape", [x], hint), g.const(np.array(axis, np.int64), hint)], hint, axis=0)

    def number(n: int) -> str:
        return g.const(np.array(n, np.int64), hint)

    first = number(start)
    if start < 0:
        first = g.add("Max", [g.add("Add", [whole, first], hint), number(0)], hint)
    limit = g.add("Add", [whole, number(end)], hint) if end < 0 else g.add("Min", [whole, number(end)], hint)
    return g.add("Range", [first, limit, number(step)], hint)
