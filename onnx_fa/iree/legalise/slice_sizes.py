"""Rows that a Slice has to find: where the model declares how many it takes of a free axis, or it goes backwards, IREE reads so
many although the axis has fewer in a run, where ONNX takes those that there are."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnx_fa.graph.dims import recorded
from onnx_fa.graph.lengths import expression, is_never_negative
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.spec.terms import Dim

_FAR = 1 << 31
"""Ends so far away are those of the axis."""


def needed_rows(view: GraphView, node: ir.Node) -> Iterator[tuple[ir.Value, int, int]]:
    """A Slice's input and its free axes with the number of rows that each has to have in a run, where it is not known that it has
    so many."""
    if op_of(node) != "Slice" or len(node.inputs) < 3 or (x := node.inputs[0]) is None:
        return
    bounds = [view.const(value) for value in node.inputs[1:]]
    before, behind = view.shape(x), recorded(node.outputs[0])
    if before is None or any(b is None and node.inputs[i + 1] is not None for i, b in enumerate(bounds)):
        return
    starts, ends, *others = [[] if b is None else b.ravel().tolist() for b in bounds]
    axes = others[0] if others and others[0] else list(range(len(starts)))
    steps = others[1] if len(others) > 1 and others[1] else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis %= len(before)
        made = None if behind is None or len(behind) != len(before) else behind[axis]
        rows = _needed(int(start), int(end), int(step), made)
        if rows and not _has(before[axis], rows):
            yield x, axis, rows


def _needed(start: int, end: int, step: int, made: Dim | None) -> int:
    if step < 0:
        return 1
    if not isinstance(made, int) or made == 0:
        return 0
    if start >= 0:
        return start + (made - 1) * step + 1
    # Counted from the end: of as many rows as it takes, the first is the one that it begins with.
    return -start if end >= _FAR or end <= 0 else 0


def _has(dim: Dim | None, rows: int) -> bool:
    """Whether an axis has so many rows in every run. Of one whose length is known IREE takes what there is, as ONNX does: a Slice
    may ask for the last nine of one."""
    return dim is not None and (isinstance(dim, int) or is_never_negative(expression(dim) - rows))
