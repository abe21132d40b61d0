"""What lies in front of products that round their rows (bits_product.py), joined to the rounding, so that few rows wait for few
dispatches: an RMSNorm with the sum in front of it, and two products of which one gates the other.

    q = RoundedRows(x [, skip], scale)        the norm, the sum, and the rounding of all products that read it
    r = GatedProduct(q, w, v)                 then(q w^T, q v^T), rounded for all products that read it
    y = RoundedProduct(q, w)

A norm, and what a gate makes, is joined only where products that round it alike are all that reads it: else it has to be there in
f32 as well."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.legalise.bits_product import BITS_PRODUCT
from onnx_fa.iree.legalise.epilogue import epilogue_of
from onnx_fa.iree.legalise.norm_sites import Norm, norm_at, with_sum
from onnx_fa.iree.legalise.writer import FLOATS, GraphWriter, attr_of, named_dims
from onnx_fa.kernels.cpu.bits_dots import rounded_rows
from onnx_fa.kernels.cpu.bits_gated import GatedBits
from onnx_fa.kernels.cpu.bits_rounded import RoundedRows
from onnx_fa.kernels.cpu.bits_spec import BitsProduct
from onnx_fa.kernels.mlir.operand import ROWS
from onnx_fa.spec.expr import ScoreExpr
from onnx_fa.spec.expr_json import to_json
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim

ROUNDED_ROWS, ROUNDED_PRODUCT, GATED_PRODUCT = (
    f"{DOMAIN}.{name}" for name in ("RoundedRows", "RoundedProduct", "GatedProduct")
)
"""RoundedRows: inputs x (rows, K), with a `norm` what is added to it where there is a `skip`, and the scale; outputs as
RoundedRows.operands, and the sum where it is read; attributes `bits`, `block`, `zeros`, `norm`, `skip`, `epsilon`.
RoundedProduct: inputs what was rounded and the operands of a BitsProduct's weight; attributes `bits`, `block`.
GatedProduct: inputs what was rounded and two weights' operands; outputs as of RoundedRows; attributes `bits`, `block`, `then` as
JSON, `made_bits`, `made_block` and `made_zeros` of what is rounded, and `up`, the second product's name."""
BITS_NODES = frozenset([BITS_PRODUCT, ROUNDED_ROWS, ROUNDED_PRODUCT, GATED_PRODUCT])
_KINDS = {"i8": TensorProto.INT8, "i32": TensorProto.INT32, "f32": TensorProto.FLOAT}
_PASSED = ("Identity", "Reshape")
_Key = tuple[str, RoundedRows]
"""A value, and how it is rounded."""


@dataclass(frozen=True)
class _Product:
    """A BitsProduct that rounds, the value that it reads behind reshapes, and the places of these and of it."""

    spec: BitsProduct
    source: str
    passed: tuple[int, ...]
    place: int
    node: onnx.NodeProto

    @property
    def key(self) -> _Key:
        return self.source, rounded_rows(self.spec)

    @property
    def weight(self) -> list[str]:
        return list(self.node.input[1:])


@dataclass(frozen=True)
class _Gate:
    """Two products, the gate first, and what is made of them, by nodes at some places."""

    spec: GatedBits
    products: tuple[_Product, _Product]
    value: str
    places: tuple[int, ...]


@dataclass
class _Edit:
    """What becomes of the graph: nodes that go, and such as stand at a place instead."""

    gone: set[int] = field(default_factory=set)
    made: dict[int, list[onnx.NodeProto]] = field(default_factory=dict)

    def put(self, place: int, nodes: Iterable[onnx.NodeProto]) -> None:
        self.made.setdefault(place, []).extend(nodes)


def fuse_rounded(
    model: onnx.ModelProto, held: Mapping[str, ir.TensorProtocol] | None = None, *, target: Target | None = None
) -> None:
    """Joins norms and gates to the products of a CPU that round what they make, in place. Types of values are taken from
    `value_info`."""
    g = GraphWriter(model, held, target=target)
    if g.cpu is None or not any(op_of(n) == BITS_PRODUCT for n in model.graph.node):
        return
    groups = _groups(g)
    norms = {norm.outputs[0]: norm for norm in _norms(g)}
    gates = _gates(g, groups)
    gated = {p.place for gate in gates.values() for p in gate.products}
    edit, ready = _Edit(), dict[_Key, list[str]]()
    for key, group in groups.items():
        source, x = key
        norm, gate = (norms.get(source), gates.get(source)) if _alone(g, source, group) else (None, None)
        if norm is None and gate is None and not any(p.place in gated for p in group):
            continue
        ready[key] = _typed_outputs(g, x, group[0].node.name)
        if gate is None:
            _put_rounding(g, edit, x, group, norm, ready[key])
        if norm is not None or gate is not None:
            edit.gone.update(place for p in group for place in p.passed)
        edit.gone.update(p.place for p in group)
        for p in group:
            if p.place not in gated:
                edit.put(
                    p.place, [_node("RoundedProduct", [*ready[key], *p.weight], [p.node.output[0]], p.node, p.spec)]
                )
    for gate in gates.values():
        _put_gate(edit, gate, ready[gate.products[0].key], ready[gate.value, gate.spec.made])
    nodes = [
        n
        for place, node in enumerate(model.graph.node)
        for n in (*edit.made.get(place, ()), *[node] * (place not in edit.gone))
    ]
    g.replace_nodes(nodes)


def _groups(g: GraphWriter) -> dict[_Key, list[_Product]]:
    """The products that round, by what they read and how they round it."""
    found: dict[_Key, list[_Product]] = {}
    for place, node in enumerate(g.graph.node):
        if op_of(node) == BITS_PRODUCT and (product := _product(g, node, place)) is not None:
            found.setdefault(product.key, []).append(product)
    return found


def _product(g: GraphWriter, node: onnx.NodeProto, place: int) -> _Product | None:
    shape, weight = g.shape(node.input[0]), g.shape(node.input[1])
    if not attr_of(node, "rounded", 0) or shape is None or weight is None or len(shape) != 2:
        return None
    rows, (N, width), bits = shape[0], weight, attr_of(node, "bits", 4)
    assert isinstance(N, int) and isinstance(width, int)
    zeros = ""
    if len(node.input) > 3:
        kind = g.kind(node.input[3])
        zeros = "packed" if kind == TensorProto.UINT8 else FLOATS[kind]
    spec = BitsProduct(
        rows if isinstance(rows, int) else None,
        N,
        width * (8 // bits),
        attr_of(node, "block", 0),
        bits,
        FLOATS[g.kind(node.input[2])],
        zeros,
        True,
    )
    source, passed = node.input[0], list[int]()
    while (made := g.maker(source)) is not None and op_of(made) in _PASSED:
        before = g.shape(made.input[0])
        if before is None or not before or before[-1] != spec.K:
            break
        passed.append(g.place(source))
        source = made.input[0]
    return _Product(spec, source, tuple(passed), place, node)


def _alone(g: GraphWriter, source: str, group: Sequence[_Product]) -> bool:
    """Whether a group of products is all that reads a value."""
    places = {place for p in group for place in (*p.passed, p.place)}
    inner = {source, *(name for p in group for place in p.passed for name in g.graph.node[place].output)}
    return all(places.issuperset(g.readers(name)) and not g.is_output(name) for name in inner)


def _norms(g: GraphWriter) -> list[Norm]:
    """RMSNorms of f32 with a scale of each column, with the sums in front of them."""
    found = list[Norm]()
    taken = set[int]()
    for place, node in enumerate(g.graph.node):
        norm = norm_at(g, node, place)
        if norm is None or norm.spec.centred or norm.spec.bias:
            continue
        if {norm.spec.dtype, norm.spec.result, norm.spec.scale} != {"f32"}:
            continue
        found.append(with_sum(g, norm, taken))
        taken.update(found[-1].places)
    return found


def _gates(g: GraphWriter, groups: Mapping[_Key, list[_Product]]) -> dict[str, _Gate]:
    """Pairs of products whose numbers make what other products round, by the value that they make."""
    found: dict[str, _Gate] = {}
    for group in groups.values():
        taken = set[int]()
        for first in group:
            for second in group:
                if first is second or {first.place, second.place} & taken or first.spec != second.spec:
                    continue
                gate = _gate(g, first, second, groups)
                if gate is not None:
                    found[gate.value] = gate
                    taken |= {first.place, second.place}
    return found


def _gate(g: GraphWriter, first: _Product, second: _Product, groups: Mapping[_Key, list[_Product]]) -> _Gate | None:
    assert g.cpu is not None
    (y, y_places), (up, up_places) = (_behind(g, p) for p in (first, second))
    shape = g.shape(y)
    if shape is None or shape[-1] != first.spec.N:
        return None
    follows = epilogue_of(g, y, named_dims(shape[:-1]), "f32", set())
    if follows is None or follows.inputs != (up,):
        return None
    value = follows.value
    while (last := g.maker(value)) is not None and op_of(
        last
    ) == "Identity":  # what reads it is looked for in front of these
        value = last.input[0]
    group = next((group for (source, _), group in groups.items() if source == value), None)
    if group is None or not _alone(g, value, group):
        return None
    if g.shape(up) != shape or not set(follows.places).issuperset(g.readers(up)) or g.is_output(up):
        return None
    made = rounded_rows(group[0].spec)
    spec = GatedBits(first.spec, follows.then, made)
    places = (first.place, second.place, *y_places, *up_places, *follows.places)
    return _Gate(spec, (first, second), value, places) if spec.fits(g.cpu) else None


def _behind(g: GraphWriter, product: _Product) -> tuple[str, list[int]]:
    """A product's numbers behind the ops that only give them other dims, and the places of these."""
    value, places = product.node.output[0], list[int]()
    while len(readers := g.readers(value)) == 1 and not g.is_output(value):
        node = g.graph.node[readers[0]]
        shape = g.shape(node.output[0])
        if op_of(node) not in _PASSED or node.input[0] != value or not shape or shape[-1] != product.spec.N:
            break
        places.append(readers[0])
        value = node.output[0]
    return value, places


def _put_rounding(
    g: GraphWriter, edit: _Edit, x: RoundedRows, group: Sequence[_Product], norm: Norm | None, outputs: list[str]
) -> None:
    """Rounds what a group reads, in front of the first of its products; where a norm makes that, in the norm's place."""
    start, first = len(g.nodes), group[0].node
    if norm is None:
        g.nodes.append(_rounding(g, x, [first.input[0]], outputs, first))
        edit.put(group[0].place, g.nodes[start:])
        return
    spec, rows = norm.spec, x.rows if x.rows is not None else -1
    whole = g.shape(norm.inputs[0])
    assert whole is not None
    flat = len(whole) == 2
    inputs = [
        v if flat else g.typed(g.reshape(v, [rows, x.K], first.name), TensorProto.FLOAT, (x.lead, x.K))
        for v in norm.inputs[: 1 + spec.skip]
    ]
    total = norm.outputs[1:]
    made = list(total) if flat else [g.typed(g.fresh(first.name), TensorProto.FLOAT, (x.lead, x.K)) for _ in total]
    g.nodes.append(_rounding(g, x, [*inputs, norm.inputs[-1]], [*outputs, *made], first, norm))
    if total and not flat:
        g.reshape(made[0], [d if isinstance(d, int) else -1 for d in whole], first.name, out=total[0])
    edit.gone.update(norm.places)
    edit.put(max(norm.places), g.nodes[start:])


def _put_gate(edit: _Edit, gate: _Gate, x: Sequence[str], made: Sequence[str]) -> None:
    """Puts two products and what follows them in the place of the last."""
    first, second = gate.products
    spec = gate.spec
    node = _node("GatedProduct", [*x, *first.weight, *second.weight], made, first.node, spec.product, then=spec.then)
    numbers = {"made_block": spec.made.block, "made_bits": spec.made.bits, "made_zeros": int(spec.made.zeros)}
    node.attribute.extend(helper.make_attribute(name, number) for name, number in numbers.items())
    node.attribute.append(helper.make_attribute("up", second.node.name))
    edit.gone.update(gate.places)
    edit.put(max(gate.places), [node])


def _rounding(
    g: GraphWriter,
    x: RoundedRows,
    inputs: Sequence[str],
    outputs: Sequence[str],
    named: onnx.NodeProto,
    norm: Norm | None = None,
) -> onnx.NodeProto:
    epsilon, skip = (norm.spec.epsilon, norm.spec.skip) if norm else (0.0, False)
    return helper.make_node(
        "RoundedRows",
        list(inputs),
        list(outputs),
        g.fresh(f"{named.name}/RoundedRows"),
        domain=DOMAIN,
        bits=x.bits,
        block=x.block,
        zeros=int(x.zeros),
        norm=int(norm is not None),
        skip=int(skip),
        epsilon=epsilon,
    )


def _node(
    op: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    named: onnx.NodeProto,
    spec: BitsProduct,
    then: ScoreExpr | None = None,
) -> onnx.NodeProto:
    """A node of a product, of the name that the product had."""
    made = helper.make_node(
        op, list(inputs), list(outputs), named.name, domain=DOMAIN, bits=spec.bits, block=spec.block
    )
    if then is not None:
        made.attribute.append(helper.make_attribute("then", json.dumps(to_json(then))))
    return made


def _typed_outputs(g: GraphWriter, x: RoundedRows, hint: str) -> list[str]:
    """Names for what is rounded, whose types the graph says."""

    def dims(shape: Sequence[Dim]) -> list[Dim]:
        return ["rows" if d == ROWS else d for d in shape]

    return [g.typed(g.fresh(f"{hint}/rounded"), _KINDS[v.element], dims(v.shape)) for v in x.operands]
