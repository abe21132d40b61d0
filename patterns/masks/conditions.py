"""Where a condition holds, the score; elsewhere a fill. Conditions on key - query become Causal and SlidingWindow, tensors
BoolMask."""

from __future__ import annotations

from dataclasses import replace

from onnx_fa.match import Call, Term
from onnx_fa.patterns.masks.elementwise import make_elementwise, name_function
from onnx_fa.patterns.masks.expressions import TRUE, flatten, number
from onnx_fa.patterns.masks.reader import Reader
from onnx_fa.patterns.masks.sums import Linear
from onnx_fa.patterns.masks.swallowing import swallows_scores
from onnx_fa.spec.expr import SCORE, SKV, SQ, Apply, K, Q, ScoreExpr, Tensor
from onnx_fa.spec.terms import BoolMask, Causal, Offset, SlidingWindow

MAX_MASKING_FILL = -1e4
"""A fill above this may be of a score's own size."""


def keep_where_true(reader: Reader, keep: ScoreExpr, fill: float) -> list[Term]:
    """The score where `keep` holds, else `fill`."""
    if keep == TRUE:
        return []
    conditions = flatten("And", keep)
    if any(reader.wide(c) and _read_as_tensor(reader, c) is None for c in conditions):
        whole = _read_as_tensor(reader, keep)
        if whole is not None:
            conditions = [whole]
    huge = swallows_scores(fill, reader.dtype)
    result: list[Term] = []
    for c in conditions:
        bound = _bound_by_difference(reader, c, fill) if huge else None
        tensor = _read_as_tensor(reader, c) if bound is None else None
        if bound is not None:
            result.append(Term(bound))
        elif tensor is not None and fill <= MAX_MASKING_FILL:
            inner = _without_not(tensor)
            assert isinstance(inner, Tensor)
            operand, arg = reader.tensor(inner)
            result.append(Term(BoolMask(arg.shape, fill), (Call("Not", (operand,)) if inner != tensor else operand,)))
        else:
            chosen = c if tensor is None else tensor
            asked = _without_not(chosen)
            if asked is chosen:
                inside = Apply("Where", asked, SCORE, number(fill))
            else:
                inside = Apply("Where", asked, number(fill), SCORE)
            result.append(make_elementwise(reader, inside, name_function(c)))
    return merge_bounds(result)


def _read_as_tensor(reader: Reader, c: ScoreExpr) -> ScoreExpr | None:
    """A condition as one tensor, or the negation of one, if that is what it is best read as."""
    bare = _without_not(c)
    if isinstance(bare, Tensor):
        own = reader.as_tensor(c) if bare is not c else None
        return c if own is None else own
    return reader.as_tensor(c) if reader.wide(c) else None


def _without_not(c: ScoreExpr) -> ScoreExpr:
    """What a condition negates; the condition itself where it negates nothing."""
    return c.args[0] if isinstance(c, Apply) and c.op == "Not" else c


def _subtract_sides(reader: Reader, c: ScoreExpr) -> Linear | None:
    if not isinstance(c, Apply) or c.op not in ("LessOrEqual", "Equal") or not reader.algebra.is_whole(c.args[0]):
        return None
    (a, x), (b, y) = (reader.algebra.linear(side) for side in c.args)
    total = {e: a.get(e, 0) - b.get(e, 0) for e in {*a, *b}}
    return {e: n for e, n in total.items() if n}, x - y


def _bound_by_difference(reader: Reader, c: ScoreExpr, fill: float) -> Causal | SlidingWindow | None:
    """A condition on key - query as a term."""
    found = _subtract_sides(reader, c)
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
    if isinstance(c, Apply) and c.op == "Equal":
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
    x, y = _as_window(a), _as_window(b)
    if x.offset != y.offset:
        return None
    lefts = [w.left for w in (x, y) if w.left is not None]
    rights = [w.right for w in (x, y) if w.right is not None]
    left, right = min(lefts, default=None), min(rights, default=None)
    if left is None and right is not None and (x.offset == 0 or right == 0):
        return Causal(right if x.offset == 0 else "end", a.fill)
    return SlidingWindow(left, right, x.offset, a.fill)


def _as_window(a: Causal | SlidingWindow) -> SlidingWindow:
    if isinstance(a, SlidingWindow):
        if isinstance(a.offset, int) and a.offset:
            left, right = (
                (None if a.left is None else a.left - a.offset),
                (None if a.right is None else a.right + a.offset),
            )
            return replace(a, left=left, right=right, offset=0)
        return a
    return SlidingWindow(None, 0, "end", a.fill) if a.offset == "end" else SlidingWindow(None, a.offset, 0, a.fill)
