"""Expand of dims that may be 1 although nothing says so: IREE's program stops at those that are (docs/developer/iree-bugs.md)."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.view import GraphView
from onnx_fa.iree.legalise.writer import GraphWriter

_KEY = "onnx_fa.may_be_one"
"""Metadata of an Expand: axes of its result, of which the input has a free dim that may be 1 where the result's is another."""


def mark_expands(model: ir.Model) -> None:
    """Says of every Expand of the main graph along which axes `expand` has to write it out: what is known of lengths here is in no
    file."""
    view = GraphView(model)
    for node in model.graph:
        if op_of(node) != "Expand":
            continue
        have, made = view.shape(node.inputs[0]), view.shape(node.outputs[0])
        if have is None or made is None or len(made) < len(have):
            continue
        behind, asked = len(made) - len(have), view.const(node.inputs[1])
        ones = [] if asked is None else [i + len(made) - asked.size for i in np.flatnonzero(asked.ravel() == 1)]
        axes = [behind + i for i, d in enumerate(have) if not isinstance(d, int) and d != made[behind + i]]
        doubtful = [axis for axis in axes if axis not in ones]
        node.metadata_props.pop(_KEY, None)
        if doubtful:
            node.metadata_props[_KEY] = " ".join(map(str, doubtful))


def expand(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Along each marked axis a Gather of rows by their numbers, the one row again and again where there is one; then the Expand,
    where there is anything left to expand. A shape that is shorter than the input gets ones in front, which IREE wants."""
    marked = [int(axis) for p in node.metadata_props if p.key == _KEY for axis in p.value.split()]
    have, made, dims = (g.shape(name) for name in (node.input[0], node.output[0], node.input[1]))
    if have is None or made is None or not dims or not isinstance(dims[0], int):
        return False
    short = len(made) - dims[0]
    if not marked and short <= 0:
        return False
    hint = node.name or "Expand"
    x, asked = node.input
    if short > 0:
        asked = g.add("Concat", [g.const(np.ones(short, np.int64), hint), asked], hint, axis=0)
    zero, one = (g.const(np.array(n, np.int64), hint) for n in (0, 1))
    sizes, behind = g.add("Shape", [x], hint), len(made) - len(have)
    for axis in marked:
        size, want = (
            g.add("Gather", [of, g.const(np.array(at, np.int64), hint)], hint, axis=0)
            for of, at in ((sizes, axis - behind), (asked, axis))
        )
        length = g.add("Where", [g.add("Equal", [size, one], hint), want, size], hint)
        rows = g.add("Range", [zero, length, one], hint)
        row = g.add("Min", [rows, g.add("Sub", [size, one], hint)], hint)
        x = g.add("Gather", [x, row], hint, axis=axis - behind)
    done = not behind and all(i in marked or (isinstance(d, int) and d == made[i]) for i, d in enumerate(have))
    g.add("Identity" if done else "Expand", [x] if done else [x, asked], hint, out=node.output[0])
    return True
