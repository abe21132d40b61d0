"""Products as lists of factors, in the order that kernels make them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from onnx_fa.derive.terms import Term, num


def factors_of(term: Term) -> list[Term]:
    """What a term is the product of."""
    return [f for a in term.args for f in factors_of(a)] if term.op == "mul" else [term]


def product(factors: Iterable[Term]) -> Term:
    """The product of factors; 1 of none."""
    found = list(factors)
    return reduce(lambda a, b: a * b, found) if found else num(1)


def without(term: Term, factor: Term) -> Term | None:
    """A product without one of its factors; None where it has not that factor."""
    found = factors_of(term)
    if factor not in found:
        return None
    found.remove(factor)
    return product(found)
