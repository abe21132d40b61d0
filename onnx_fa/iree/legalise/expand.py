"""Expand of free dims, where IREE's program stops (docs/developer/iree-bugs.md): at those that are 1 although nothing says so, and
at those of 0 where 1 is asked for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.iree.legalise.writer import GraphWriter

_KEY = "onnx_fa.may_be_one"
"""Metadata of an Expand: axes of its result, of which the input has a free dim that may be 1 where the result's is another."""
_KEPT = "onnx_fa.stays"
"""Metadata of an Expand: axes of its result whose free dim is the input's, and which ask for another number than that, as 1 is."""


def mark_expands(model: ir.Model) -> None:
    """Says of every Expand of the main graph along which axes `expand` has to write it out: what is known of lengths here is in no
    file."""
    view = GraphView(model)
    for node in model.graph:
        if op_of(node) == "Expand":
            _mark(view, node)


def _mark(view: GraphView, node: ir.Node) -> None:
    have, made, shape = view.shape(node.inputs[0]), view.shape(node.outputs[0]), node.inputs[1]
    if have is None or made is None or shape is None or len(made) < len(have):
        return
    behind, asked = len(made) - len(have), view.dims(shape)
    short = len(made) if asked is None else len(made) - len(asked)
    free = {behind + i: d for i, d in enumerate(have) if not isinstance(d, int)}
    wants = {i: None if asked is None or i < short else asked[i - short] for i in free}
    doubtful = [i for i, d in free.items() if d != made[i] and wants[i] != 1]
    # Of a shape that is shorter the axes in front ask for 1.
    kept = [i for i, d in free.items() if i not in doubtful and (d is None or wants[i] != d)]
    for key, axes in ((_KEY, doubtful), (_KEPT, kept)):
        node.metadata_props.pop(key, None)
        if axes:
            node.metadata_props[key] = " ".join(map(str, axes))


def _marked(node: onnx.NodeProto, key: str) -> list[int]:
    return [int(axis) for p in node.metadata_props if p.key == key for axis in p.value.split()]


def expand(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Along each doubtful axis a Gather of rows by their numbers, the one row again and again where there is one; then the Expand,
    where there is anything left to expand, which asks for the size that an axis has where it stays as it is. A shape shorter than
    the input gets ones in front, which IREE wants."""
    doubtful, kept = _marked(node, _KEY), _marked(node, _KEPT)
    have, made, dims = (g.shape(name) for name in (node.input[0], node.output[0], node.input[1]))
    if have is None or made is None or not dims or not isinstance(dims[0], int):
        return False
    short = len(made) - dims[0]
    if not doubtful and not kept and short <= 0:
        return False
    hint = node.name or "Expand"
    x, asked = node.input
    if short > 0:
        asked = g.add("Concat", [g.const(np.ones(short, np.int64), hint), asked], hint, axis=0)
    zero, one = (g.const(np.array(n, np.int64), hint) for n in (0, 1))
    behind = len(made) - len(have)
    sizes = {axis: g.size(node.input[0], axis - behind, hint) for axis in doubtful + kept}
    for axis in doubtful:
        size = sizes[axis]
        want = g.add("Gather", [asked, g.const(np.array(axis, np.int64), hint)], hint, axis=0)
        sizes[axis] = length = _length(g, size, want, hint)
        rows = g.add("Range", [zero, length, one], hint)
        row = g.add("Min", [rows, g.add("Sub", [size, one], hint)], hint)
        x = g.add("Gather", [x, row], hint, axis=axis - behind)
    done = not behind and all(i in sizes or (isinstance(d, int) and d == made[i]) for i, d in enumerate(have))
    given = [x] if done else [x, _with_sizes(g, asked, len(made), sizes, hint)]
    g.add("Identity" if done else "Expand", given, hint, out=node.output[0])
    return True


def _length(g: GraphWriter, size: str, want: str, hint: str) -> str:
    """`want` where `size` is 1, else `size`. In whole numbers, size + (2 / (size + 1) - 2 (1 / (size + 1))) (want - 1), which the
    compiler computes in the program: for a comparison it runs a dispatch and waits until that has ended."""
    one, two = (g.const(np.array(n, np.int64), hint) for n in (1, 2))
    above = g.add("Add", [size, one], hint)
    none = g.add("Div", [one, above], hint)
    is_one = g.add("Sub", [g.add("Div", [two, above], hint), g.add("Add", [none, none], hint)], hint)
    return g.add("Add", [size, g.add("Mul", [is_one, g.add("Sub", [want, one], hint)], hint)], hint)


def _with_sizes(g: GraphWriter, asked: str, rank: int, sizes: Mapping[int, str], hint: str) -> str:
    """The shape `asked` with these sizes along their axes."""
    if not sizes:
        return asked
    parts, at = [], 0
    for axis in [*sorted(sizes), rank]:
        if at < axis:
            parts.append(g.add("Slice", [asked, g.ints([at], hint), g.ints([axis], hint)], hint))
        if axis < rank:
            parts.append(g.reshape(sizes[axis], [1], hint))
        at = axis + 1
    return parts[0] if len(parts) == 1 else g.add("Concat", parts, hint, axis=0)
