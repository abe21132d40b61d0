"""What a product of batches reads of a reduction is kept out of the packed layout's dispatch, which is wrong with it.

On CPUs the compiler packs the operands of products, in the dispatch that computes them. Where that has a reduction along the last
axis in it, and the rows do not fill their last tile, all batches but the first get other numbers, silently (packed_rows.mlir). The
compiler does not see through an Apart, so that the operand is computed first and packed by a dispatch of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir
from onnx import helper

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.legalise.norm_sites import NORM_SITE
from onnx_fa.iree.legalise.writer import GraphWriter
from onnx_fa.spec.target import Target

APART = f"{DOMAIN}.Apart"
_PRODUCTS = frozenset(("MatMul", "Einsum"))
_NORMS = frozenset(
    "GroupNormalization InstanceNormalization LayerNormalization LogSoftmax LpNormalization MeanVarianceNormalization "
    "RMSNormalization".split()
)
_OWN_DISPATCHES = frozenset(
    "Conv ConvInteger ConvTranspose CumSum Gather GatherElements GatherND Gemm MatMulInteger".split()
)
"""What is computed before whatever reads it."""


def keep_rows_apart(
    model: onnx.ModelProto, held: Mapping[str, ir.TensorProtocol] | None = None, *, target: Target | None = None
) -> None:
    """Puts an Apart between such a reduction and each product of batches that reads what comes of it, in place. Types of values are
    taken from `value_info`."""
    g = GraphWriter(model, held, target=target)
    if g.cpu is None:
        return
    found = {
        n: [x for x in node.input if _is_reduced(g, x)]
        for n, node in enumerate(model.graph.node)
        if _has_batches(g, node)
    }
    if not any(found.values()):
        return
    for n, node in enumerate(model.graph.node):
        for value in dict.fromkeys(found.get(n, ())):
            kind, shape = g.kind(value), g.shape(value)
            assert shape is not None
            made = g.typed(g.fresh(f"{value}/apart"), kind, shape)
            g.nodes.append(helper.make_node("Apart", [value], [made], g.fresh(f"{value}/Apart"), domain=DOMAIN))
            for i, name in enumerate(node.input):
                node.input[i] = made if name == value else name
        g.nodes.append(node)
    g.replace_nodes(g.nodes)
    if not any(i.domain == DOMAIN for i in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))


def _has_batches(g: GraphWriter, node: onnx.NodeProto) -> bool:
    """Whether a node is a product of two values that the run computes, with batches."""
    if op_of(node) not in _PRODUCTS or len(node.input) != 2:
        return False
    shapes = [g.shape(x) for x in node.input]
    return all(shape is not None and len(shape) > 2 for shape in shapes)


def _is_reduced(g: GraphWriter, value: str) -> bool:
    """Whether a reduction is among what is computed together with a value: behind it there are only ops that joining loops make
    one with it."""
    pending, seen = [value], set[str]()
    while pending:
        name = pending.pop()
        node = g.maker(name)
        if node is None or name in seen:
            continue
        seen.add(name)
        op = op_of(node)
        if op.startswith("Reduce") or op in _NORMS or op == NORM_SITE:
            return True
        if op not in _PRODUCTS | _OWN_DISPATCHES and not op.startswith(f"{DOMAIN}."):
            pending += [x for x in node.input if x]
    return False
