"""Which blocks of keys a kernel with an explicit loop may leave out, and when it must go back for them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnx_fa.derive.attention import vanishes
from onnx_fa.kernels.plan.score import fill_log2, free, numbered, varies, window
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import Apply, Bool, Float, Score, ScoreExpr, tensors_of
from onnx_fa.spec.terms import IndexMask

_MOST_MASKING = -1e30
"""A fill up to this masks a score: nothing of a score's own size reaches it."""
_EXP2_RANGE = 130.0  # a score so far below its row's maximum, in units of log2, has probability 0 in f32


def never_empty(spec: AttentionSpec) -> bool:
    """Whether every query surely keeps a key: index masks alone, at known places, that leave one in every row."""
    if spec.tensors:
        return False
    low, high = -math.inf, math.inf
    for mask in spec.masks:
        if not isinstance(mask, IndexMask):
            return False
        if mask.offset != "end":
            offset = mask.offset
        elif isinstance(spec.Sq, int) and isinstance(spec.Skv, int):
            offset = spec.Skv - spec.Sq
        elif spec.Sq == spec.Skv:
            offset = 0
        else:
            return False
        left, right = window(mask)
        low = max(low, offset - left) if left is not None else low
        high = min(high, offset + right) if right is not None else high
    if low > high or high < 0:
        return False
    if low == -math.inf:
        return True
    if isinstance(spec.Sq, int) and isinstance(spec.Skv, int):
        return spec.Sq - 1 + low <= spec.Skv - 1
    return spec.Sq == spec.Skv and low <= 0


@dataclass(frozen=True)
class Skipping:
    """`terms`: places in spec.masks of the index masks whose blocks may be left out. `low`: conditions (over the spec's
    tensors, numbered through all terms); a block may be left out where one of them holds for all its positions.
    `threshold`: a row whose maximum (in units of log2) ends at or below it needs those blocks after all; None: no row can.
    `kept`: by place in spec.masks, conditions under which a term leaves the score as it is."""

    terms: frozenset[int]
    low: tuple[ScoreExpr, ...]
    threshold: float | None
    kept: dict[int, ScoreExpr]


@dataclass(frozen=True)
class _Passage:
    """What later terms make of a masked score: the finite fills they may put in its place, and whether they add to it."""

    fills: tuple[float, ...] = ()
    adds: bool = False

    def __or__(self, other: _Passage) -> _Passage:
        return _Passage(self.fills + other.fills, self.adds or other.adds)


def _passage(expr: ScoreExpr) -> _Passage | None:
    """What `expr` makes of a masked score; None where that could be anything."""
    match expr:
        case Score():
            return _Passage()
        case Float(value):
            return _Passage((value,) if math.isfinite(value) else ()) if value < math.inf else None
        case Apply("Where", (_, a, b)):
            first, second = _passage(a), _passage(b)
            return first | second if first and second else None
        case Apply("Add", (a, b)) if free(b):
            kept = _passage(a)
        case Apply("Add", (b, a)) if free(b):
            kept = _passage(a)
        case Apply("Sub", (a, b)) if free(b):
            kept = _passage(a)
        case _:
            return None
    return kept | _Passage(adds=True) if kept else None


def _either(a: ScoreExpr, b: ScoreExpr) -> ScoreExpr:
    if Bool(True) in (a, b):
        return Bool(True)
    if a == Bool(False):
        return b
    return a if b == Bool(False) else Apply("Or", a, b)


def _both(a: ScoreExpr, b: ScoreExpr) -> ScoreExpr:
    if Bool(False) in (a, b):
        return Bool(False)
    if a == Bool(True):
        return b
    return a if b == Bool(True) else Apply("And", a, b)


def _low(expr: ScoreExpr, fills: list[float]) -> ScoreExpr:
    """A condition under which `expr` is -inf or one of the very low fills that are added to `fills`."""
    match expr:
        case Float(value) if value <= _MOST_MASKING:
            fills += [value] if math.isfinite(value) else []
            return Bool(True)
        case Apply("Where", (condition, a, b)) if free(condition):
            first, second = _low(a, fills), _low(b, fills)
            chosen = _either(_both(condition, first), _both(Apply("Not", condition), second))
            return _either(chosen, _both(first, second))
        case Apply("Add", (a, b)):
            return _either(_low(a, fills), _low(b, fills))
        case Apply("Sub", (a, b)):
            return _low(a, fills)
    return Bool(False)


def _kept(expr: ScoreExpr) -> ScoreExpr:
    """A condition under which `expr` is the score."""
    match expr:
        case Score():
            return Bool(True)
        case Apply("Where", (condition, a, b)) if free(condition):
            return _either(_both(condition, _kept(a)), _both(Apply("Not", condition), _kept(b)))
    return Bool(False)


def provable(condition: ScoreExpr, spec: AttentionSpec) -> bool:
    """Whether a block's own values can tell that a condition holds throughout: it reads no floats, and no tensor that varies
    along both queries and keys."""
    tensors = [spec.tensors[index] for index in tensors_of(condition)]
    return all(t.kind != "float" and varies(t) != (True, True) for t in tensors)


def skipping(spec: AttentionSpec, *, visit_all: bool = False) -> Skipping:
    """A key outside an index mask, or one that an expression masks, may go unvisited where its probability is 0 in every
    row.

    With a fill of -inf that is so unless a later mask puts a finite fill in its place. With a finite fill it is so in
    each row whose maximum is far above the fill, which is known once the other keys are done. `visit_all`: nothing is left out.
    """
    terms: set[int] = set()
    conditions: list[ScoreExpr] = []
    fills: list[float] = []
    certain = never_empty(spec)
    exprs = [e for _, e in numbered(spec)]
    for i, (mask, expr) in enumerate(numbered(spec)):
        passed: _Passage | None = _Passage()
        for term, later in zip(spec.masks[i + 1 :], exprs[i + 1 :], strict=True):
            if isinstance(term, IndexMask):
                then: _Passage | None = _Passage((term.fill,) if math.isfinite(term.fill) else ())
            else:
                then = _passage(later) if later is not None else None
            passed = passed | then if passed and then else None
        if passed is None:
            continue
        condition: ScoreExpr = Bool(False)
        own: list[float] = []
        if isinstance(mask, IndexMask):
            own = [mask.fill] if math.isfinite(mask.fill) else []
        elif expr is not None:
            condition = _low(expr, own)
            if isinstance(condition, Bool) or not provable(condition, spec):
                continue
        else:
            continue
        reached = [*own, *passed.fills]
        if passed.adds and any(f > _MOST_MASKING for f in reached):
            continue  # what is added after the fill could lift it
        if spec.weighting is not None and not all(vanishes(spec.weighting, f) for f in reached):
            continue
        if isinstance(mask, IndexMask):
            terms.add(i)
        else:
            conditions.append(condition)
        if spec.weighting is None and not (certain and all(f <= _MOST_MASKING for f in reached)):
            fills += [fill_log2(f) for f in reached]
    kept = {i: _kept(e) for i, e in enumerate(exprs) if e is not None}
    kept = {i: c for i, c in kept.items() if c != Bool(False) and provable(c, spec)}
    if visit_all:
        return Skipping(frozenset(), (), None, kept)
    threshold = max(fills) + _EXP2_RANGE if fills else None
    return Skipping(frozenset(terms), tuple(conditions), threshold, kept)
