"""What the matching engine and the layers in `patterns/` say to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import onnx_ir as ir

from onnx_fa.expr import ScoreExpr
from onnx_fa.graph_view import Array, GraphView
from onnx_fa.spec import AttentionSpec, Dim, MaskTerm


class NoMatch(Exception):
    """Raised while parsing one site; carries the reason and the node that stands in the way."""

    def __init__(self, reason: str, node: ir.Node | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.node = node


# Operand expressions: a graph value, a constant, or a standard op on those that the rewriter adds to the graph.


@dataclass(frozen=True)
class Call:
    """`op(*args)` with integer (or integer list) attributes, to be added to the graph when the site is rewritten."""

    op: str
    args: tuple[Expr, ...]
    attrs: tuple[tuple[str, int | tuple[int, ...]], ...] = ()


@dataclass(frozen=True, eq=False)
class Const:
    array: Array


Expr = ir.Value | Call | Const


@dataclass(frozen=True)
class Anchor:
    """A softmax: of `score`, giving `prob`. With `row_sum`, `prob` is not yet divided by it (deferred division)."""

    node: ir.Node
    op: str
    score: ir.Value
    prob: ir.Value
    row_sum: ir.Value | None = None
    floored: bool = False
    """The row maximum is kept finite, so that an empty row's exponentials are zero."""
    sink: Expr | None = None
    """One more logit per row, without a value: broadcasts to (*B, Hq, Sq, 1)."""


# Steps from the matmul's output to the softmax's input, innermost first.


@dataclass(frozen=True)
class Scale:
    factor: float


@dataclass(frozen=True)
class Cap:
    """cap * tanh(score / cap)"""

    cap: float


@dataclass(frozen=True)
class AddTerm:
    """score + factor * value"""

    value: Expr
    factor: float = 1.0


@dataclass(frozen=True)
class Select:
    """score where `keep` is true (false, if `inverted`), else `fill`."""

    keep: Expr
    inverted: bool
    fill: float


@dataclass(frozen=True)
class Map:
    """The score becomes `expr` (see expr.py) of itself, its position and `values`, which broadcast to it."""

    expr: ScoreExpr
    values: tuple[Expr, ...] = ()
    label: str = "elementwise"


@dataclass(frozen=True)
class Nothing:
    """A layer that leaves the value as it is (a cast between float types, Identity)."""


Guard = Literal["", "zero", "guarded"]
"""What becomes of a row without keys: nothing is done about its NaN, or see `AttentionSpec.empty_row`."""

Step = Scale | Cap | AddTerm | Select | Map | Nothing


@dataclass(frozen=True)
class Peel:
    """One layer taken off the score: `step` was applied to `inner`."""

    step: Step
    inner: ir.Value


@dataclass(frozen=True)
class After:
    """One layer taken off behind the softmax: goes on at `value`; `guard` when it turns NaN probabilities into zero."""

    value: ir.Value
    guard: bool = False


@dataclass(frozen=True)
class Term:
    """A mask term and the operands for its tensors."""

    term: MaskTerm
    operands: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class OperandChoice:
    """One way to read q, k or v: `value` is the canonical operand, permuted by `layout`, to be multiplied by `scale`.
    `heads` differs from the matmul's own head count where a repeat of K/V heads was peeled off."""

    value: Expr
    layout: tuple[int, ...]
    scale: float
    heads: Dim


@dataclass(frozen=True)
class Match:
    """A recognised site. `operands` are in the spec's order. `wrap` are ops to apply to the site's output, one after the other,
    to get `output`. `presents` are further outputs of the replaced node and what they become."""

    name: str
    op: str
    form: str
    spec: AttentionSpec
    operands: tuple[Expr, ...]
    output: ir.Value
    anchor: ir.Node
    wrap: tuple[Callable[[Expr], Expr], ...] = ()
    presents: tuple[tuple[ir.Value, Expr], ...] = ()
    keep: bool = False
    """Already in a final form that is not to be rewritten again."""


ScoreLayer = Callable[[GraphView, ir.Value], Iterable[Peel]]
MaskRule = Callable[[GraphView, AddTerm | Select | Map, tuple[Dim, ...], str, Sequence[Term]], list[Term]]
"""(view, step, the score's shape, the element type, the terms before it) -> the mask terms that the step means. Raises NoMatch."""
AfterLayer = Callable[[GraphView, ir.Value, Sequence[ir.Node]], After | None]


@dataclass(frozen=True)
class Patterns:
    """The ordered tables that `patterns/` fills in."""

    anchors: Callable[[GraphView, ir.Node], Anchor | None]
    score: Sequence[ScoreLayer]
    after: Sequence[AfterLayer]
    operand: Callable[[GraphView, ir.Value, tuple[str, ...], tuple[Dim, ...]], list[OperandChoice]]
    mask: MaskRule
    ops: Sequence[Callable[[GraphView, ir.Node, str], Match | None]] = field(default=())


@dataclass(frozen=True)
class Operands:
    """q, k, v as read by the spec, with their named dims."""

    q: OperandChoice
    k: OperandChoice
    v: OperandChoice
    batch: tuple[Dim, ...]
    Hq: Dim
    Hkv: Dim
    Sq: Dim
    Skv: Dim
    D: int
    Dv: int
    rank2: bool = False
