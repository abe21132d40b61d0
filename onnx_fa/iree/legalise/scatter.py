"""ScatterElements and ScatterND that keep the largest or smallest number of a place. IREE knows such a ScatterND, but takes
unsigned numbers for signed ones, silently (docs/developer/iree-bugs.md); it refuses such a ScatterElements."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from onnx_fa.errors import ModelError
from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.casts import add_cast
from onnx_fa.iree.legalise.fills import apart, is_fill, of_the_run
from onnx_fa.iree.legalise.unsigned import widened
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of, attributes_of

_ORDERED = (b"max", b"min")


def scatter(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """As a ScatterND of signed numbers, or the tensor itself where no updates are compared, which end the compiler by a division by
    zero; where nothing is compared as it is, into a fill of its own (`apart`). Raises ModelError for uint64, which no signed type
    holds, for a ScatterElements whose rank is not known, and for updates of no rows that are put in: the one model that is known
    to have such (NeMo's local attention) comes out wrong for a reason that is not known."""
    reduction = attr_of(node, "reduction", b"none")
    if any(0 in (g.shape(name) or ()) for name in node.input[1:]):
        if reduction == b"none":
            raise ModelError(f"node {node.name!r}: {op_of(node)} of no rows, at which IREE's compiler ends")
        g.add("Identity", [node.input[0]], node.name or op_of(node), out=node.output[0])
        return True
    (_, indices, updates), hint, kind = node.input, node.name or node.op_type, g.kind(node.input[0])
    x = apart(g, node, node.input[0])
    # Of one place and one number that are constants IREE makes both at once, and then reads the first twice (one_place.mlir).
    if _is_one_place(g, op_of(node), indices) and is_fill(g, indices) and is_fill(g, updates):
        updates = of_the_run(g, updates, [x], hint)
    wide = widened(g, node) if reduction in _ORDERED else None
    elements = reduction in _ORDERED and op_of(node) == "ScatterElements"
    if wide is None and not elements:
        if [x, updates] == [node.input[0], node.input[2]]:
            return False
        g.add(op_of(node), [x, indices, updates], hint, out=node.output[0], **attributes_of(node))
        return True
    if elements:
        indices = _places(g, node, indices, hint)
    if wide is not None:
        x, updates = (g.cast(value, kind, wide, hint) for value in (x, updates))
    out = node.output[0] if wide is None else None
    made = g.add("ScatterND", [x, indices, updates], hint, out=out, reduction=reduction.decode())
    if wide is not None:
        add_cast(g, made, wide, kind, hint, out=node.output[0])
    return True


def _is_one_place(g: GraphWriter, op: str, indices: str) -> bool:
    shape = g.shape(indices)
    return shape is not None and all(d == 1 for d in (shape if op == "ScatterElements" else shape[:-1]))


def _places(g: GraphWriter, node: onnx.NodeProto, indices: str, hint: str) -> str:
    """(*indices, rank): where each update goes; along other axes than its own as far as it stands along these."""
    shape = g.shape(indices)
    if not shape:
        raise ModelError(f"node {node.name!r}: ScatterElements of indices whose rank is not known")
    rank, axis = len(shape), attr_of(node, "axis", 0) % len(shape)
    indices = g.cast(indices, g.kind(indices), TensorProto.INT64, hint)
    # Numbers are added to zeros of the indices' sizes: IREE has no Expand of a free axis that is 1 in a run.
    zeros = g.add("Mul", [indices, g.scalar(0, TensorProto.INT64, hint)], hint) if rank > 1 else ""
    parts = []
    for i, size in enumerate(shape):
        place = indices
        if i != axis:
            column = [1] * i + [-1] + [1] * (rank - 1 - i)
            if isinstance(size, int):
                row = g.const(np.arange(size).reshape([1] * i + [size] + [1] * (rank - 1 - i)), hint)
            else:
                first, step = (g.scalar(n, TensorProto.INT64, hint) for n in (0, 1))
                row = g.reshape(g.add("Range", [first, g.size(indices, i, hint), step], hint), column, hint)
            place = g.add("Add", [zeros, row], hint)
        parts.append(g.add("Unsqueeze", [place, g.ints([rank], hint)], hint))
    return g.add("Concat", parts, hint, axis=rank) if rank > 1 else parts[0]
