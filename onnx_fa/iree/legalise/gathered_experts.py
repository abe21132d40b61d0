"""Products of rows with matrices that each of them chooses, as exporters write the experts of a layer: the weight is gathered, a
matrix for each row, and multiplied by one row. IREE writes out all of these matrices, number by number.

Every matrix by every row is one product with one weight, of which each row takes its own part.
"""

from __future__ import annotations

import numpy as np
import onnx

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter, attr_of

_MOST_EXPERTS = 32
"""A row by that many matrices takes a third of the time of copying one of them for it."""


def gathered_product(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """MatMul of (T, 1, K) by a Gather, or GatherND, of T matrices of a weight (E, K, N) on a CPU. Rows are to be known, and no
    fewer than matrices: fewer would not need them all."""
    x, gathered = node.input[:2]
    gather = g.maker(gathered)
    if gather is None or op_of(gather) not in ("Gather", "GatherND"):
        return False
    if g.cpu is None or g.kind(x) not in FLOATS or len(g.readers(gathered)) != 1:
        return False
    weight, ids = gather.input[:2]
    shape, rows, at = g.shape(weight), g.shape(x), _chosen(g, gather)
    if (
        g.is_output(gathered)
        or not g.is_constant(weight)
        or shape is None
        or rows is None
        or at is None
        or len(shape) != 3
    ):
        return False
    experts, depth, width = shape
    if not (isinstance(experts, int) and isinstance(depth, int) and isinstance(width, int)) or rows != [at, 1, depth]:
        return False
    if not 1 <= experts <= min(_MOST_EXPERTS, at) or min(depth, width) < 1:
        return False
    hint = node.name or "MatMul"
    side_by_side = g.reshape(g.add("Transpose", [weight], hint, perm=[1, 0, 2]), [depth, experts * width], hint)
    parts = g.add("MatMul", [g.reshape(x, [at, depth], hint), side_by_side], hint)
    parts = g.reshape(parts, [at * experts, width], hint)
    chosen = g.cast(g.reshape(ids, [at], hint), g.kind(ids), onnx.TensorProto.INT64, hint)
    # A negative number counts from the last matrix.
    behind = g.add("Add", [chosen, g.ints([experts], hint)], hint)
    chosen = g.add("Where", [g.add("Less", [chosen, g.ints([0], hint)], hint), behind, chosen], hint)
    first = g.const(experts * np.arange(at, dtype=np.int64), hint)
    own = g.add("Gather", [parts, g.add("Add", [chosen, first], hint)], hint, axis=0)
    g.reshape(own, [at, 1, width], hint, out=node.output[0])
    return True


def _chosen(g: GraphWriter, gather: onnx.NodeProto) -> int | None:
    """How many matrices a Gather along the first axis takes, or a GatherND; None where it is neither."""
    shape = g.shape(gather.input[1]) if len(gather.input) == 2 else None
    kinds = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
    if shape is None or g.kind(gather.input[1]) not in kinds or not isinstance(shape[0] if shape else None, int):
        return None
    lists = op_of(gather) == "GatherND" and shape[1:] == [1] and attr_of(gather, "batch_dims", 0) == 0
    plain = op_of(gather) == "Gather" and len(shape) == 1 and attr_of(gather, "axis", 0) == 0
    return int(shape[0] or 0) if lists or plain else None
