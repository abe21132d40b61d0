"""What an attention is made of besides its sizes: modifications of the score, mask terms, integers, roundings, gathered rows.

A dim is an int, or a str symbol for a length that is known only at run time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, assert_never

from onnx_fa.spec.expr import (
    SCORE,
    Apply,
    Float,
    Kind,
    Position,
    ScoreExpr,
    Tensor,
    kind_of,
    leaves,
    substitute,
    tensors_of,
)

Dim = int | str
DType = Literal["f64", "f32", "f16", "bf16"]
FloatType = Literal["f32", "f16", "bf16"]
ElementType = Literal["f64", "f32", "f16", "bf16", "bool", "i32", "i64"]
IntegerType = Literal["i8", "u8", "i4", "u4"]
Offset = int | Literal["end"]
"""Where the query block starts among the keys: query i stands at key position i + offset; "end" is Skv - Sq."""
NEG_INF = -math.inf


def inverse(layout: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that undoes a layout: `stored.transpose(inverse(layout))` is canonical."""
    return tuple(sorted(range(len(layout)), key=layout.__getitem__))


@dataclass(frozen=True)
class Softcap:
    """score = cap * tanh(score / cap)"""

    cap: float


ScoreMod = Softcap


@dataclass(frozen=True)
class Causal:
    """Keeps key j for query i iff j <= i + offset; other scores become `fill`."""

    offset: Offset = 0
    fill: float = NEG_INF


@dataclass(frozen=True)
class SlidingWindow:
    """Keeps key j for query i iff i + offset - left <= j <= i + offset + right (None: no bound); others become `fill`."""

    left: int | None = None
    right: int | None = None
    offset: Offset = 0
    fill: float = NEG_INF


@dataclass(frozen=True)
class BoolMask:
    """A boolean tensor, true keeps, false becomes `fill`. `shape` broadcasts (right-aligned) to (*B, Hq, Sq, Skv)."""

    shape: tuple[Dim, ...]
    fill: float = NEG_INF


@dataclass(frozen=True)
class AddMask:
    """A float tensor times `factor`, added. `shape` broadcasts (right-aligned) to (*B, Hq, Sq, Skv)."""

    shape: tuple[Dim, ...]
    dtype: DType = "f32"
    factor: float = 1.0


@dataclass(frozen=True)
class TensorArg:
    """A tensor that a term reads. `shape` broadcasts (right-aligned) to (*B, Hq, Sq, Skv)."""

    shape: tuple[Dim, ...]
    dtype: ElementType = "f32"

    @property
    def kind(self) -> Kind:
        """What it is in a score expression."""
        if self.dtype == "bool":
            return "bool"
        return "int" if self.dtype in ("i32", "i64") else "float"


@dataclass(frozen=True)
class Elementwise:
    """The score becomes `expr` of itself, its position and small tensors (see expr.py): any mask, bias or function that no
    other term names. `label` is a word for people, such as "document", and means nothing."""

    expr: ScoreExpr
    tensors: tuple[TensorArg, ...] = ()
    label: str = field(default="elementwise", compare=False)

    def __post_init__(self) -> None:
        if kind_of(self.expr, [t.kind for t in self.tensors]) != "float":
            raise ValueError("the expression of a score is not a float")
        read = tensors_of(self.expr)
        if read != set(range(len(self.tensors))):
            raise ValueError(f"an expression reads tensors {sorted(read)} of {len(self.tensors)}")


@dataclass(frozen=True)
class Quantized:
    """K or V kept as integers: (stored - zero point) * scale, rounded once to the spec's type, as ONNX's DequantizeLinear does.

    `shape` is that of the scale, which has the spec's type, and of the zero point, which has 8 bits with or without a sign like the
    integers. It broadcasts
    (right-aligned) to the operand as stored; along the head dim it may also have one number for every so many neighbours.
    """

    dtype: IntegerType = "i8"
    shape: tuple[Dim, ...] = ()
    zero_point: bool = False


GRIDS = {"u8": (0, 255), "i8": (-128, 127), "u16": (0, 65535), "i16": (-32768, 32767)}
"""The ends of the integers that probabilities are rounded to."""
MOST_ROUNDINGS = 4
"""One after the other; models have two."""


@dataclass(frozen=True)
class Rounding:
    """What happens to the normalised probabilities before they multiply V: each becomes (n - zero_point) * scale with the integer
    n = saturate(round_half_even(p / scale) + zero_point), as ONNX's QuantizeLinear and DequantizeLinear make it; NaN becomes 0.
    p is what the rounding `before`, if there is one, makes of the probability, as f32. Raises ValueError for a scale that is not
    positive and finite, a zero point that is not of the type, and more than MOST_ROUNDINGS of them."""

    scale: float
    zero_point: int = 0
    dtype: str = "u8"
    before: Rounding | None = None

    def __post_init__(self) -> None:
        if self.dtype not in GRIDS:
            raise ValueError(f"probabilities are rounded to {', '.join(GRIDS)}, not to {self.dtype}")
        low, high = GRIDS[self.dtype]
        if not (0 < self.scale < math.inf and low <= self.zero_point <= high):
            raise ValueError(
                f"a rounding with scale {self.scale} and zero point {self.zero_point} of type {self.dtype}"
            )
        if len(self.chain) > MOST_ROUNDINGS:
            raise ValueError(f"probabilities are rounded more than {MOST_ROUNDINGS} times")

    @property
    def bits(self) -> int:
        """Of the integers."""
        return int(self.dtype[1:])

    @property
    def chain(self) -> tuple[Rounding, ...]:
        """All roundings, the first one first."""
        return (*(self.before.chain if self.before else ()), self)

    @property
    def most(self) -> int:
        """The largest number of steps from 0."""
        return GRIDS[self.dtype][1] - self.zero_point


@dataclass(frozen=True)
class Weighting:
    """What multiplies V in place of a softmax's probabilities: `weight` of the masked score, such as its sigmoid or its squared
    ReLU. Where there is a `total`, the output is divided by max(sum of total(score) over the keys + plus, least).

    Both are expressions of the score, the lengths and constants (see expr.py). A masked score is -inf as everywhere, of which most
    weights are 0. Without a `total` a row without keys is a sum of nothing, zero.

    Raises ValueError where an expression is no float or reads anything else.
    """

    weight: ScoreExpr
    total: ScoreExpr | None = None
    plus: float = 0.0
    least: float = -math.inf
    label: str = field(default="unnormalised", compare=False)

    def __post_init__(self) -> None:
        for expr in (self.weight, *([self.total] if self.total is not None else [])):
            if kind_of(expr, []) != "float" or any(isinstance(leaf, Position) for leaf in leaves(expr)):
                raise ValueError("a weight is a float that follows from the score, the lengths and constants")
        if self.total is None and (self.plus != 0.0 or self.least != -math.inf):
            raise ValueError("what nothing is divided by has no least value")


@dataclass(frozen=True)
class Gathered:
    """Keys and values are rows of two pools, as in a paged cache: key j of a batch row is row index[..., j] of either.

    `rows` is how many a pool has: k is then (1.., Hkv, rows, D), v (1.., Hkv, rows, Dv), before their layouts. The index has
    the shape (*B, Skv), and numbers from 0 to rows - 1.

    With `head_rows`, all heads have one pool, k is (1.., 1, rows, D), and head h of the Hkv reads row index[..., j] + h *
    head_rows.
    """

    rows: Dim
    dtype: Literal["i32", "i64"] = "i64"
    head_rows: int = 0


IndexMask = Causal | SlidingWindow
"""Masks that keep the keys between two bounds, which move with the query: kernels visit only the blocks between them."""
TensorMask = BoolMask | AddMask
"""Masks that are one tensor."""
MaskTerm = IndexMask | TensorMask | Elementwise


def term_expression(term: TensorMask | Elementwise) -> ScoreExpr:
    """What a term makes of the score, over its own tensors in the order of `term_tensors`. Forms and kernels that know nothing
    better of a term take this."""
    match term:
        case BoolMask():
            return Apply("Where", Tensor(0), SCORE, Float(term.fill))
        case AddMask():
            return Apply("Add", SCORE, Tensor(0) if term.factor == 1.0 else Apply("Mul", Tensor(0), Float(term.factor)))
        case Elementwise():
            return term.expr
    assert_never(term)


def with_leaves(term: TensorMask | Elementwise, change: Callable[[ScoreExpr], ScoreExpr]) -> Elementwise:
    """The term as an expression whose leaves are changed, for queries at other positions."""
    expr = substitute(term_expression(term), change)
    if isinstance(term, Elementwise):
        return dataclasses.replace(term, expr=expr)
    return Elementwise(expr, term_tensors(term))


def term_tensors(term: MaskTerm) -> tuple[TensorArg, ...]:
    """The tensors that a mask term reads, in operand order."""
    match term:
        case BoolMask():
            return (TensorArg(term.shape, "bool"),)
        case AddMask():
            return (TensorArg(term.shape, term.dtype),)
        case Elementwise():
            return term.tensors
    return ()


def with_shapes(term: MaskTerm, change: Callable[[tuple[Dim, ...]], tuple[Dim, ...]]) -> MaskTerm:
    """The term with the shapes of its tensors changed."""
    if isinstance(term, (BoolMask, AddMask)):
        return dataclasses.replace(term, shape=change(term.shape))
    if isinstance(term, Elementwise):
        tensors = tuple(dataclasses.replace(t, shape=change(t.shape)) for t in term.tensors)
        return dataclasses.replace(term, tensors=tensors)
    return term


def _fills_finitely(term: MaskTerm) -> bool:
    """Whether what a term masks becomes a finite number, and all else stays as it was."""
    match term:
        case AddMask():
            return False
        case Elementwise(Apply("Where", (_, yes, no))):
            kept, fill = (yes, no) if yes == SCORE else (no, yes)
            return kept == SCORE and isinstance(fill, Float) and math.isfinite(fill.value)
        case Elementwise():
            return False
    return term.fill != -math.inf


def never_empty(masks: Iterable[MaskTerm]) -> bool:
    """Whether every row certainly keeps a key, whatever the lengths and the mask tensors."""
    infinite = [m for m in masks if not _fills_finitely(m)]
    return all(isinstance(m, Causal) and isinstance(m.offset, int) and m.offset >= 0 for m in infinite)
