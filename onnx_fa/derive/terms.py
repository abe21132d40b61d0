"""Reduction programs over one rank, the keys: trees of maps and reductions (the Einsum cascades of FuseMax, Nayak et al., 2024).

A reduction is over all keys so far ("all"), those of earlier blocks ("before"), or those of this block ("block"). What a loop over
blocks may carry is a reduction over "before" whose body names nothing newer.

| op | arguments | meaning |
|---|---|---|
| key | name, range | a number for every key of a range: a score, a value |
| row | name | a number that is there before the first key, the same for all keys |
| known, old, now | name | a result of an earlier pass; a carried value before and after this block |
| num | number | a constant |
| add sub mul div max exp log | terms | elementwise |
| map | name, term | any other function of one number, of which nothing is known |
| across | name, term | a number for every key that follows from those of all keys, such as a rank or a prefix sum |
| sum, peak | range, term | the sum and the largest over the keys of a range |
| on, was | term | the body for the keys of `before` (on) or `block` (here); a row's number before this block (was) |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

Range = Literal["all", "before", "block"]
RANGES: tuple[Range, ...] = ("all", "before", "block")
REDUCTIONS = ("sum", "peak")
"""The monoids: (+, 0) and (max, -inf)."""
BINARY = ("add", "sub", "mul", "div", "max")
UNARY = ("exp", "log")


@dataclass(frozen=True)
class Term:
    """A node. `name` is what the op's first word says: a name, a range or a number; "" where the op has none."""

    op: str
    args: tuple[Term, ...] = ()
    name: str = ""
    number: float = 0.0
    range: str = ""

    def __add__(self, other: Term) -> Term:
        return Term("add", (self, other))

    def __sub__(self, other: Term) -> Term:
        return Term("sub", (self, other))

    def __mul__(self, other: Term) -> Term:
        return Term("mul", (self, other))

    def __truediv__(self, other: Term) -> Term:
        return Term("div", (self, other))

    def __str__(self) -> str:
        return show(self)


def key(name: str, range_: str = "all") -> Term:
    return Term("key", name=name, range=range_)


def row(name: str) -> Term:
    return Term("row", name=name)


def known(name: str) -> Term:
    return Term("known", name=name)


def old(name: str) -> Term:
    return Term("old", name=name)


def now(name: str) -> Term:
    return Term("now", name=name)


def num(value: float) -> Term:
    return Term("num", number=float(value))


def exp(x: Term) -> Term:
    return Term("exp", (x,))


def log(x: Term) -> Term:
    return Term("log", (x,))


def maximum(a: Term, b: Term) -> Term:
    return Term("max", (a, b))


def apply(name: str, x: Term) -> Term:
    """Any function of one number, by name."""
    return Term("map", (x,), name=name)


def across(name: str, x: Term) -> Term:
    """What is made of all keys' numbers together, by name: a sort, a scan, a threshold."""
    return Term("across", (x,), name=name)


def total(body: Term, range_: str = "all") -> Term:
    """The sum over keys."""
    return Term("sum", (body,), range=range_)


def peak(body: Term, range_: str = "all") -> Term:
    """The largest over keys."""
    return Term("peak", (body,), range=range_)


def var(name: str) -> Term:
    """Anything, in a pattern."""
    return Term("var", name=name)


def parts(term: Term) -> Iterator[Term]:
    """The term and everything in it, with repeats."""
    yield term
    for a in term.args:
        yield from parts(a)


def rebuild(term: Term, change: Callable[[Term], Term]) -> Term:
    """`term` with its arguments changed."""
    return Term(term.op, tuple(map(change, term.args)), term.name, term.number, term.range) if term.args else term


def replace_parts(term: Term, put: dict[Term, Term]) -> Term:
    """`term` with whatever `put` names in its place, from the top."""
    return put[term] if term in put else rebuild(term, lambda a: replace_parts(a, put))


def in_range(term: Term, range_: str) -> Term:
    """`term`, which is about "all" keys, about those of another range; what it has reduced, too."""
    if term.range == "all":
        return Term(term.op, tuple(in_range(a, range_) for a in term.args), term.name, term.number, range_)
    return rebuild(term, lambda a: in_range(a, range_))


def about_all(term: Term) -> Term:
    """`term` about all keys, whichever it is about: what earlier keys gave is the same number of theirs."""
    made = rebuild(term, about_all)
    return Term(made.op, made.args, made.name, made.number, "all") if made.range else made


def names_key(term: Term, names: tuple[str, ...]) -> bool:
    """Whether one of these keys is in a term."""
    return any(p.op == "key" and p.name in names for p in parts(term))


def varies(term: Term) -> bool:
    """Whether a term has a number for every key."""
    if term.op in ("key", "across"):
        return True
    return term.op not in REDUCTIONS and any(varies(a) for a in term.args)


_SIGNS = {"add": "+", "sub": "-", "mul": "·", "div": "/"}
_STRENGTH = {"add": 1, "sub": 1, "mul": 2, "div": 2}
_MARKS = {"all": "", "before": "⁻", "block": "°"}
_NAMES = {"sum": "Σ", "peak": "max"}


def show(term: Term, strength: int = 0) -> str:
    """The term as written by hand: x⁻ is of earlier blocks, x° of this block, x' a carried value after this block."""
    match term.op:
        case "key":
            return term.name + _MARKS[term.range] + "ₖ"
        case "row" | "old" | "known" | "var":
            return term.name
        case "now":
            return term.name + "'"
        case "num":
            return f"{term.number:g}"
        case "sum" | "peak":
            return f"{_NAMES[term.op]}{_MARKS[term.range]}({show(term.args[0])})"
        case "map" | "across" | "exp" | "log" | "max" | "on" | "here" | "was":
            name = term.name.lower() if term.op in ("map", "across") else term.op
            return f"{name}({', '.join(map(show, term.args))})"
    own = _STRENGTH[term.op]
    a, b = term.args
    text = f"{show(a, own)} {_SIGNS[term.op]} {show(b, own + (term.op in ('sub', 'div')))}"
    return f"({text})" if own < strength else text
