"""Products of rows that are flattened around them, as those of whole rows: of x (batch, length, K) as (batch * length, K), whose
result is viewed as (batch, length, N) again. GPT-2's layers are written so. What follows behind the view, an activation, a residual
or parts of the columns, is then the product's own."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
import onnx_ir as ir

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.linear_sites import LEAST
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter, attr_of, is_layers_gemm
from onnx_fa.spec.target import Target


def write_whole_rows(
    model: onnx.ModelProto, held: Mapping[str, ir.TensorProtocol] | None = None, *, target: Target | None = None
) -> None:
    """In place, in the main graph, where the target has kernels for linear sites. Types of values are taken from `value_info`."""
    g = GraphWriter(model, held, target=target)
    if g.cuda is None and (g.cpu is None or g.cpu.kernels != "auto"):
        return
    made = dict[int, list[onnx.NodeProto]]()
    for place, node in enumerate(model.graph.node):
        found = _view_of(g, node)
        if found is not None:
            whole, view = found
            _write(g, node, whole, view)
            # The view's node goes; the product stands where its operands are there.
            made[place], made[g.place(view)] = list(g.nodes), []
            g.nodes.clear()
    if made:
        g.replace_nodes([n for place, node in enumerate(model.graph.node) for n in made.get(place, [node])])


def _view_of(g: GraphWriter, node: onnx.NodeProto) -> tuple[str, str] | None:
    """What is flattened in front of a product by a weight, and the only view of what that makes; None for another node, and where
    the dims in front are not known to be the same."""
    if op_of(node) not in ("MatMul", "Gemm") or not is_layers_gemm(node) or g.is_output(node.output[0]):
        return None
    x, w, *bias = node.input
    shape, weight = g.shape(x), g.shape(w)
    if shape is None or len(shape) != 2 or g.kind(x) not in FLOATS or not g.is_constant(w):
        return None
    if weight is None or len(weight) != 2 or any(not isinstance(d, int) or d < LEAST for d in weight):
        return None
    readers = g.readers(node.output[0])
    if len(readers) != 1 or op_of(g.graph.node[readers[0]]) != "Reshape":
        return None
    N, view = weight[0 if attr_of(node, "transB", 0) else 1], g.graph.node[readers[0]].output[0]
    made = g.shape(view)
    if made is None or len(made) < 3 or None in made or 0 in made or (bias and bias[0] and g.shape(bias[0]) != [N]):
        return None
    while (before := g.maker(x)) is not None and op_of(before) == "Reshape":
        x = before.input[0]
        if g.shape(x) == [*made[:-1], shape[-1]] and made[-1] == N:
            return x, view
    return None


def _write(g: GraphWriter, node: onnx.NodeProto, whole: str, view: str) -> None:
    """The product of what is not flattened, whose result is the view."""
    hint, (_, w, *bias) = node.name or node.op_type, node.input
    if attr_of(node, "transB", 0):
        w, turned = g.add("Transpose", [w], hint, perm=[1, 0]), g.shape(w) or []
        g.typed(w, g.kind(node.input[1]), turned[::-1])
    shape = g.shape(view) or []
    if not bias or not bias[0]:
        g.add("MatMul", [whole, w], hint, out=view)
        return
    product = g.typed(g.add("MatMul", [whole, w], hint), g.kind(whole), shape)
    g.add("Add", [product, bias[0]], hint, out=view)
