"""Products of a few rows (linear_sites.py) with the norm in front of them (norm_sites.py) and the gate
beside them, as one node each, which becomes a call of a kernel for CUDA (kernels/triton/fused_linear.py): a decoder's token is
mostly the time between such kernels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import onnx
import onnx_ir as ir
from onnx import helper

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.kernel_report import LinearReport, NormReport
from onnx_fa.iree.legalise.linear_sites import LINEAR_SITE, spec_of
from onnx_fa.iree.legalise.norm_sites import NORM_SITE, norm_spec_of
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter, attributes_of, named_dims
from onnx_fa.kernels.triton.fused_linear import origin_of, takes
from onnx_fa.spec.fused_linear import FusedLinear, fused_name
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim

R = TypeVar("R", LinearReport, NormReport)
FUSED_LINEAR = f"{DOMAIN}.FusedLinear"
"""Inputs and outputs as the operands and results of a FusedLinear, which the attribute `spec` has as JSON."""


@dataclass(frozen=True)
class _Site:
    """A product's node, which is at a place, the node of the gate that it reads and those that bring the gate's numbers to it."""

    node: onnx.NodeProto
    place: int
    spec: FusedLinear
    gate: onnx.NodeProto | None = None
    between: tuple[onnx.NodeProto, ...] = ()

    @property
    def products(self) -> list[onnx.NodeProto]:
        return [self.node, *([self.gate] if self.gate is not None else [])]


def join_few_rows(
    model: onnx.ModelProto,
    held: Mapping[str, ir.TensorProtocol] | None = None,
    *,
    target: Target | None = None,
    linear: Sequence[LinearReport] = (),
    norms: Sequence[NormReport] = (),
) -> tuple[list[LinearReport], list[NormReport]]:
    """Writes a node for each such product, in place. Returns what is said of linear sites and of norms (`linear` and `norms`) with
    the names of these kernels."""
    if target is None or not target.is_gpu:
        return list(linear), list(norms)
    g = GraphWriter(model, held, target=target)
    found = _sites(g) if g.cuda is not None else []
    found = [_normed(g, site, found) for site in found]
    made, gone, kernels = dict[int, onnx.NodeProto](), set[int](), dict[str, FusedLinear]()
    for site in found:
        value, passed = _passed(g, site.node.input[0])
        norm = g.maker(value) if site.spec.norm else None
        parts = [*site.products, *([norm] if norm is not None else [])]
        if len(parts) > 1:
            made[site.place] = _written(g, site, norm)
            gone.update(g.place(n.output[0]) for n in (*parts, *site.between, *(passed if norm is not None else ())))
            kernels.update((n.name, site.spec) for n in parts)
    if not made:
        return list(linear), list(norms)
    nodes = [made.get(place, node) for place, node in enumerate(model.graph.node) if place in made or place not in gone]
    g.replace_nodes(nodes)
    return [_told(r, kernels, "LinearSite") for r in linear], [_told(r, kernels, "NormSite") for r in norms]


def _sites(g: GraphWriter) -> list[_Site]:
    """The products that there are kernels of, those that are another one's gate as part of that."""
    products = {
        node.name: (place, spec)
        for place, node in enumerate(g.graph.node)
        if op_of(node) == LINEAR_SITE and takes(FusedLinear(spec := spec_of(_types(g, node), attributes_of(node))))
    }
    found, gates = list[_Site](), set[str]()
    for place, spec in products.values():
        node = g.graph.node[place]
        site = _with_gate(g, node, place, spec, products) or _Site(node, place, FusedLinear(spec))
        if site.gate is not None and not gates & {node.name, site.gate.name}:
            gates.add(site.gate.name)
            found.append(site)
        else:
            found.append(_Site(node, place, FusedLinear(spec)))
    return [site for site in found if site.node.name not in gates]


def _with_gate(
    g: GraphWriter, node: onnx.NodeProto, place: int, spec: LinearSpec, products: Mapping[str, tuple[int, LinearSpec]]
) -> _Site | None:
    """The product with another one of the same rows, whose result is one of its tensors, and that nothing else reads."""
    first = len(node.input) - len(spec.tensors)
    for i, name in enumerate(node.input[first:]):
        value, between = _passed(g, name, "Identity", "Reshape")
        gate = g.maker(value)
        if gate is None or gate.name not in products or list(gate.output) != [value]:
            continue
        if _passed(g, gate.input[0])[0] != _passed(g, node.input[0])[0] or not _alone(g, value, between, {place}):
            continue
        try:
            whole = FusedLinear(spec, gate=products[gate.name][1], gated=i)
        except ValueError:  # other sizes
            continue
        if takes(whole):
            return _Site(node, place, whole, gate, between)
    return None


def _normed(g: GraphWriter, site: _Site, sites: Sequence[_Site]) -> _Site:
    """The product with the norm of its rows, where all that reads what the norm gives are such products."""
    y, _ = _passed(g, site.node.input[0])
    alike = [other for other in sites if _passed(g, other.node.input[0])[0] == y]
    if any(_with_norm(g, other, y) is None for other in alike):
        return site
    products = [node for other in alike for node in other.products]
    passed = [n for node in products for n in _passed(g, node.input[0])[1]]
    if not _alone(g, y, passed, {g.place(node.output[0]) for node in products}):
        return site
    spec = _with_norm(g, site, y)
    return site if spec is None else replace(site, spec=spec)


def _with_norm(g: GraphWriter, site: _Site, y: str) -> FusedLinear | None:
    """The spec with the norm that makes y; None where no kernel takes it."""
    node = g.maker(y)
    if node is None or op_of(node) != NORM_SITE or list(node.output) != [y]:
        return None
    norm = norm_spec_of(_types(g, node), attributes_of(node), len(node.output))
    if any(_passed(g, name, "Identity", "Reshape")[0] == y for n in site.products for name in n.input[1:]):
        return None  # it is added to what it makes
    try:
        spec = replace(site.spec, norm=norm)
    except ValueError:  # another kind of norm, or rows of other dims
        return None
    return spec if takes(spec) else None


def _passed(g: GraphWriter, name: str, *ops: str) -> tuple[str, tuple[onnx.NodeProto, ...]]:
    """The value that comes as `name` through nodes that change no number (Identity, unless `ops` are given), and these."""
    nodes = list[onnx.NodeProto]()
    while (node := g.maker(name)) is not None and op_of(node) in (ops or ("Identity",)):
        nodes.append(node)
        name = node.input[0]
    return name, tuple(nodes)


def _alone(g: GraphWriter, value: str, passed: Sequence[onnx.NodeProto], places: set[int]) -> bool:
    """Whether nobody but the nodes at these places reads a value, through nodes or not."""
    names = {value, *(n.output[0] for n in passed)}
    inner = places | {g.place(n.output[0]) for n in passed}
    return all(inner.issuperset(g.readers(name)) and not g.is_output(name) for name in names)


def _written(g: GraphWriter, site: _Site, norm: onnx.NodeProto | None) -> onnx.NodeProto:
    x, *own = site.node.input
    spec = site.spec
    if site.gate is not None:
        del own[len(own) - len(spec.product.tensors) + spec.gated]
        own = [*site.gate.input[1:], *own]
    inputs = [*norm.input, *own] if norm is not None else [x, *own]
    name = g.fresh(f"{site.node.name}/FusedLinear")
    return helper.make_node(
        "FusedLinear", inputs, list(site.node.output), name, domain=DOMAIN, spec=json.dumps(spec.to_dict())
    )


def _types(g: GraphWriter, node: onnx.NodeProto) -> list[tuple[tuple[Dim, ...], str]]:
    """The shapes and element types of a node's operands."""
    return [(named_dims(g.shape(name) or ()), FLOATS.get(g.kind(name), "u8")) for name in node.input]


def _told(report: R, kernels: Mapping[str, FusedLinear], op: str) -> R:
    """The report of a site whose node may have become part of another, by the name that the node has of it."""
    spec = kernels.get(f"{report.name}/{op}")
    return report if spec is None else replace(report, kernel=fused_name(spec), origin=origin_of(spec))
