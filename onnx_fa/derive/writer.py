"""Writes a term in whatever language a kernel is written in: each op once, what occurs twice once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from onnx_fa.derive.terms import Term

T = TypeVar("T")


class Language(Protocol[T]):
    """The ops of terms on values of some kind: names of SSA values, of variables, nodes of a graph, arrays."""

    def add(self, a: T, b: T) -> T: ...

    def sub(self, a: T, b: T) -> T: ...

    def mul(self, a: T, b: T) -> T: ...

    def div(self, a: T, b: T) -> T: ...

    def max(self, a: T, b: T) -> T: ...

    def exp(self, x: T) -> T: ...

    def log(self, x: T) -> T: ...

    def map(self, name: str, x: T) -> T: ...

    def num(self, value: float) -> T: ...


def write(term: Term, language: Language[T], known: Mapping[Term, T], memo: dict[Term, T] | None = None) -> T:
    """The value of a term whose leaves are `known`. `memo` keeps what was written, for the next term of the same place. Raises
    KeyError for a leaf, or a reduction, that is not known."""
    memo = {} if memo is None else memo
    if term in known:
        return known[term]
    if term not in memo:
        args = [write(a, language, known, memo) for a in term.args]
        match term.op:
            case "num":
                memo[term] = language.num(term.number)
            case "map":
                memo[term] = language.map(term.name, args[0])
            case "add" | "sub" | "mul" | "div" | "max":
                memo[term] = getattr(language, term.op)(*args)
            case "exp" | "log":
                memo[term] = getattr(language, term.op)(args[0])
            case _:
                raise KeyError(f"{term} is not known here")
    return memo[term]
