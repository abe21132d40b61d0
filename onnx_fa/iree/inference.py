"""The types of a model's values, with those that onnx forgets or that only this project's nodes say."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from onnx_fa.graph.bounded import infer_followed
from onnx_fa.graph.onnx_inference import write_onesided
from onnx_fa.graph.ops import op_of
from onnx_fa.graph.scaled_sizes import infer_as_run
from onnx_fa.graph.site_op import SITE
from onnx_fa.iree.kernels import PlannedSite
from onnx_fa.iree.legalise.writer import constants_of
from onnx_fa.spec.dtypes import ONNX

_INFERENCE_ROUNDS = 8
_INFERENCE_BYTES = 1 << 12
"""Initializers up to this size take part in shape inference (as shapes, axes and the like)."""


def infer_types(model: onnx.ModelProto, sites: Mapping[str, PlannedSite], *, data_prop: bool = True) -> None:
    """Shape inference in place. Results of `sites` (by the names of their nodes) have the types of their specs. Large weights stay
    out of it, so models beyond protobuf's 2 GiB work too."""
    light = onnx.ModelProto()
    light.ir_version = model.ir_version
    light.opset_import.extend(model.opset_import)
    graph = light.graph
    graph.name = model.graph.name
    for name in ("node", "input", "output", "value_info"):
        getattr(graph, name).extend(getattr(model.graph, name))
    known = {v.name for v in graph.value_info}
    for node in graph.node:
        if op_of(node) == SITE and node.name in sites:
            for name, (shape, dtype) in zip(node.output, sites[node.name].spec.results, strict=True):
                if name not in known:
                    graph.value_info.append(onnx.helper.make_tensor_value_info(name, ONNX[dtype], shape))
    for tensor in model.graph.initializer:
        if tensor.ByteSize() <= _INFERENCE_BYTES:
            graph.initializer.append(tensor)
        else:
            graph.initializer.add(
                name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, data_location=onnx.TensorProto.EXTERNAL
            )
    write_onesided(graph.node)
    norms = _write_identities(graph)
    for _ in range(_INFERENCE_ROUNDS):
        inferred = infer_as_run(light, infer_followed if data_prop else onnx.shape_inference.infer_shapes)
        del graph.value_info[:]
        graph.value_info.extend(inferred.graph.value_info)
        if not _refine_slices(graph):
            break
    for node in inferred.graph.node:
        if node.output and node.output[0] in norms:
            node.CopyFrom(norms[node.output[0]])
    for name in ("value_info", "output", "node"):
        del getattr(model.graph, name)[:]
        getattr(model.graph, name).extend(getattr(inferred.graph, name))


def _write_identities(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """Writes an Identity in the place of each GroupNormalization, of whose result onnx says nothing; returns them by results."""
    found = {}
    for node in graph.node:
        if op_of(node) == "GroupNormalization":
            found[node.output[0]] = onnx.NodeProto()
            found[node.output[0]].CopyFrom(node)
            node.CopyFrom(onnx.helper.make_node("Identity", node.input[:1], node.output, node.name))
    return found


def _refine_slices(graph: onnx.GraphProto) -> bool:
    """Sets dims that a Slice with computed bounds leaves alone; shape inference forgets them. True if there was one."""
    shapes = {v.name: v.type.tensor_type for v in (*graph.input, *graph.value_info, *graph.output)}
    constants = constants_of(graph)
    found = False
    for node in graph.node:
        if op_of(node) != "Slice" or len(node.input) < 4 or node.input[3] not in constants:
            continue
        source, result = shapes.get(node.input[0]), shapes.get(node.output[0])
        if node.input[0] in constants:
            dims: list[int | None] = list(constants[node.input[0]].dims)
        elif source is not None and source.HasField("shape"):
            dims = [d.dim_value if d.HasField("dim_value") else None for d in source.shape.dim]
        else:
            continue
        if result is None or len(result.shape.dim) != len(dims):
            continue
        sliced = {int(a) % len(dims) for a in onnx.numpy_helper.to_array(constants[node.input[3]]).ravel()}
        for i, (dim, known) in enumerate(zip(result.shape.dim, dims, strict=True)):
            if i not in sliced and known is not None and not dim.HasField("dim_value"):
                dim.dim_value = known
                found = True
    return found
