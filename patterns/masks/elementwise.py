"""Score functions as Elementwise terms, with what people call them."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_fa.match import NoMatch, Term
from onnx_fa.patterns.masks.expressions import TooComplex
from onnx_fa.patterns.masks.reader import Reader
from onnx_fa.spec.expr import Apply, K, Q, ScoreExpr, Tensor, is_small, parts, substitute
from onnx_fa.spec.terms import Elementwise


def map_score(reader: Reader, expr: ScoreExpr, tensors: Sequence[ScoreExpr], label: str) -> Term:
    """`expr`, whose tensors are the expressions given."""

    def put(leaf: ScoreExpr) -> ScoreExpr:
        return tensors[leaf.index] if isinstance(leaf, Tensor) else leaf

    if not is_small(expr):
        raise TooComplex
    return make_elementwise(reader, substitute(expr, put), label)


def make_elementwise(reader: Reader, expr: ScoreExpr, label: str) -> Term:
    """An Elementwise term with its tensors numbered. Raises ValueError where the kinds in it do not fit."""
    order: list[Tensor] = []

    def renumber(leaf: ScoreExpr) -> ScoreExpr:
        if not isinstance(leaf, Tensor):
            return leaf
        if leaf not in order:
            order.append(leaf)
        return Tensor(order.index(leaf))

    if not is_small(expr):
        raise TooComplex
    numbered = substitute(expr, renumber)
    read = [reader.tensor(e) for e in order]
    if any(arg.dtype == "f64" for _, arg in read) and reader.dtype != "f64":
        raise NoMatch("a mask of element type f64 on scores of another")
    return Term(Elementwise(numbered, tuple(arg for _, arg in read), label), tuple(value for value, _ in read))


def name_function(e: ScoreExpr) -> str:
    """What people call such a term."""
    everything = list(parts(e))
    for x in everything:
        if isinstance(x, Apply) and x.op == "Equal":
            compared = _ops(x)
            if "Div" in compared:
                return "chunked"
            if "Mod" in compared:
                return "dilated"
            if sum(isinstance(y, Tensor) for y in parts(x)) == 2:
                return "document"
    ops = _ops(e)
    if "Mod" in ops:
        return "dilated"
    if "ToFloat" in ops and {Q, K} <= set(everything):
        return "alibi"
    keep = e.args[0] if isinstance(e, Apply) and e.op == "Where" else e
    if isinstance(keep, Apply) and keep.op == "Or" and K in everything:
        return "prefix"
    reads_tensor = any(isinstance(x, Tensor) for x in everything)
    if K in everything and reads_tensor and Q not in everything:
        return "padding"
    if {Q, K} <= set(everything):
        return "window"
    return "mask" if reads_tensor else "bias"


def _ops(e: ScoreExpr) -> set[str]:
    """The names of the ops in an expression."""
    return {x.op for x in parts(e) if isinstance(x, Apply)}
