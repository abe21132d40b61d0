"""Operand expressions: a value of the graph, a constant, or a standard op on those, which the rewriter adds to the graph."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from onnx_fa.graph.view import Array, GraphView
from onnx_fa.spec.terms import Dim


@dataclass(frozen=True)
class Call:
    """`op(*args)` with integer (or integer list) attributes, to be added to the graph when the site is rewritten."""

    op: str
    args: tuple[Expr, ...]
    attrs: tuple[tuple[str, int | tuple[int, ...]], ...] = ()
    shape: tuple[Dim | None, ...] | None = field(default=None, compare=False)
    """The result's dims; None where the function that built the call did not know them."""


@dataclass(frozen=True, eq=False)
class Const:
    """A constant that becomes an initializer. Two of them are equal only if they are the same object."""

    array: Array


Expr = ir.Value | Call | Const


def known_array(view: GraphView, value: Expr) -> Array | None:
    """What a constant operand holds; None for what is known only at run time."""
    if isinstance(value, Const):
        return value.array
    return view.const(value) if isinstance(value, ir.Value) else None


def values_of(*exprs: Expr | None) -> list[ir.Value]:
    """The graph values that expressions read, each once."""
    stack: list[Expr | None] = list(reversed(exprs))
    found: dict[ir.Value, None] = {}
    seen: set[int] = set()
    while stack:
        e = stack.pop()
        if isinstance(e, ir.Value):
            found[e] = None
        elif isinstance(e, Call) and id(e) not in seen:
            seen.add(id(e))
            stack += reversed(e.args)
    return list(found)
