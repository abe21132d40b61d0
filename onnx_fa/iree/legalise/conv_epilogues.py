"""What a graph does to each number of a convolution whose channels come last, in the convolution's kernel."""

from __future__ import annotations

import json
from collections.abc import Mapping

import onnx
import onnx_ir as ir
from onnx import helper

from onnx_fa.graph.ops import op_of
from onnx_fa.iree.legalise.convolutions import CONV_SITE
from onnx_fa.iree.legalise.epilogue import Epilogue, epilogue_of
from onnx_fa.iree.legalise.sequence_sites import SEQUENCE_SITE
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter, attr_of, named_dims
from onnx_fa.spec.expr_json import to_json
from onnx_fa.spec.target import Target


def fuse_epilogues(
    model: onnx.ModelProto, held: Mapping[str, ir.TensorProtocol] | None = None, *, target: Target | None = None
) -> None:
    """Lets each ConvSite whose result has its channels last make what operators of single numbers make of it, in place: biases,
    activations, residuals. `held` are initializers whose data are not in the model; types of values are taken from `value_info`."""
    g = GraphWriter(model, held, target=target)
    taken, made = set[int](), dict[int, list[onnx.NodeProto]]()
    for place, node in enumerate(model.graph.node):
        follows = _what_follows(g, node, taken)
        if follows is not None:
            taken.update((place, *follows.places))
            made[max(follows.places)] = _nodes_of(g, node, follows)  # where its last operand is there
    if made:
        nodes = [n for i, node in enumerate(model.graph.node) for n in made.get(i, [node] * (i not in taken))]
        g.replace_nodes(nodes)


def _what_follows(g: GraphWriter, node: onnx.NodeProto, taken: set[int]) -> Epilogue | None:
    """What a convolution can make itself of its result, by nodes that are not taken."""
    last = op_of(node) == SEQUENCE_SITE or (op_of(node) == CONV_SITE and attr_of(node, "last", 0))
    if not last or attr_of(node, "then", b"") or attr_of(node, "phases", 1) > 1:
        return None
    shape, dtype = g.shape(node.output[0]), FLOATS.get(g.kind(node.output[0]))
    if shape is None or dtype is None:
        return None
    return epilogue_of(g, node.output[0], named_dims(shape[:-1]), dtype, taken)


def _nodes_of(g: GraphWriter, node: onnx.NodeProto, follows: Epilogue) -> list[onnx.NodeProto]:
    """The convolution that makes the value, behind what brings its tensors into shape."""
    start, tensors = len(g.nodes), list(follows.inputs)
    columns = (g.shape(node.output[0]) or [0])[-1]
    for i, tensor in enumerate(follows.tensors):
        if len(tensor.shape) == 1 and g.shape(tensors[i]) != [columns]:  # dims of 1 in front
            assert isinstance(columns, int)
            row = g.reshape(tensors[i], [columns], node.name)
            tensors[i] = g.typed(row, g.kind(tensors[i]), (columns,))
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.input.extend(tensors)
    made.output[0] = follows.value
    made.attribute.append(helper.make_attribute("then", json.dumps(to_json(follows.then))))
    return [*g.nodes[start:], made]
