"""Products of rows that a Concat puts side by side, and that norms and activations change before, as one node each, which becomes a
call of a kernel for CPUs (kernels/cpu/joined_product.py): DenseNet's layers, and convolutions of one tap of images side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from onnx_fa.graph.ops import op_of
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.iree.legalise.epilogue import epilogue_of
from onnx_fa.iree.legalise.panels import write_panels
from onnx_fa.iree.legalise.writer import GraphWriter, attr_of, declare_own_nodes, read_by
from onnx_fa.kernels.cpu.joined_product import JoinedProduct, panel_of, takes
from onnx_fa.spec.expr import SCORE, Apply, Float, ScoreExpr, Tensor
from onnx_fa.spec.expr_json import from_json, to_json
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim, TensorArg

JOINED_PRODUCT = f"{DOMAIN}.JoinedProduct"
"""Inputs as a JoinedProduct has its operands; attributes `parts` and `rows_of`, how many there are of these, `N`, and `before` and
`then` as JSON."""
_RANK = 3
_MOST_PARTS = 32
"""A dispatch has so many operands, and some more."""


def joined_product_of(operands: Sequence[tuple[Dim, ...]], attributes: Mapping[str, Any]) -> JoinedProduct:
    """The kernel of a JoinedProduct whose operands have these shapes."""
    parts, rows_of, N = (int(attributes[name]) for name in ("parts", "rows_of", "N"))
    xs, w, rest = operands[:parts], operands[parts], operands[parts + 1 + rows_of :]
    images, rows, _ = xs[0]
    columns, panel = [x[-1] for x in xs], w[-1]
    assert isinstance(rows, int) and isinstance(panel, int)
    spec = JoinedProduct(
        images if isinstance(images, int) else None,
        rows,
        tuple(n for n in columns if isinstance(n, int)),
        N,
        panel,
        from_json(json.loads(attributes["before"])),
        rows_of,
    )
    tensors = tuple(TensorArg(spec.whole if len(shape) > 1 else (N,), "f32") for shape in rest)
    return replace(spec, then=from_json(json.loads(attributes["then"])), tensors=tensors)


@dataclass(frozen=True)
class _Rows:
    """Of the `parts` of rows becomes `before`, with `tensors` of their columns, by the nodes at `places`."""

    parts: tuple[str, ...]
    before: ScoreExpr
    tensors: tuple[str, ...]
    places: tuple[int, ...]


def join_products(
    model: onnx.ModelProto, held: Mapping[str, ir.TensorProtocol] | None = None, *, target: Target | None = None
) -> None:
    """Writes a node for each product of f32 of rows of images side by side that a kernel takes, in place. `held` are initializers
    whose data are not in the model; types of values are taken from `value_info`."""
    g = GraphWriter(model, held, target=target)
    if g.cpu is None:
        return
    taken, made = set[int](), dict[int, list[onnx.NodeProto]]()
    for place, node in enumerate(model.graph.node):
        found = _rows(g, node) if op_of(node) == "MatMul" else None
        if found is None or not taken.isdisjoint((place, *found.places)):
            continue
        taken.update((place, *found.places))
        end, nodes, places = _nodes_of(g, node, found, taken)
        taken.update(places)
        made[max(place, end)] = nodes
    if made:
        nodes = [n for i, node in enumerate(model.graph.node) for n in made.get(i, [node] * (i not in taken))]
        g.replace_nodes(_read(nodes, {value.name for value in model.graph.output}))
        declare_own_nodes(model)


def _read(nodes: Sequence[onnx.NodeProto], outputs: set[str]) -> list[onnx.NodeProto]:
    """The nodes without what is put side by side and read by nobody any more."""
    read, kept = set(outputs), list[onnx.NodeProto]()
    for node in reversed(nodes):
        if op_of(node) != "Concat" or node.output[0] in read:
            kept.append(node)
            read |= read_by(node)
    return kept[::-1]


def _rows(g: GraphWriter, node: onnx.NodeProto) -> _Rows | None:
    """What a product reads, if a kernel is to read it where it lies."""
    x, w = node.input
    shape, weight = g.shape(x), g.shape(w)
    if g.kind(x) != TensorProto.FLOAT or shape is None or weight is None or len(shape) != _RANK or len(weight) != 2:
        return None
    (_, rows, K), N = shape, weight[1]
    if not isinstance(rows, int) or not isinstance(N, int) or weight[0] != K or not g.is_constant(w) or 0 in shape:
        return None
    assert g.cpu is not None
    found = _before(g, x)
    if found is None or not panel_of(N, g.cpu):
        return None
    columns = [(g.shape(part) or [None])[-1] for part in found.parts]
    known = [n for n in columns if isinstance(n, int)]
    return found if len(known) == len(columns) <= _MOST_PARTS and takes(rows, known, g.cpu) else None


def _before(g: GraphWriter, x: str) -> _Rows | None:
    """The parts that a value comes of by operators of single numbers; None where nothing puts parts side by side, and where that is
    read elsewhere as it is, so that it would be written all the same for a product that changes nothing."""
    steps, value = list[tuple[onnx.NodeProto, str]](), x
    while (maker := g.maker(value)) is not None and op_of(maker) in ("Relu", "Add", "Mul"):
        if len(g.readers(value)) != 1 or g.is_output(value):
            return None
        inner = [name for name in maker.input if not g.is_constant(name)]
        if len(inner) != 1:
            return None
        steps.append((maker, inner[0]))
        value = inner[0]
    if maker is None or op_of(maker) != "Concat":
        return None
    if not steps and (len(g.readers(value)) != 1 or g.is_output(value)):
        return None
    before: ScoreExpr = SCORE
    tensors = list[str]()
    for node, inner_name in reversed(steps):
        more = [_number(g, name, x, tensors) for name in node.input if name != inner_name]
        if None in more:
            return None
        before = Apply(op_of(node), before, *(m for m in more if m is not None))
    places = [g.place(node.output[0]) for node, _ in steps]
    parts = _parts(g, value)
    return None if not parts else _Rows(parts, before, tuple(tensors), tuple(places))


def _number(g: GraphWriter, name: str, x: str, tensors: list[str]) -> ScoreExpr | None:
    """A constant of one number, or of one for each column of x, which is then one of the tensors."""
    shape = g.shape(name)
    if shape is None or g.kind(name) != TensorProto.FLOAT or len(shape) > _RANK:
        return None
    if all(d == 1 for d in shape):
        array = g.array(name)
        return None if array is None else Float(float(array.reshape(())))
    if not g.is_row(name, g.shape(x) or []):
        return None
    tensors.append(name)
    return Tensor(len(tensors) - 1)


def _parts(g: GraphWriter, value: str) -> tuple[str, ...]:
    """What lies side by side in the rows of a value; itself alone where nothing puts it together."""
    maker = g.maker(value)
    if maker is None or op_of(maker) != "Concat" or attr_of(maker, "axis", 0) not in (-1, _RANK - 1):
        return (value,) if len(g.shape(value) or ()) == _RANK else ()
    return tuple(part for name in maker.input for part in _parts(g, name))


def _nodes_of(
    g: GraphWriter, node: onnx.NodeProto, found: _Rows, taken: set[int]
) -> tuple[int, list[onnx.NodeProto], tuple[int, ...]]:
    """Where the site of a product stands, its node behind what brings its operands into shape, and the places of what it makes
    besides the product."""
    start, hint, (y,) = len(g.nodes), node.name or node.op_type, node.output
    assert g.cpu is not None
    (images, rows, K), (_, N) = g.shape(node.input[0]) or [], g.shape(node.input[1]) or []
    assert isinstance(rows, int) and isinstance(K, int) and isinstance(N, int)
    lead: tuple[Dim, ...] = (images if images is not None else "images", rows)
    follows = epilogue_of(g, y, lead, "f32", taken)
    panels = write_panels(g, node.input[1], LinearSpec(lead, K, N, "f32"), panel_of(N, g.cpu), hint)
    rows_of = [_as_row(g, name, K, hint) for name in found.tensors]
    tensors = list[str]()
    then: ScoreExpr = SCORE
    if follows is not None:
        y, then = follows.value, follows.then
        both = zip(follows.inputs, follows.tensors, strict=True)
        tensors = [_as_row(g, name, N, hint) if len(t.shape) == 1 else name for name, t in both]
    made = helper.make_node(
        "JoinedProduct",
        [*found.parts, panels, *rows_of, *tensors],
        [y],
        g.fresh(f"{hint}/JoinedProduct"),
        domain=DOMAIN,
        parts=len(found.parts),
        rows_of=len(rows_of),
        N=N,
        before=json.dumps(to_json(found.before)),
        then=json.dumps(to_json(then)),
    )
    places = follows.places if follows is not None else ()
    return max(places, default=0), [*g.nodes[start:], made], places


def _as_row(g: GraphWriter, name: str, columns: int, hint: str) -> str:
    """Numbers of columns without dims of 1 in front."""
    if g.shape(name) == [columns]:
        return name
    return g.typed(g.reshape(name, [columns], hint), g.kind(name), [columns])
