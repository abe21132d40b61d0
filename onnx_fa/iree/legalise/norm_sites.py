"""Norms of rows, as one op or as exporters spell them out, with the sum in front, as one node each, which becomes a call of a
kernel (kernels/row_sites.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.kernel_report import NormReport
from onnx_fa.iree.legalise.exact_means import exact_means
from onnx_fa.iree.legalise.norm_spelling import Spelled, read_norm
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter, attr_of, declare_own_nodes, named_dims
from onnx_fa.kernels.row_sites import kept_why, origin_of
from onnx_fa.spec.norm import NormSpec, norm_name
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim, FloatType

NORM_SITE = f"{DOMAIN}.NormSite"
"""Inputs and outputs as the operands and results of a NormSpec; attributes `result` (the type of y), `epsilon`, and 1 or 0 of what
there is of `centred`, `scale`, `bias`, `skip`."""


@dataclass(frozen=True)
class Norm:
    """A norm in the graph: the site that it would be, its operands and results, and the places of its nodes."""

    spec: NormSpec
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    places: tuple[int, ...]


def find_norm_sites(
    model: onnx.ModelProto, held: Mapping[str, ir.TensorProtocol] | None = None, *, target: Target | None = None
) -> list[NormReport]:
    """Writes a node for each norm of rows that a kernel of the target takes, in place. `held` are initializers whose data are not
    in the model; types of values are taken from `value_info`. Returns all norms for CUDA and CPUs, those too that the compiler
    keeps; for others none, as norms are the compiler's there."""
    if target is None or target.backend not in ("cuda", "llvm-cpu"):
        return []
    g = GraphWriter(model, held, target=target)
    taken, made, told = set[int](), dict[int, onnx.NodeProto](), list[NormReport]()
    gone, exact = set[str](), dict[int, list[onnx.NodeProto]]()
    for place, node in enumerate(model.graph.node):
        norm = norm_at(g, node, place)
        if norm is None or not taken.isdisjoint(norm.places) or not gone.isdisjoint(norm.inputs):
            continue  # a Cast between two norms may be read as part of either
        name = node.name or norm.outputs[0]
        whole = with_sum(g, norm, taken)
        if why := kept_why(whole.spec, target):
            told.append(NormReport(name, norm.spec, kept=why))
            exact |= exact_means(g, norm.places)
            continue
        taken.update(whole.places)
        gone |= {name for at in whole.places for name in model.graph.node[at].output} - set(whole.outputs)
        made[max(whole.places)] = _site(g, whole, name)
        told.append(NormReport(name, whole.spec, norm_name(whole.spec), origin=origin_of(whole.spec, target)))
    nodes = [
        written
        for place, node in enumerate(model.graph.node)
        if place in made or place not in taken
        for written in ([made[place]] if place in made else exact.get(place, [node]))
    ]
    g.replace_nodes(nodes)
    if made:
        declare_own_nodes(model)
    return told


def norm_spec_of(types: Sequence[tuple[tuple[Dim, ...], str]], attributes: Mapping[str, Any], results: int) -> NormSpec:
    """The spec of a NormSite whose operands have these shapes and element types, and which has so many results."""
    (*lead, N), dtype = types[0]
    assert isinstance(N, int)
    more = [t for _, t in types[1 + attributes["skip"] :]]
    scale = more.pop(0) if attributes["scale"] else ""
    bias = more.pop(0) if attributes["bias"] else ""
    return NormSpec(
        tuple(lead),
        N,
        cast(FloatType, dtype),
        attributes["result"].decode(),
        attributes["epsilon"],
        bool(attributes["centred"]),
        cast(FloatType, scale),
        cast(FloatType, bias),
        bool(attributes["skip"]),
        results > 1,
    )


def norm_at(g: GraphWriter, node: onnx.NodeProto, place: int) -> Norm | None:
    """The norm of which this node is the anchor: the one op, or the square root of a norm that is spelled out."""
    op = op_of(node)
    if op == "LayerNormalization":
        return _layer_norm(g, node, place)
    return _spelled(g, read_norm(g, node)) if op == "Sqrt" else None


def _layer_norm(g: GraphWriter, node: onnx.NodeProto, place: int) -> Norm | None:
    x, scale, bias = (*node.input, "")[:3]
    shape, axis = g.shape(x), attr_of(node, "axis", -1)
    if (
        shape is None
        or axis not in (-1, len(shape) - 1)
        or any(g.readers(o) or g.is_output(o) for o in node.output[1:])
    ):
        return None  # with statistics, or over more than rows
    if g.kind(x) != TensorProto.FLOAT and attr_of(node, "stash_type", TensorProto.FLOAT) != TensorProto.FLOAT:
        return None
    found = Spelled(x, node.output[0], attr_of(node, "epsilon", 1e-5), True, scale, bias, (place,))
    return _spelled(g, found)


def _spelled(g: GraphWriter, norm: Spelled | None) -> Norm | None:
    """None where the row's length, or a type, is not known or not a kernel's."""
    if norm is None:
        return None
    shape, dtype, result = g.shape(norm.x), FLOATS.get(g.kind(norm.x)), FLOATS.get(g.kind(norm.y))
    if shape is None or len(shape) < 2 or 0 in shape or dtype is None or result is None:
        return None
    N, tensors = shape[-1], [name for name in (norm.scale, norm.bias) if name]
    types = {name: FLOATS.get(g.kind(name)) for name in tensors}
    if not isinstance(N, int) or None in types.values() or any(g.shape(name) != [N] for name in tensors):
        return None
    scale, bias = (types[name] or "" if name else "" for name in (norm.scale, norm.bias))
    epsilon = float(np.float32(norm.epsilon))  # as it is in f32, which attributes of nodes are
    spec = NormSpec(named_dims(shape[:-1]), N, dtype, result, epsilon, norm.centred, scale, bias)
    return Norm(spec, (norm.x, *tensors), (norm.y,), norm.places)


def with_sum(g: GraphWriter, norm: Norm, taken: Set[int]) -> Norm:
    """The norm with the sum of two tensors in front of it, which it gives too where others read it. Only where all of those stand
    behind the norm, so that its node can take the place of its last."""
    x, add = norm.inputs[0], g.maker(norm.inputs[0])
    if add is None or op_of(add) != "Add" or len(set(add.input)) != 2:
        return norm
    place, shape = g.place(x), g.shape(x)
    alike = all(g.shape(a) == shape and g.kind(a) == g.kind(x) and not g.is_constant(a) for a in add.input)
    if not alike or shape is None or None in shape or place in taken:
        return norm
    others = [r for r in g.readers(x) if r not in norm.places]
    if any(r < max(norm.places) for r in others):
        return norm
    shown = bool(others) or g.is_output(x)
    return Norm(
        replace(norm.spec, skip=True, gives_sum=shown),
        (*add.input, *norm.inputs[1:]),
        (*norm.outputs, *[x] * shown),
        (place, *norm.places),
    )


def _site(g: GraphWriter, norm: Norm, hint: str) -> onnx.NodeProto:
    spec = norm.spec
    return helper.make_node(
        "NormSite",
        list(norm.inputs),
        list(norm.outputs),
        g.fresh(f"{hint}/NormSite"),
        domain=DOMAIN,
        result=spec.result,
        epsilon=spec.epsilon,
        centred=int(spec.centred),
        scale=int(bool(spec.scale)),
        bias=int(bool(spec.bias)),
        skip=int(spec.skip),
    )
