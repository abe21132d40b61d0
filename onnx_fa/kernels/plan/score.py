"""What a kernel does to each score, as steps on vectors: every mask term but the index masks becomes one expression.

Expressions are those of expr.py over the spec's tensors, numbered through all terms, with one more op: Apply(LOG2, x) is x
in units of log2, which the softmax works in; finite values below MASK_FLOOR are raised to it first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import (
    OPS,
    SCORE,
    Apply,
    Constant,
    Float,
    Kind,
    Position,
    Score,
    ScoreExpr,
    Tensor,
    kind_of,
    leaves,
    substitute,
)
from onnx_fa.spec.terms import Causal, IndexMask, MaskTerm, TensorArg, term_expression, term_tensors

LOG2 = "Log2"
LOG2E = math.log2(math.e)
LN2 = math.log(2.0)
MASK_FLOOR = -1.0e37
"""Finite masks and fills are raised to this, so that log2(e) times them, and sums of a few of them, stay finite."""
MAX_START = -3.0e38
"""The running maximum before the first key: finite, so that a score of -inf gives 0 and not NaN; below any mask."""


def fill_log2(fill: float) -> float:
    """A mask's fill in units of log2, clamped where it is finite."""
    return fill if math.isinf(fill) else max(fill, MASK_FLOOR) * LOG2E


def window(mask: IndexMask) -> tuple[int | None, int | None]:
    """(left, right): a query at key position p keeps the keys p - left .. p + right; None is no bound."""
    return (None, 0) if isinstance(mask, Causal) else (mask.left, mask.right)


@dataclass(frozen=True)
class IndexStep:
    """An index mask, and what it puts in place of a score, in the units of that step."""

    mask: IndexMask
    fill: float


@dataclass(frozen=True)
class ExprStep:
    """The score becomes `expr`."""

    expr: ScoreExpr


@dataclass(frozen=True)
class ScorePlan:
    """`natural`: whether the first step sees scores as they are, and not in units of log2; the last always gives those."""

    steps: tuple[IndexStep | ExprStep, ...]
    natural: bool
    weights: ScoreExpr | None = None
    """What a probability becomes before it multiplies V, as an expression of itself in the score's place."""

    def without(self, terms: Collection[int]) -> ScorePlan:
        """The plan where the terms of those numbers leave the score as it is."""
        steps: list[IndexStep | ExprStep] = []
        for i, step in enumerate(self.steps):
            if i not in terms:
                steps.append(step)
            elif isinstance(step, ExprStep) and is_in_log2(step.expr):
                steps.append(ExprStep(Apply(LOG2, SCORE)))
        return ScorePlan(tuple(steps), self.natural, self.weights)

    @property
    def expressions(self) -> tuple[ScoreExpr, ...]:
        weights = (self.weights,) if self.weights is not None else ()
        return (*(s.expr for s in self.steps if isinstance(s, ExprStep)), *weights)


def varies(tensor: TensorArg) -> tuple[bool, bool]:
    """Whether a tensor varies along the queries, and along the keys."""
    shape = (1, 1, *tensor.shape)[-2:]
    return shape[0] != 1, shape[1] != 1


def free(expr: ScoreExpr) -> bool:
    """Whether `expr` does not read the score."""
    return SCORE not in leaves(expr)


@cache
def uses(expr: ScoreExpr, tensors: tuple[TensorArg, ...]) -> frozenset[str]:
    """What changes the value of `expr` within a head: some of "score", "q" and "k"."""
    match expr:
        case Apply(_, args):
            return frozenset().union(*(uses(a, tensors) for a in args))
        case Tensor(index):
            rows, keys = varies(tensors[index])
            return frozenset(["q"] * rows + ["k"] * keys)
        case Position(axis):
            return frozenset({axis})
    return frozenset({"score"} if expr == SCORE else ())


def kind(expr: ScoreExpr, tensors: Sequence[TensorArg]) -> Kind:
    """The kind of a well-formed expression, which may hold Log2."""
    while isinstance(expr, Apply):
        found = "float" if expr.op == LOG2 else OPS[expr.op].result
        if found is not None:
            return found
        expr = expr.args[-1]
    return kind_of(expr, [t.kind for t in tensors])


def is_in_log2(expr: ScoreExpr) -> bool:
    """Whether an expression ends in the change to units of log2."""
    return isinstance(expr, Apply) and expr.op == LOG2


def _is_linear(expr: ScoreExpr) -> bool:
    """Whether `expr` only adds to the score or puts something in its place, which can be done in units of log2."""
    match expr:
        case Score():
            return True
        case Apply("Where", (condition, a, b)):
            return free(expr) or (free(condition) and _is_linear(a) and _is_linear(b))
        case Apply("Add", (a, b)):
            return free(expr) or (_is_linear(a) and free(b)) or (free(a) and _is_linear(b))
        case Apply("Sub", (a, b)):
            return free(expr) or (_is_linear(a) and free(b))
    return free(expr)


def _in_log2(expr: ScoreExpr) -> ScoreExpr:
    """A linear expression, of a score in units of log2."""
    match expr:
        case Score():
            return expr
        case Float(value):
            return Float(fill_log2(value))
        case Apply("Where", (condition, a, b)):
            return Apply("Where", condition, _in_log2(a), _in_log2(b))
        case Apply("Add", (a, b)) if not free(expr):
            return Apply("Add", _in_log2(a), _in_log2(b))
        case Apply("Sub", (a, b)) if not free(expr):
            return Apply("Add", _in_log2(a), _in_log2(Apply("Neg", b)))
    return Apply(LOG2, expr)


def numbered(spec: AttentionSpec) -> Iterator[tuple[MaskTerm, ScoreExpr | None]]:
    """Every mask term with its expression over `spec.tensors`; None for index masks."""
    at = 0
    for term in spec.masks:
        if isinstance(term, IndexMask):
            yield term, None
            continue

        def shifted(leaf: ScoreExpr, base: int = at) -> ScoreExpr:
            return Tensor(base + leaf.index) if isinstance(leaf, Tensor) else leaf

        yield term, substitute(term_expression(term), shifted)
        at += len(term_tensors(term))


def score_plan(spec: AttentionSpec) -> ScorePlan:
    """The steps of a spec's mask terms, in order. Everything up to the last term that is more than a sum or a choice sees
    scores as they are; without a softmax everything does, and the last step gives them as they are, too."""
    terms = list(numbered(spec))
    if spec.weighting is not None:
        return ScorePlan(tuple(_natural_steps(terms)), True, _multiplied(spec))
    natural = max((i + 1 for i, (_, e) in enumerate(terms) if e is not None and not _is_linear(e)), default=0)
    steps: list[IndexStep | ExprStep] = []
    for i, (term, expr) in enumerate(terms):
        if expr is not None:
            if i + 1 == natural:
                expr = Apply(LOG2, expr)
            elif i >= natural:
                expr = _in_log2(expr)
            steps.append(ExprStep(expr))
        elif isinstance(term, IndexMask):
            fill = max(term.fill, MASK_FLOOR) if math.isfinite(term.fill) else term.fill
            steps.append(IndexStep(term, fill if i < natural else fill_log2(term.fill)))
    return ScorePlan(tuple(steps), natural > 0, _multiplied(spec))


def _natural_steps(terms: Iterable[tuple[MaskTerm, ScoreExpr | None]]) -> Iterator[IndexStep | ExprStep]:
    """Steps that leave scores in their own units."""
    for term, expr in terms:
        if expr is not None:
            yield ExprStep(expr)
        elif isinstance(term, IndexMask):
            yield IndexStep(term, term.fill)


def _multiplied(spec: AttentionSpec) -> ScoreExpr | None:
    """What a probability becomes before it multiplies V, as an expression of itself in the score's place."""
    weights: ScoreExpr | None = None
    if spec.weights is not None:
        read: ScoreExpr = Tensor(len(spec.tensors) - 1)
        if spec.renormalised:  # by 1 or 0, as a NaN that is not kept must reach the new sum
            weights = Apply("Mul", SCORE, Apply("Where", read, Float(1.0), Float(0.0)))
        elif spec.weights.dtype == "bool":
            weights = Apply("Where", read, SCORE, Float(0.0))
        else:
            weights = Apply("Mul", SCORE, read)
    return weights


def row_parts(plan: ScorePlan, tensors: tuple[TensorArg, ...]) -> list[ScoreExpr]:
    """The largest subexpressions that do not change with the key (constants, which cost nothing, left out)."""
    return _largest(plan, lambda e: uses(e, tensors) <= {"q"} and not isinstance(e, Constant))


def tile_parts(plan: ScorePlan, tensors: tuple[TensorArg, ...]) -> list[ScoreExpr]:
    """The largest subexpressions of constants and one tensor that varies along queries and keys."""

    def fits(expr: ScoreExpr) -> bool:
        read = set(leaves(expr))
        full = {e for e in read if isinstance(e, Tensor) and varies(tensors[e.index]) == (True, True)}
        return len(full) == 1 and all(e in full or isinstance(e, Constant) for e in read)

    return _largest(plan, fits)


def _largest(plan: ScorePlan, fits: Callable[[ScoreExpr], bool]) -> list[ScoreExpr]:
    found: dict[ScoreExpr, None] = {}

    def visit(expr: ScoreExpr) -> None:
        if fits(expr):
            found[expr] = None
        elif isinstance(expr, Apply):
            for argument in expr.args:
                visit(argument)

    for expr in plan.expressions:
        visit(expr)
    return list(found)


def tile_slots(part: ScoreExpr, tensors: Sequence[TensorArg]) -> int:
    """The f32 tiles that hold a tile part: whole 64-bit integers take two."""
    return 2 if kind(part, tensors) == "int" else 1
