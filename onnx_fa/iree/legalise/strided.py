"""Slices whose rows lie a step apart, by a step of their own or because they keep one column: IREE compiles no gather that reads
one in place, and begins a backward one of a free size behind its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

import numpy as np
import onnx

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of

_GATHERS = ("Gather", "GatherElements", "Expand", "Pad")
"""Operators that read elements by their numbers, Expand as `expand` writes it, and Pad as `pads.py` does."""

_VIEWS = ("Cast", "Flatten", "Identity", "Not", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze")
"""Operators that IREE moves over the Slice or into the reader, so that a gather behind them reads the Slice too."""

_FAR = 1 << 31
"""Ends so far away are those of the axis."""
Shape = Sequence[int | str | None]
Cut = tuple[int, int, int, int]
"""From where, to where, along which axis, by which steps."""


def strided_slice(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Each axis with a step above 1, or cut to a column, that is gathered by a Gather of its rows; what is cut along others stays a
    Slice in front. One with a step below 0 begins at the end of a Slice of what it may read."""
    shape, cuts = g.shape(node.input[0]), _cuts(g, node)
    if shape is None or cuts is None:
        return False
    return _backwards(g, node, shape, cuts) or (_is_gathered(g, node.output[0]) and _gathered(g, node, shape, cuts))


def _cuts(g: GraphWriter, node: onnx.NodeProto) -> list[Cut] | None:
    """What a Slice cuts; None where a run decides."""
    bounds = [(name, g.array(name)) for name in node.input[1:] if name]
    if any(array is None for _, array in bounds):
        return None
    columns = {name: array.ravel().tolist() for name, array in bounds if array is not None}
    starts, ends, axes, steps = (columns.get(name, []) for name in [*node.input[1:], "", ""][:4])
    return list(zip(starts, ends, axes or range(len(starts)), steps or [1] * len(starts), strict=True))


def split_columns(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """A Split into columns of one, some of which are gathered from: each is a Gather of its number."""
    shape = g.shape(node.input[0])
    made = [g.shape(name) for name in node.output]
    axis = attr_of(node, "axis", 0)
    if shape is None or axis % len(shape) != len(shape) - 1 or any(s is None or s[-1] != 1 for s in made):
        return False
    if not any(_is_gathered(g, name) for name in node.output):
        return False
    hint = node.name or "Split"
    for place, name in enumerate(node.output):
        g.add("Gather", [node.input[0], g.ints([place], hint)], hint, axis=len(shape) - 1, out=name)
    return True


def _backwards(g: GraphWriter, node: onnx.NodeProto, shape: Shape, cuts: list[Cut]) -> bool:
    """Steps below 0 from a row that a run may not have: IREE does not begin at the last one then, silently, and
    refuses it where it sees it. Raises ModelError for those that end so many rows from the end."""

    def may_miss(start: int, axis: int) -> bool:
        size = shape[axis]
        return start >= size if isinstance(size, int) else start > 0

    found = [c for c in cuts if c[3] < 0 and may_miss(c[0], c[2])]
    if not found:
        return False
    hint, x = node.name or "Slice", node.input[0]
    if any(-_FAR < end < 0 and not isinstance(shape[axis], int) for _, end, axis, _ in found):
        raise ModelError(f"node {hint!r}: Slice backwards to a row counted from the end of a free size (--dim)")
    rows = [[0] * len(found), [start + 1 for start, *_ in found], [axis for _, _, axis, _ in found]]
    x = g.typed(g.add("Slice", [x, *(g.ints(column, hint) for column in rows)], hint), g.kind(x), list(shape))
    again = [(-1, *c[1:]) if c in found else c for c in cuts]
    g.add("Slice", [x, *(g.ints(column, hint) for column in zip(*again, strict=True))], hint, out=node.output[0])
    return True


def _gathered(g: GraphWriter, node: onnx.NodeProto, shape: Shape, cuts: list[Cut]) -> bool:
    columns = _columns(g, node, shape)
    strided = [cut for cut in cuts if cut[3] > 1 or (cut[3] == 1 and cut[2] % len(shape) in columns)]
    if not strided:
        return False
    hint, x = node.name or "Slice", node.input[0]
    plain = [cut for cut in cuts if cut not in strided]
    if plain:
        x = g.add("Slice", [x, *(g.ints(column, hint) for column in zip(*plain, strict=True))], hint)
    for start, end, axis, step in strided:
        last = (start, end, axis, step) == strided[-1]
        rows = _rows(g, node.input[0], shape, start, end, axis % len(shape), step, hint)
        x = g.add("Gather", [x, rows], hint, axis=axis % len(shape), out=node.output[0] if last else None)
    return True


def _columns(g: GraphWriter, node: onnx.NodeProto, shape: Shape) -> range:
    """The last axes, of which one place is kept: without them each row is a step away from the next, too. Those of a free size are
    not among them, since IREE is to know that it is one."""
    made = g.shape(node.output[0])
    if made is None:
        return range(0)
    ones = len(list(takewhile(lambda i: made[i] == 1 and isinstance(shape[i], int), reversed(range(len(shape))))))
    return range(len(shape) - ones, len(shape))


def _is_gathered(g: GraphWriter, value: str) -> bool:
    return any(
        (op in _GATHERS and reader.input[0] == value) or (op in _VIEWS and _is_gathered(g, reader.output[0]))
        for op, reader in _readers(g, value)
    )


def _readers(g: GraphWriter, value: str) -> Iterator[tuple[str, onnx.NodeProto]]:
    for place in g.readers(value):
        yield op_of(g.graph.node[place]), g.graph.node[place]


def _rows(g: GraphWriter, x: str, shape: Shape, start: int, end: int, axis: int, step: int, hint: str) -> str:
    """The numbers of the rows that Slice takes along an axis, by ONNX's rules for bounds that are negative or beyond the end."""
    length = shape[axis]
    if isinstance(length, int):
        return g.ints(range(*slice(start, end, step).indices(length)), hint)
    whole = g.size(x, axis, hint)

    def number(n: int) -> str:
        return g.const(np.array(n, np.int64), hint)

    first = number(start)
    if start < 0:
        first = g.add("Max", [g.add("Add", [whole, first], hint), number(0)], hint)
    limit = g.add("Add", [whole, number(end)], hint) if end < 0 else g.add("Min", [whole, number(end)], hint)
    return g.add("Range", [first, limit, number(step)], hint)
