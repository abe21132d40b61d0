"""Broadcasts of sizes that may differ in a run: IREE takes two free dims of one axis to be equal, and a free one beside a number to
be that number, and reads what lies behind where one of them is 1 (docs/developer/iree-bugs.md). The program looks first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import onnx
import onnx_ir as ir
from onnx import helper

from onnx_fa.graph.builder import names_in, unused_name
from onnx_fa.graph.dims import Shape
from onnx_fa.graph.op_kinds import BROADCASTS, MULTIPLIES
from onnx_fa.graph.ops import CONTRIB, FUSED_MATMULS, attr_int, op_of, typed_attr
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.graph.view import GraphView
from onnx_fa.iree.legalise.slice_sizes import needed_rows
from onnx_fa.iree.legalise.writer import bodies_of, declare_own_nodes, put_nodes
from onnx_fa.spec.terms import Dim

SAME_SIZES = f"{DOMAIN}.SameSizes"
"""Tensors and, as the attribute `axes`, an axis of each: the first one is as long along its own as the others say together, each
times its number in `factors` (1 where there are none), and `rest` (0), or with `least` at least so long. Makes nothing: a program
stops there with the attribute `otherwise` where that is not so."""

_ELEMENTWISE = BROADCASTS | {
    *("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Mean", "Sum"),
    *(f"{CONTRIB}.{op}" for op in ("BiasGelu", "FastGelu", "QuickGelu")),
}
_PRODUCTS = {
    **{op: (0, second) for op, second in MULTIPLIES.items()},
    **dict.fromkeys(FUSED_MATMULS, (0, 1)),
    f"{CONTRIB}.MatMulIntegerToFloat": (0, 1),
}
"""Where the factors are."""
_QUANTIZED = {f"{CONTRIB}.QLinearAdd": (0, 3), f"{CONTRIB}.QLinearMul": (0, 3)}
"""Where the numbers are that have scales."""


class _Place(NamedTuple):
    """An axis of an operand, and what is known of its length."""

    value: ir.Value
    axis: int
    dim: Dim | None


def doubtful_sizes(model: ir.Model) -> dict[str, list[onnx.NodeProto]]:
    """The SameSizes nodes that have to stand before others, by the first outputs of these: one for every two names of sizes that
    meet along an axis, and nobody knows whether they are one, and one for rows that a Slice has to find. What is compared in the
    body of an If or Loop holds there alone."""
    view, taken = GraphView(model), names_in(model)
    checks: dict[str, list[onnx.NodeProto]] = {}

    def add(node: ir.Node, operands: Sequence[ir.Value], axes: Sequence[int], told: str, **more: Any) -> None:
        name = unused_name(f"{node.name or op_of(node)}_sizes", taken)
        inputs = [str(value.name) for value in operands]
        check = helper.make_node("SameSizes", inputs, [], name, domain=DOMAIN, axes=axes, otherwise=told, **more)
        checks.setdefault(str(node.outputs[0].name), []).append(check)

    def look(graph: Iterable[ir.Node], known: set[frozenset[Dim]]) -> None:
        for node in graph:
            for first, second in _doubts(view, node):
                pair = frozenset(d for d in (first.dim, second.dim) if d is not None)
                if len(pair) == 2 and pair in known:
                    continue
                known.add(pair)
                add(node, [first.value, second.value], [first.axis, second.axis], _otherwise(node, first, second))
            for value, axis, rows in needed_rows(view, node):
                told = (
                    f"Slice {node.name!r} takes axis {axis} of {value.name!r} to have {rows} rows or more; it has fewer"
                )
                add(node, [value], [axis], told, rest=rows, least=1)
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH:
                    look(attribute.as_graph(), set(known))

    look(model.graph, set())
    return checks


def write_checks(
    model: onnx.ModelProto, checks: Mapping[str, Sequence[onnx.NodeProto]], first: Sequence[onnx.NodeProto] = ()
) -> None:
    """Puts the nodes of `first` before all others, and nodes before those that make the values by which `checks` has them, in
    place."""
    if checks or first:
        _write(model.graph, checks, first)
        declare_own_nodes(model)


def _write(
    graph: onnx.GraphProto, checks: Mapping[str, Sequence[onnx.NodeProto]], first: Sequence[onnx.NodeProto] = ()
) -> None:
    for node in graph.node:
        for body in bodies_of(node):
            _write(body, checks)
    nodes = [*first]
    nodes += [n for node in graph.node for n in (*checks.get(node.output[0] if node.output else "", ()), node)]
    put_nodes(graph, nodes)


def _otherwise(node: ir.Node, first: _Place, second: _Place) -> str:
    """What a run says that stops there."""
    sizes = " and ".join(
        f"axis {p.axis} of {p.value.name!r} ({'?' if p.dim is None else p.dim})" for p in (first, second)
    )
    return (
        f"{op_of(node)} {node.name!r} takes {sizes} to be of one size, and they are not: what is broadcast has to be 1 in the "
        "model; give its sizes when it is compiled (--dim NAME=1)"
    )


def _doubts(view: GraphView, node: ir.Node) -> Iterator[tuple[_Place, _Place]]:
    """Two axes each that are either of one size or broadcast, and nobody knows which."""
    for places in _aligned(view, node):
        wide = [p for p in places if p.dim != 1]
        # Of several equal names the first says it; of several numbers above 1 all are the same, or onnxruntime refuses the model.
        wide.sort(key=lambda p: not isinstance(p.dim, int))
        for p in wide[1:]:
            first = wide[0]
            same = p.value is first.value and p.axis == first.axis
            numbers = isinstance(p.dim, int) and isinstance(first.dim, int)
            if not same and not numbers and (p.dim is None or p.dim != first.dim):
                yield first, p


def _aligned(view: GraphView, node: ir.Node) -> list[list[_Place]]:
    """For each axis of what a broadcasting op makes, the axes of its operands along it; none for another op."""
    op, operands = op_of(node), [v for v in node.inputs if v is not None]
    if op in _ELEMENTWISE:
        return _by_axis([_places(view, v) for v in operands])
    if op == "Gemm" and len(operands) > 2:
        first, second, added = (_places(view, v) for v in operands)
        if min(len(first), len(second)) < 2:
            return []
        return _by_axis([[first[attr_int(node, "transA", 0)], second[1 - attr_int(node, "transB", 0)]], added])
    if op in _QUANTIZED or op in _PRODUCTS:
        at = (_QUANTIZED if op in _QUANTIZED else _PRODUCTS)[op]
        rows = [_places(view, v) for i in at if i < len(node.inputs) and (v := node.inputs[i]) is not None]
        return _by_axis(rows if op in _QUANTIZED else [places[:-2] for places in rows])
    return _by_letter(view, node, operands) if op == "Einsum" else []


def _places(view: GraphView, value: ir.Value) -> list[_Place]:
    shape: Shape = view.shape(value) or ()
    return [_Place(value, axis, dim) for axis, dim in enumerate(shape)]


def _by_axis(operands: Sequence[list[_Place]]) -> list[list[_Place]]:
    rank = max(map(len, operands), default=0)
    return [[places[-n] for places in operands if len(places) >= n] for n in range(1, rank + 1)]


def _by_letter(view: GraphView, node: ir.Node, operands: Sequence[ir.Value]) -> list[list[_Place]]:
    """An Einsum's axes by their letters, and those of "...", which are aligned at the right."""
    attribute = typed_attr(node, "equation", ir.AttributeType.STRING)
    equation = "" if attribute is None else attribute.as_string()
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    letters: dict[str, list[_Place]] = {}
    unnamed: list[list[_Place]] = []
    for term, value in zip(terms, operands, strict=False):
        places = _places(view, value)
        before, dots, behind = term.partition("...")
        if len(before) + len(behind) > len(places) or (not dots and len(before) != len(places)):
            return []
        end = len(places) - len(behind)
        for letter, place in zip(before + behind, places[: len(before)] + places[end:], strict=True):
            letters.setdefault(letter, []).append(place)
        unnamed.append(places[len(before) : end] if dots else [])
    return [*letters.values(), *_by_axis(unnamed)]
