"""Products of rows of the run with a weight of the network, and what the graph does to their numbers (epilogue.py), as one node
each, which becomes a call of a kernel (kernels/row_sites.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.kernel_report import LinearReport
from onnx_fa.iree.legalise.bits_product import Weight
from onnx_fa.iree.legalise.epilogue import epilogue_of
from onnx_fa.iree.legalise.integer_products import (
    cast_of,
    centred_weight,
    column_sums,
    integer_product,
    no_dims,
    turned,
    zero_number,
)
from onnx_fa.iree.legalise.panels import write_panels
from onnx_fa.iree.legalise.writer import (
    FLOATS,
    GraphWriter,
    attr_of,
    attributes_of,
    declare_own_nodes,
    is_layers_gemm,
    named_dims,
)
from onnx_fa.kernels.row_sites import kept_why, origin_of, panel_of
from onnx_fa.spec.expr import SCORE
from onnx_fa.spec.expr_json import from_json, to_json
from onnx_fa.spec.linear import Bits, LinearSpec, Zeros, biased, followed, linear_name
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim, DType, FloatType, TensorArg

LINEAR_SITE = f"{DOMAIN}.LinearSite"
"""Inputs as the operands of a LinearSpec; attributes `bytes` (the type of an x of bytes, else ""), `zero`, `N`, `transposed`,
`panel`, `bits` and `block` (0 for none), `then`, its expression as JSON, the number of its `tensors`, and `parts` where it has
several results."""
LEAST = 16
"""Smaller weights are no matter of speed."""


@dataclass(frozen=True)
class _Product:
    """A product in the graph: the site that it would be, its operands, and the value that it makes."""

    spec: LinearSpec
    inputs: tuple[str, ...]
    value: str
    places: tuple[int, ...]
    """Of the nodes that it stands for."""
    parts: tuple[str, ...] = ()
    """The values that it makes where it has several results, which `value` is cut into."""
    weight_zero: int = 0
    """What is to be taken away from a weight of bytes."""
    beside: tuple[_Product, ...] = ()
    """The products of the same rows of which it is one, side by side."""

    @property
    def end(self) -> int:
        """The place of its node: where all that it stands for ends; of products side by side, where the first of them does."""
        return min(p.end for p in self.beside) if self.beside else max(self.places)


def find_linear_sites(
    model: onnx.ModelProto, held: Mapping[str, ir.TensorProtocol] | None = None, *, target: Target | None = None
) -> list[LinearReport]:
    """Writes a node for each product that a kernel of the target takes, in place. `held` are initializers whose data are not in the
    model; types of values are taken from `value_info`. Returns all of them, those too that the compiler keeps."""
    g = GraphWriter(model, held, target=target)
    if target is None:
        return []
    taken, made = set[int](), dict[int, list[onnx.NodeProto]]()
    chosen, told = list[_Product](), dict[int, LinearReport]()
    for place, node in enumerate(model.graph.node):
        product = _product(g, node, place)
        if product is None or place in taken:
            continue
        choices, why = _with_what_follows(g, product, taken), ""
        for found in choices:
            if not (why := kept_why(found.spec, target)):
                taken.update(found.places)
                chosen.append(found)
                break
        else:
            spec = replace(choices[0].spec, parts=())
            told[place] = LinearReport(node.name or product.value, spec, kept=why, origin=origin_of(spec, target, why))
    for found in _side_by_side(g, chosen, target):
        first = model.graph.node[found.places[0]]
        made[found.end], spec = _nodes_of(g, found, target)
        told[found.places[0]] = LinearReport(
            first.name or found.value, spec, linear_name(spec), origin=origin_of(spec, target)
        )
    nodes = [n for place, node in enumerate(model.graph.node) for n in made.get(place, [node] * (place not in taken))]
    g.replace_nodes(nodes)
    if made:
        declare_own_nodes(model)
    return [told[place] for place in sorted(told)]


def linear_bits(g: GraphWriter, node: onnx.NodeProto, x: str, weight: Weight, bias: str) -> bool:
    """A product with a weight of a few bits, which makes the node's output. False where no kernel takes it."""
    shape, dtype, scales = g.shape(x), FLOATS.get(g.kind(x)), FLOATS.get(g.kind(weight.scales))
    if g.cuda is None or shape is None or dtype is None or scales is None or shape[-1] != weight.blocks * weight.block:
        return False
    zero_kind = g.kind(weight.zeros) if weight.zeros else 0
    zeros: Zeros = "packed" if zero_kind == TensorProto.UINT8 else ""
    if weight.zeros and not zeros:
        if zero_kind not in FLOATS:
            return False
        zeros = FLOATS[zero_kind]
    if 0 in shape or (bias and not (g.shape(bias) == [weight.N] and FLOATS.get(g.kind(bias)) == dtype)):
        return False
    try:
        bits = Bits(weight.bits, weight.block, scales, zeros)
        spec = LinearSpec(named_dims(shape[:-1]), weight.blocks * weight.block, weight.N, dtype, True, bits)
    except ValueError:
        return False
    spec = biased(spec) if bias else spec
    if kept_why(spec, g.cuda):
        return False
    hint = node.name or node.op_type
    parts = [(weight.packed, spec.K // bits.places), (weight.scales, spec.blocks), *[(weight.zeros, -1)] * bool(zeros)]
    inputs = [x, *(g.reshape(part, [weight.N, each], hint) for part, each in parts), *[bias] * bool(bias)]
    g.nodes.append(_site(g, spec, inputs, [node.output[0]], hint))
    return True


def spec_of(types: Sequence[tuple[tuple[Dim, ...], str]], attributes: Mapping[str, Any]) -> LinearSpec:
    """The spec of a LinearSite whose operands have these shapes and element types."""
    (x, dtype), (_, weight), *more = types
    dtype = attributes["bytes"].decode() or dtype  # types of a compiler have no sign
    first = len(more) - attributes["tensors"]
    bits = None
    if attributes["bits"]:
        (_, scales), *zeros = more[:first]
        kinds = ["packed" if kind in ("i8", "u8") else kind for _, kind in zeros]
        zero_kind: Any = kinds[0] if kinds else ""
        bits = Bits(attributes["bits"], attributes["block"], cast(DType, scales), zero_kind)
    (*lead, K), N = x, attributes["N"]
    tensors = tuple(TensorArg((*lead, N) if len(shape) > 1 else shape, cast(DType, t)) for shape, t in more[first:])
    then = from_json(json.loads(attributes["then"]))
    panel, transposed = attributes["panel"], bool(attributes["transposed"])
    assert isinstance(K, int)
    parts = tuple(attributes.get("parts") or ())
    zero = bool(attributes["zero"])
    stored: Any = weight if weight != dtype and weight in FLOATS.values() else ""
    return LinearSpec(
        tuple(lead), K, N, cast(DType, dtype), transposed, bits, then, tensors, panel, parts, zero, stored
    )


def _product(g: GraphWriter, node: onnx.NodeProto, place: int) -> _Product | None:
    """What a MatMul, a Gemm as layers have it (alpha and beta 1, rows not transposed) by a weight of two dims, or a LinearSite of a
    few bits would be as a site."""
    op = op_of(node)
    if op == "MatMulInteger":
        return _product_of_bytes(g, node, place)
    if op not in ("MatMul", "Gemm", LINEAR_SITE):
        return None
    x, w, *rest = node.input
    shape, dtype, weight = g.shape(x), FLOATS.get(g.kind(x)), g.shape(w)
    if shape is None or len(shape) < 2 or 0 in shape or dtype is None or weight is None or len(weight) != 2:
        return None
    if op == LINEAR_SITE:
        operands = [(named_dims(g.shape(name) or ()), FLOATS.get(g.kind(name), "u8")) for name in node.input]
        return _Product(spec_of(operands, attributes_of(node)), tuple(node.input), node.output[0], (place,))
    bias, transposed = rest[0] if rest else "", bool(attr_of(node, "transB", 0))
    if op == "Gemm" and not is_layers_gemm(node):
        return None
    K, N = weight[::-1] if transposed else weight
    stored: FloatType | Literal[""] = ""
    if dtype == "f32" and g.cpu is not None:
        w, transposed, stored = _as_stored(g, w, transposed=transposed)
    if not _is_weight(g, w) or not isinstance(K, int) or not isinstance(N, int) or min(K, N) < LEAST or shape[-1] != K:
        return None
    if bias and not g.is_row(bias, [shape[0], N]):
        return None
    spec = LinearSpec(named_dims(shape[:-1]), K, N, dtype, transposed, stored=stored)
    inputs = (x, w, bias) if bias else (x, w)
    return _Product(biased(spec) if bias else spec, inputs, node.output[0], (place,))


def _is_weight(g: GraphWriter, w: str) -> bool:
    """Whether a value is a weight that a kernel may read: a constant; for a CPU, where a kernel has it in panels, one whose numbers
    are moved, which is done once; for a GPU, where weights stay as they are, what is computed of constants, such as one that is
    dequantised."""
    if g.cpu is None or g.is_constant(w):
        return g.comes_of_constants(w)
    node = g.maker(w)
    return (
        node is not None
        and op_of(node) in ("Reshape", "Transpose", "Slice", "Concat")
        and all(_is_weight(g, x) for x in node.input)
    )


def _as_stored(g: GraphWriter, w: str, *, transposed: bool) -> tuple[str, bool, FloatType | Literal[""]]:
    """The constant of f16 or bf16 that a Cast makes a weight of f32 of, whether it is transposed, and its type; else the weight as
    it is, and ""."""
    inner, turn = turned(g, w)
    node = g.maker(inner)
    if node is None or op_of(node) != "Cast":
        return w, transposed, ""
    kind = FLOATS.get(g.kind(node.input[0]), "f32")
    return (w, transposed, "") if kind == "f32" else (node.input[0], transposed != turn, kind)


def _product_of_bytes(g: GraphWriter, node: onnx.NodeProto, place: int) -> _Product | None:
    x, w, x_zero, w_zero = (*node.input, "", "")[:4]
    w, transposed = turned(g, w)
    found, cast_place = integer_product(g, x, w, x_zero, w_zero, transposed=transposed), cast_of(g, node)
    if found is None or cast_place is None or min(found.spec.K, found.spec.N) < LEAST:
        return None
    if (g.shape(x) or [None])[-1] != found.spec.K:
        return None
    value = g.graph.node[cast_place].output[0]
    inputs = (x, w, *[x_zero] * found.spec.zero)
    return _Product(found.spec, inputs, value, (place, cast_place), weight_zero=found.weight_zero)


def _with_what_follows(g: GraphWriter, product: _Product, taken: set[int]) -> list[_Product]:
    """The product with the reshapes around it and all that follows, and with less."""
    found = _with_epilogue(g, product, taken)
    parts = _in_parts(g, found[0], taken)
    return [parts, *found] if parts else found


def _in_parts(g: GraphWriter, product: _Product, taken: set[int]) -> _Product | None:
    """The product with several results where it is only read by a Split of its columns."""
    readers = g.readers(product.value)
    if len(readers) != 1 or g.is_output(product.value) or readers[0] in taken:
        return None
    node, rank = g.graph.node[readers[0]], len(product.spec.lead) + 1
    if op_of(node) != "Split" or node.input[0] != product.value or attr_of(node, "axis", 0) not in (-1, rank - 1):
        return None
    shapes = [g.shape(name) for name in node.output]
    columns = [shape[-1] if shape and len(shape) == rank else None for shape in shapes]
    try:
        spec = replace(product.spec, parts=tuple(columns))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # widths that are not known, or not all of them
        return None
    return replace(product, spec=spec, places=(*product.places, readers[0]), parts=tuple(node.output))


def _with_epilogue(g: GraphWriter, product: _Product, taken: set[int]) -> list[_Product]:
    found = [product]
    if flat := _unflattened(g, product):
        found.insert(0, flat)
    first = found[0]
    spec = first.spec
    follows = epilogue_of(g, first.value, spec.lead, spec.result_dtype, taken, numbers=spec.is_of_bytes)  # type: ignore[arg-type]
    if follows is None:
        return found
    whole = followed(spec, follows.then, follows.tensors)
    inputs, places = (*first.inputs, *follows.inputs), (*first.places, *follows.places)
    return [replace(first, spec=whole, inputs=inputs, value=follows.value, places=places), *found]


def _side_by_side(g: GraphWriter, products: Sequence[_Product], target: Target) -> list[_Product]:
    """The products, on CUDA those of the same rows with constant weights, such as queries, keys and values, as one with as many
    results. It stands where the first of them ends: constants are there before. On CPUs the dispatches of such products run at the
    same time, so that one of them all takes as long (docs/developer/linear-sites.md)."""
    groups: dict[object, list[_Product]] = {}
    for i, p in enumerate(products):
        key: object = i
        together = target.backend == "cuda" and not (p.parts or p.spec.bits or p.spec.is_of_bytes)
        columns = all(len(t.shape) == 1 for t in p.spec.tensors)
        # A Constant node may stand behind the first of the products.
        if together and columns and all(g.is_constant(name) and g.maker(name) is None for name in p.inputs[1:]):
            alike = replace(p.spec, N=1, tensors=(), then=SCORE)
            key = (p.inputs[0], alike, p.spec.then, len(p.spec.tensors))
        groups.setdefault(key, []).append(p)
    return [whole for group in groups.values() for whole in _joined(group, target)]


def _joined(group: list[_Product], target: Target) -> list[_Product]:
    """One product in the place of several, where it has a kernel."""
    first, N = group[0], sum(p.spec.N for p in group)
    if len(group) == 1:
        return group
    tensors = tuple(replace(t, shape=(N,)) for t in first.spec.tensors)
    spec = replace(first.spec, N=N, tensors=tensors, parts=tuple(p.spec.N for p in group))
    if kept_why(spec, target):
        return group
    places = tuple(place for p in group for place in p.places)
    parts = tuple(p.value for p in group)
    return [replace(first, spec=spec, places=places, parts=parts, beside=tuple(group))]


def _unflattened(g: GraphWriter, product: _Product) -> _Product | None:
    """The product of the rows that Reshapes in front make flat, where one behind gives the result their dims again."""
    readers = g.readers(product.value)
    if g.is_output(product.value) or len(readers) != 1:
        return None
    after = g.graph.node[readers[0]]
    if (
        op_of(after) != "Reshape"
        or after.input[0] != product.value
        or any(len(t.shape) > 1 for t in product.spec.tensors)
    ):
        return None
    y, x, spec = after.output[0], product.inputs[0], product.spec
    result = g.shape(y)
    if result is None or None in result or result[-1] != spec.N:
        return None
    while (before := g.maker(x)) is not None and op_of(before) == "Reshape":
        x = before.input[0]
        if g.shape(x) == [*result[:-1], spec.K]:
            inputs, places = (x, *product.inputs[1:]), (*product.places, readers[0])
            return replace(
                product, spec=replace(spec, lead=named_dims(result[:-1])), inputs=inputs, value=y, places=places
            )
    return None


def _nodes_of(g: GraphWriter, product: _Product, target: Target) -> tuple[list[onnx.NodeProto], LinearSpec]:
    """The node of a site, and what brings its weight into the layout of the target; and the spec in that layout."""
    spec, inputs, start = product.spec, list(product.inputs), len(g.nodes)
    hint = g.graph.node[product.places[0]].name or product.value  # as the report names it
    if product.beside:
        inputs[1:] = [
            _beside(g, names, spec, hint) for names in zip(*(p.inputs[1:] for p in product.beside), strict=True)
        ]
    if spec.is_of_bytes:
        inputs[1] = centred_weight(g, inputs[1], product.weight_zero, hint)
        first = len(inputs) - len(spec.tensors)
        for i, tensor in enumerate(spec.tensors, first):
            inputs[i] = inputs[i] if tensor.shape else no_dims(g, inputs[i], hint)
        if spec.zero:
            inputs[2:3] = [zero_number(g, inputs[2], hint), column_sums(g, inputs[1], hint, transposed=spec.transposed)]
    for i, tensor in enumerate(spec.tensors, len(inputs) - len(spec.tensors)):
        if len(tensor.shape) == 1 and g.shape(inputs[i]) != [spec.N]:  # dims of 1 in front
            inputs[i] = g.typed(g.reshape(inputs[i], [spec.N], hint), g.kind(inputs[i]), (spec.N,))
    if panel := panel_of(spec, target):
        inputs[1] = write_panels(g, inputs[1], spec, panel, hint)
        spec = replace(spec, transposed=False, panel=panel)
    return [*g.nodes[start:], _site(g, spec, inputs, product.parts or [product.value], hint)], spec


def _beside(g: GraphWriter, names: Sequence[str], spec: LinearSpec, hint: str) -> str:
    """Weights, or tensors of their columns, as one."""
    columns = len(g.shape(names[0]) or ()) == 1
    shape = (spec.N,) if columns else spec.weight_shape
    joined = g.add("Concat", names, hint, axis=0 if columns or spec.transposed else 1)
    return g.typed(joined, g.kind(names[0]), shape)


def _site(g: GraphWriter, spec: LinearSpec, inputs: Sequence[str], outputs: Sequence[str], hint: str) -> onnx.NodeProto:
    bits = spec.bits
    node = helper.make_node(
        "LinearSite",
        list(inputs),
        list(outputs),
        g.fresh(f"{hint}/LinearSite"),
        domain=DOMAIN,
        bytes=spec.dtype if spec.is_of_bytes else "",
        zero=int(spec.zero),
        N=spec.N,
        transposed=int(spec.transposed),
        panel=spec.panel,
        bits=bits.bits if bits else 0,
        block=bits.block if bits else 0,
        tensors=len(spec.tensors),
        then=json.dumps(to_json(spec.then)),
    )
    if spec.parts:
        node.attribute.append(helper.make_attribute("parts", spec.parts))
    return node
