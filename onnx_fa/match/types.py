"""What the matching engine and the layers in `patterns/` say to each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import onnx_ir as ir

from onnx_fa.graph.axes import LAST_AXIS, Axes
from onnx_fa.graph.view import GraphView
from onnx_fa.match.axes import Axis, Group, Sources
from onnx_fa.match.exprs import Expr
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import ScoreExpr
from onnx_fa.spec.terms import Dim, DType, MaskTerm, Quantized, Rounding


@dataclass(frozen=True)
class Anchor:
    """A softmax: of `score`, giving `prob`. With `row_sum`, `prob` is not yet divided by it (deferred division)."""

    node: ir.Node
    op: str
    score: ir.Value
    prob: ir.Value
    row_sum: ir.Value | None = None
    floored: bool = False
    """The model keeps the row maximum finite, so that the exponentials of a row without keys are zero."""
    sink: Expr | None = None
    """One more logit per row, without a value: broadcasts to (*B, Hq, Sq, 1)."""
    column: Literal["", "first", "last"] = ""
    """Where the sink stands among the columns of `prob`, if it is one of them; `score` is without it."""
    inside: tuple[ir.Node, ...] = ()
    """Nodes of the softmax itself that read `prob`."""
    unscaled: bool = False
    """`prob` are exponentials that are masked first, and then divided by their sum."""
    by_log: bool = False
    """`prob` is the exponential of the score less the row's log-sum-exp, as numbers of the score's size."""
    mass: ir.Value | None = None
    """The sum of the exponentials of `score` less the row's maximum, as the model computes it, where it is no more than that."""
    axes: Axes = LAST_AXIS
    """The axes of `score` and `prob` that the softmax is over."""
    weight: ScoreExpr | None = None
    """There is no softmax: `prob` is this function of `score`, and `axes` are those that the product with V sums over."""
    label: str = ""
    """What an attention of such a weight is called."""


@dataclass(frozen=True)
class Weighting:
    """The product of the probabilities, operand `side` of it, with V; `regroups` moved axes since the softmax."""

    product: Product
    side: int
    prob: ir.Value
    regroups: tuple[ir.Node, ...] = ()


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
    """score where `keep` is true (false, if `inverted`), else `fill`; `drops`: which weighs nothing."""

    keep: Expr
    inverted: bool
    fill: float
    drops: bool = False


@dataclass(frozen=True)
class Map:
    """The score becomes `expr` (see expr.py) of itself, its position and `values`, which broadcast to it."""

    expr: ScoreExpr
    values: tuple[Expr, ...] = ()
    label: str = "elementwise"


@dataclass(frozen=True)
class Factor:
    """score * value (score / value, if `divide`) for a value with a last dim of 1, known only at run time."""

    value: Expr
    divide: bool = False


@dataclass(frozen=True)
class Nothing:
    """A layer that leaves the value as it is (a cast between float types, Identity)."""


@dataclass(frozen=True)
class Regroup:
    """A node that only moves axes of the score: Reshape, Transpose, Squeeze, Unsqueeze."""

    node: ir.Node


Guard = Literal["", "zero", "guarded"]
"""What becomes of a row without keys: nothing is done about its NaN, or see `AttentionSpec.empty_row`."""

Step = Scale | Cap | Factor | AddTerm | Select | Map | Nothing | Regroup


@dataclass(frozen=True)
class Peel:
    """One layer taken off the score: `step` was applied to `inner`."""

    step: Step
    inner: ir.Value


@dataclass(frozen=True)
class OwnSum:
    """What weights are divided by where there is no softmax: max(sum over the keys of `of` + plus, least). `of` is a function of
    the weight; `drops` have set weights to zero before."""

    of: ScoreExpr
    plus: float = 0.0
    least: float = -math.inf
    drops: tuple[Select, ...] = ()


@dataclass(frozen=True)
class After:
    """One layer taken off behind the softmax: goes on at `value`."""

    value: ir.Value
    guard: Guard = ""
    """What it does about rows without keys."""
    cut: bool = False
    """It takes away the sink's column."""
    rows: Callable[[Expr], Expr] | None = None
    """It does the same to every probability of a row, so that it can be done to the output instead."""
    keys: Expr | None = None
    """It multiplies all probabilities of a key by one number, so that V can be multiplied instead: (..., 1, Skv)."""
    weights: Expr | None = None
    """It multiplies the probabilities by a tensor with values per query and key, which stays between them and V."""
    step: Step | None = None
    """It masks the probabilities and divides them by their new sum, which is one more step on the score."""
    drop: Select | None = None
    """It sets to zero what this mask drops. That is exact only if the score has the same mask."""
    renormalised: bool = False
    """It divides what `drop` leaves of a row by its own sum, and makes rows zero whose sum is zero or NaN."""
    regroup: ir.Node | None = None
    """A node that only moves axes of the probabilities."""
    rounding: Rounding | None = None
    """It rounds the probabilities to a grid."""
    total: OwnSum | None = None
    """It divides weights, where there is no softmax, by a sum of theirs."""


@dataclass(frozen=True)
class Product:
    """A contraction of two operands, as einsum says it: a letter for every axis of either and of the output.

    A letter in both operands and in the output is a batch axis, where one side may have size 1 and broadcasts.
    """

    node: ir.Node
    operands: tuple[Expr, Expr]
    shapes: tuple[tuple[Dim | None, ...], tuple[Dim | None, ...]]
    letters: tuple[str, str]
    out: str
    output: ir.Value
    factor: float = 1.0


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
    integers: Integers | None = None
    """`value` holds integers; what it stands for."""
    widened: bool = False
    """`value` has a narrower type than the matmul's operand, to which the model casts it up."""


@dataclass(frozen=True)
class Integers:
    """What integers stand for: `quant` says how, `operands` are the scale and, if there is one, the zero point. `plain` is the
    reading behind the dequantisation."""

    quant: Quantized
    operands: tuple[Expr, ...]
    plain: OperandChoice
    number: DType
    """The type of the numbers."""


ScoreStage = Literal["scaled", "capped", "masked", "probabilities"]
"""How far scores have come: Q @ K^T scaled, with the score modifications, with the masks, and after the softmax."""


@dataclass(frozen=True)
class Further:
    """A value of the graph that a site makes beside its output: `wrap` applied to its result number `source`."""

    value: ir.Value
    source: int
    wrap: tuple[Callable[[Expr], Expr], ...] = ()


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
    scores: tuple[ir.Value, ScoreStage] | None = None
    """A further output of the replaced node that shows the scores; standard ops beside the site make it."""
    probabilities: tuple[Further, ...] = ()
    """Values that show the probabilities (*B, Hq, Sq, Skv), which standard ops beside the site make once more."""
    further: tuple[Further, ...] = ()
    """What else the site makes: row statistics, and parts of an output that several products with V share."""
    shown: tuple[ir.Value, ...] = ()
    """Scores, at any stage before the softmax, that are an output of the model too: its own nodes go on to make them."""
    asked: tuple[tuple[ir.Node, Expr], ...] = ()
    """Nodes that ask the scores or probabilities for their shape or type, and what they are told instead."""
    exact_scores: bool = False
    """The model computes scores in f32 whose Q and K are of a narrower type: a form that rounds them to it is another attention."""
    keep: bool = False
    """Already in a final form that is not to be rewritten again."""


@dataclass(frozen=True)
class Shown:
    """Probabilities that are an output of the model: as they multiply V, or with the first ones of what is done to their rows."""

    value: ir.Value
    wrap: tuple[Callable[[Expr], Expr], ...] = ()


@dataclass(frozen=True)
class Behind:
    """What was found between the softmax and one product with V."""

    weighting: Weighting
    guard: Guard = ""
    wrap: tuple[Callable[[Expr], Expr], ...] = ()
    keys: tuple[Expr, ...] = ()
    steps: tuple[Step, ...] = ()
    drops: tuple[Select, ...] = ()
    rounding: Rounding | None = None
    weights: Expr | None = None
    shown: tuple[Shown, ...] = ()
    """Probabilities that are an output of the model too."""
    renormalised: bool = False
    """What the one drop leaves of a row is divided by its own sum."""
    total: OwnSum | None = None


@dataclass(frozen=True)
class Tail:
    """One layer taken off behind the matmul with V: goes on at `value`, and shows that the softmax has a sink."""

    value: ir.Value
    sink: Expr


ScoreLayer = Callable[[GraphView, ir.Value], Iterable[Peel]]


class MaskRule(Protocol):
    def __call__(
        self,
        view: GraphView,
        step: AddTerm | Select | Map,
        shape: tuple[Dim, ...],
        dtype: str,
        before: Sequence[Term] = (),
    ) -> list[Term]:
        """The mask terms that `step` means on a score of `shape` (*B, Hq, Sq, Skv), to which the terms `before` have been applied.
        Raises NoMatch where a tensor does not provably broadcast to the score."""
        ...


AfterLayer = Callable[[GraphView, Anchor, ir.Value, Sequence[ir.Node]], After | None]
"""(view, the softmax, the probabilities, the nodes that read them) -> the layer. Raises NoMatch naming what cannot be carried."""
TailLayer = Callable[[GraphView, Anchor, ir.Value], Tail | None]


@dataclass(frozen=True)
class Patterns:
    """The ordered tables that `patterns/` fills in."""

    anchors: Sequence[Callable[[GraphView, ir.Node], Anchor | None]]
    score: Sequence[ScoreLayer]
    after: Sequence[AfterLayer]
    product: Callable[[GraphView, ir.Value], Product | None]
    """The contraction that makes a value."""
    joined_score: Callable[
        [GraphView, ir.Value, Callable[[ir.Value], Sequence[tuple[tuple[Step, ...], Product]]]],
        tuple[tuple[Step, ...], Product] | None,
    ]
    """The reading of a score that is made of parts along the keys, given the reader of the parts."""
    joined_values: Callable[
        [GraphView, ir.Value, Sequence[ir.Node], Callable[[GraphView, ir.Value], Product | None]], Product | None
    ]
    """The product of the probabilities with V in parts along the keys."""
    operand: Callable[[GraphView, Expr, Sequence[Axis], Sequence[Group], Sources, str | None], list[OperandChoice]]
    """(view, q, k or v, its axes, the canonical dims, .., an element type that casts are walked up to) -> readings, the shallowest
    first."""
    place: Callable[[GraphView, Expr, Sequence[Axis], Sequence[Group], Sources], Expr]
    """(view, tensor, the axes of the score it broadcasts to, the canonical dims) -> the tensor in canonical dims."""
    mask: MaskRule
    tail: Sequence[TailLayer] = field(default=())
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
    o_layout: tuple[int, ...] = ()
    """The layout that the product with V has, if it is not canonical."""
    wrap: tuple[Callable[[Expr], Expr], ...] = ()
    """What makes the product with V of the canonical output."""
