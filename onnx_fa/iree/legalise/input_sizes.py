"""Sizes of inputs that a model gives one name, or a sum of names: a caller may pass others, and what was made by these names would
read what lies behind. The program looks first. onnxruntime does not ask, and runs the model as if the names were others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import onnx
import onnx_ir as ir
import sympy
from onnx import helper

from onnx_fa.graph.builder import unused_name
from onnx_fa.graph.lengths import expression, length
from onnx_fa.graph.site_op import DOMAIN
from onnx_fa.spec.terms import Dim


class _Place(NamedTuple):
    """An axis of an input that is called after a length."""

    input: str
    axis: int
    dim: Dim


def named_sizes(model: ir.Model, taken: set[str]) -> list[onnx.NodeProto]:
    """The SameSizes nodes that have to stand before all nodes of the main graph: one for every axis of an input whose size others'
    names say. Sums of names with whole factors are read, other expressions are not. Nodes get names that are not `taken`, and
    those are from then on."""
    given: dict[sympy.Symbol, _Place] = {}
    places = list(_places(model))
    for place in places:
        named = expression(place.dim)
        if isinstance(named, sympy.Symbol):
            given.setdefault(named, place)
    nodes: list[onnx.NodeProto] = []
    for place in places:
        parts, rest = _sum_of(place.dim)
        if not parts or not parts.keys() <= given.keys() or place == given.get(length(str(place.dim))):
            continue
        others = [given[symbol] for symbol in parts]
        name = unused_name(f"{place.input}_{place.axis}_size", taken)
        nodes.append(
            helper.make_node(
                "SameSizes",
                [place.input, *(other.input for other in others)],
                [],
                name,
                domain=DOMAIN,
                axes=[place.axis, *(other.axis for other in others)],
                factors=list(parts.values()),
                rest=rest,
                otherwise=_otherwise(place, others),
            )
        )
    return nodes


def _places(model: ir.Model) -> Iterator[_Place]:
    for value in model.graph.inputs:
        for axis, dim in enumerate(value.shape or ()):
            if isinstance(dim, ir.SymbolicDim) and dim.value is not None and value.name is not None:
                yield _Place(value.name, axis, dim.value)


def _sum_of(dim: Dim) -> tuple[Mapping[sympy.Symbol, int], int]:
    """Lengths with the whole numbers by which a dim has them, and what it has besides; none for another expression."""
    parts: dict[sympy.Symbol, int] = {}
    rest = 0
    for term in sympy.Add.make_args(sympy.expand(expression(dim))):
        factor, symbol = term.as_coeff_Mul()
        if not factor.is_Integer or not (symbol.is_Symbol or symbol == 1):
            return {}, 0
        if symbol.is_Symbol:
            parts[symbol] = int(factor)
        else:
            rest = int(factor)
    return parts, rest


def _otherwise(place: _Place, others: list[_Place]) -> str:
    """What a run says that stops there."""
    named = " and ".join(f"axis {p.axis} of {p.input!r} ({p.dim})" for p in others)
    return (
        f"the model calls axis {place.axis} of {place.input!r} {place.dim!r}, and it is not as long as {named} says: pass other "
        "inputs, or give sizes that may differ other names in the model"
    )
