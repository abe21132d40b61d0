"""Where a condition holds, the score; elsewhere a fill. Conditions on key - query become Causal and SlidingWindow, tensors
BoolMask."""

from __future__ import annotations

from dataclasses import replace

from onnx_fa.match import Call, Term
from onnx_fa.patterns.masks.elementwise import make_elementwise, name_function
from onnx_fa.patterns.masks.expressions import TRUE, flatten, number
from onnx_fa.patterns.masks.reader import Reader
from onnx_fa.patterns.masks.sums import Linear, add_terms
from onnx_fa.patterns.masks.swallowing import swallows_scores
from onnx_fa.spec.expr import SCORE, SKV, SQ, Apply, K, Q, ScoreExpr, Tensor
from onnx_fa.spec.terms import BoolMask, Causal, Offset, SlidingWindow

MAX_MASKING_FILL = -1e4
"""A fill above this may be of a score's own size."""


def keep_where_true(reader: Reader, keep: ScoreExpr, fill: float, *, drops: bool = False) -> list[Term]:
    """The score where `keep` holds, else `fill`; `drops`: that is as good as no key, whatever number it is."""
    if keep == TRUE:
        return []
    conditions = flatten("And", keep)
    if any(reader.wide(condition) and _read_as_tensor(reader, condition) is None for condition in conditions):
        whole = _read_as_tensor(reader, keep)
        if whole is not None:
            conditions = [whole]
    huge = drops or swallows_scores(fill, reader.dtype)
    result: list[Term] = []
    for condition in conditions:
        bound = _bound_by_difference(reader, condition, fill) if huge else None
        tensor = _read_as_tensor(reader, condition) if bound is None else None
        if bound is not None:
            result.append(Term(bound))
        elif tensor is not None and (drops or fill <= MAX_MASKING_FILL):
            inner = _without_not(tensor)
            assert isinstance(inner, Tensor)
            operand, arg = reader.tensor(inner)
            result.append(Term(BoolMask(arg.shape, fill), (Call("Not", (operand,)) if inner != tensor else operand,)))
        else:
            chosen = condition if tensor is None else tensor
            asked = _without_not(chosen)
            if asked is chosen:
                inside = Apply("Where", asked, SCORE, number(fill))
            else:
                inside = Apply("Where", asked, number(fill), SCORE)
            result.append(make_elementwise(reader, inside, name_function(condition)))
    return merge_bounds(result)


def _read_as_tensor(reader: Reader, c: ScoreExpr) -> ScoreExpr | None:
    """A condition as one tensor, or as the negation of one; None where computing the condition is better."""
    bare = _without_not(c)
    if isinstance(bare, Tensor):
        own = reader.as_tensor(c) if bare is not c else None
        return c if own is None else own
    return reader.as_tensor(c) if reader.wide(c) else None


def _without_not(c: ScoreExpr) -> ScoreExpr:
    """What a condition negates; the condition itself where it negates nothing."""
    return c.args[0] if isinstance(c, Apply) and c.op == "Not" else c


def _subtract_sides(reader: Reader, condition: ScoreExpr) -> Linear | None:
    """left - right of a comparison of whole numbers; None for any other condition."""
    if not isinstance(condition, Apply) or condition.op not in ("LessOrEqual", "Equal"):
        return None
    if not reader.algebra.is_whole(condition.args[0]):
        return None
    (left, left_constant), (right, right_constant) = (reader.algebra.linear(side) for side in condition.args)
    return add_terms(left, right, -1), left_constant - right_constant


def _bound_by_difference(reader: Reader, condition: ScoreExpr, fill: float) -> Causal | SlidingWindow | None:
    """A condition on key - query as a term."""
    found = _subtract_sides(reader, condition)
    if found is None:
        return None
    terms, rest = found
    if reader.shape[-2] == 1 and Q not in terms and abs(terms.get(K, 0)) == 1:
        terms = {**terms, Q: -terms[K]}  # the only query stands at 0
    sign = terms.get(K)
    if sign not in (1, -1) or terms.get(Q) != -sign:
        return None
    further = {e: n for e, n in terms.items() if e not in (K, Q)}
    at_end = further == {SKV: -sign, SQ: sign}
    if further and not at_end:
        return None
    offset: Offset = "end" if at_end else 0
    # sign * (k - q - start) + rest <= 0
    if isinstance(condition, Apply) and condition.op == "Equal":
        return SlidingWindow(left=sign * rest, right=-sign * rest, offset=offset, fill=fill)
    if sign > 0:
        right = -rest
        if not at_end:
            return Causal(right, fill)
        return Causal("end", fill) if right == 0 else SlidingWindow(right=right, offset="end", fill=fill)
    return SlidingWindow(left=-rest, offset=offset, fill=fill)


def merge_bounds(terms: list[Term]) -> list[Term]:
    """Bounds on key - query with the same fill and start are one window."""
    result: list[Term] = []
    for term in terms:
        new = term.term
        for i, other in enumerate(result):
            both = _intersect(other.term, new)
            if both is not None:
                result[i] = Term(both)
                break
        else:
            result.append(term)
    return result


def _intersect(a: object, b: object) -> Causal | SlidingWindow | None:
    if not isinstance(a, (Causal, SlidingWindow)) or not isinstance(b, (Causal, SlidingWindow)) or a.fill != b.fill:
        return None
    first, second = _as_window(a), _as_window(b)
    if first.offset != second.offset:
        return None
    offset = first.offset
    lefts = [window.left for window in (first, second) if window.left is not None]
    rights = [window.right for window in (first, second) if window.right is not None]
    left, right = min(lefts, default=None), min(rights, default=None)
    if left is None and right is not None and (offset == 0 or right == 0):
        return Causal(right if offset == 0 else "end", a.fill)
    return SlidingWindow(left, right, offset, a.fill)


def _as_window(mask: Causal | SlidingWindow) -> SlidingWindow:
    """The same mask as a window whose offset is 0 or "end"."""
    if isinstance(mask, Causal):
        if mask.offset == "end":
            return SlidingWindow(None, 0, "end", mask.fill)
        return SlidingWindow(None, mask.offset, 0, mask.fill)
    if not isinstance(mask.offset, int) or not mask.offset:
        return mask
    left = None if mask.left is None else mask.left - mask.offset
    right = None if mask.right is None else mask.right + mask.offset
    return replace(mask, left=left, right=right, offset=0)
