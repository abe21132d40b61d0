"""Score functions as Elementwise terms, with what people call them."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_fa.match import NoMatch, Term
from onnx_fa.patterns.masks.expressions import TooComplex, parts
from onnx_fa.patterns.masks.reader import Reader
from onnx_fa.spec.attention import Elementwise
from onnx_fa.spec.expr import K, Q, ScoreExpr, is_small


def map_score(reader: Reader, expr: ScoreExpr, tensors: Sequence[ScoreExpr], label: str) -> Term:
    """`expr`, whose tensors are the expressions given."""

    def put(e: ScoreExpr) -> ScoreExpr:
        if e[0] == "tensor":
            return tensors[e[1]]
        return e if e[0] in ("score", "q", "k", "Sq", "Skv", "f", "i", "b") else (e[0], *map(put, e[1:]))

    if not is_small(expr):
        raise TooComplex
    return make_elementwise(reader, put(expr), label)


def make_elementwise(reader: Reader, expr: ScoreExpr, label: str) -> Term:
    """An Elementwise term with its tensors numbered. Raises ValueError where the kinds in it do not fit."""
    order: list[ScoreExpr] = []

    def renumber(e: ScoreExpr) -> ScoreExpr:
        if e[0] == "tensor":
            if e not in order:
                order.append(e)
            return ("tensor", order.index(e))
        return e if e[0] in ("score", "q", "k", "Sq", "Skv", "f", "i", "b") else (e[0], *map(renumber, e[1:]))

    if not is_small(expr):
        raise TooComplex
    numbered = renumber(expr)
    read = [reader.tensor(e) for e in order]
    if any(arg.dtype == "f64" for _, arg in read) and reader.dtype != "f64":
        raise NoMatch("a mask of element type f64 on scores of another")
    return Term(Elementwise(numbered, tuple(arg for _, arg in read), label), tuple(value for value, _ in read))


def name_function(e: ScoreExpr) -> str:
    """What people call such a term."""
    everything = list(parts(e))
    heads = {x[0] for x in everything}
    for x in everything:
        if x[0] == "Equal":
            inner = {y[0] for y in parts(x)}
            if "Div" in inner:
                return "chunked"
            if "Mod" in inner:
                return "dilated"
            if sum(y[0] == "tensor" for y in parts(x)) == 2:
                return "document"
    if "Mod" in heads:
        return "dilated"
    if "ToFloat" in heads and {Q, K} <= set(everything):
        return "alibi"
    keep = e[1] if e[0] == "Where" else e
    if keep[0] == "Or" and K in everything:
        return "prefix"
    if K in everything and "tensor" in heads and Q not in everything:
        return "padding"
    if {Q, K} <= set(everything):
        return "window"
    return "mask" if "tensor" in heads else "bias"
