"""The rules by which a reduction program may be rewritten, as a flat table. None of them knows attention.

A rule holds in exact arithmetic for all finite numbers under its conditions; where it needs more (an exponent that cannot be
positive, a sum that is not zero) the conditions are facts about ranges of numbers, or the cost says what it may lose (cost.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from onnx_fa.derive.terms import BINARY, UNARY, Term, exp, key, maximum, num, peak, total, var

Fact = Literal["free", "past", "keyed", "fresh", "whole", "same", "positive", "bounded"]
"""free: one number for all keys. keyed: a number for every key. past: known when the block before is done. fresh: a
reduction of all keys so far is in it. whole: made of
things over all keys so far alone. same: not changed by this block (a row's or an earlier
pass's number). positive: above 0. bounded: between bounds within which exponentials, and sums of them, are finite and not 0."""


@dataclass(frozen=True)
class Rule:
    """`left` may be replaced by `right` where the `facts` about its variables hold. `named` rules are the steps that a derivation
    tells; the others only move things to where a named one applies."""

    name: str
    left: Term
    right: Term
    proof: str
    facts: tuple[tuple[Fact, str], ...] = ()
    named: bool = True


ONE = key("1")
"""1 for every key: its sum is their number."""
_a, _b, _c, _x, _y, _s = map(var, "abcxys")


def _on(range_: str, x: Term) -> Term:
    """The term for the keys of one range."""
    return Term("on" if range_ == "before" else "here", (x,))


def _was(x: Term) -> Term:
    return Term("was", (x,))


def _rules() -> Iterator[Rule]:
    yield Rule("a division leaves a sum", total(_a / _b), total(_a) / _b, "Σ aₖ/b = (Σ aₖ)/b", (("free", "b"),))
    yield Rule("a factor leaves a sum", total(_a * _b), _a * total(_b), "Σ a bₖ = a Σ bₖ", (("free", "a"),))
    yield Rule(
        "a common divisor cancels", (_a / _c) / (_b / _c), _a / _b, "(a/c)/(b/c) = a/b for c > 0", (("positive", "c"),)
    )
    yield Rule(
        "exp turns a difference into a quotient",
        exp(_x - _b),
        exp(_x) / exp(_b),
        "e^(x-b) = e^x / e^b, where no e^x overflows",
        (("bounded", "x"), ("free", "b")),
    )
    yield Rule("a sum of differences", total(_a - _b), total(_a) - total(_b), "Σ (aₖ-bₖ) = Σ aₖ - Σ bₖ")
    yield Rule("a sum of sums", total(_a + _b), total(_a) + total(_b), "Σ (aₖ+bₖ) = Σ aₖ + Σ bₖ")
    yield Rule("a sum of one number", total(_a), _a * total(ONE), "Σ a = a·n", (("free", "a"),))
    yield Rule("a difference in a product", (_a - _b) * _c, _a * _c - _b * _c, "(a-b)c = ac - bc", (("free", "b"),))
    yield Rule(
        "a sum is over earlier keys and this block's",
        total(_x),
        total(_on("before", _x), "before") + total(_on("block", _x), "block"),
        "+ is associative",
    )
    yield Rule(
        "a maximum is over earlier keys and this block's",
        peak(_x),
        maximum(peak(_on("before", _x), "before"), peak(_on("block", _x), "block")),
        "max is associative",
    )
    yield Rule(
        "exp turns a shift into a factor",
        exp(_x - _b),
        exp(_x - _was(_b)) * exp(_was(_b) - _b),
        "e^(x-b) = e^(x-a) e^(a-b), with a what b was before this block",
        (("past", "x"), ("keyed", "x"), ("free", "b"), ("fresh", "b")),
    )
    yield Rule(
        "a square turns a shift into a sum",
        (_x - _b) * (_x - _b),
        (_x - _was(_b)) * (_x - _was(_b))
        + (num(2) * (_was(_b) - _b)) * (_x - _was(_b))
        + (_was(_b) - _b) * (_was(_b) - _b),
        "(x-b)² = (x-a)² + 2(a-b)(x-a) + (a-b)² (Chan, Golub, LeVeque 1979)",
        (("past", "x"), ("keyed", "x"), ("free", "b"), ("fresh", "b")),
    )
    yield from _earlier()
    yield from _moves()


def _earlier() -> Iterator[Rule]:
    """Sums over earlier keys, as those over all."""
    yield Rule(
        "a factor leaves a sum (earlier keys)",
        total(_a * _b, "before"),
        _a * total(_b, "before"),
        "Σ a bₖ = a Σ bₖ",
        (("free", "a"),),
    )
    yield Rule(
        "a sum of sums (earlier keys)",
        total(_a + _b, "before"),
        total(_a, "before") + total(_b, "before"),
        "Σ (aₖ+bₖ) = Σ aₖ + Σ bₖ",
    )
    yield Rule(
        "a sum of one number (earlier keys)",
        total(_a, "before"),
        _a * total(Term("key", name="1", range="before"), "before"),
        "Σ a = a·n",
        (("free", "a"),),
    )


def _moves() -> Iterator[Rule]:
    """Which keys a term is about, pushed down to them; and the laws of products."""

    def quiet(name: str, left: Term, right: Term, proof: str, *facts: tuple[Fact, str]) -> Rule:
        return Rule(name, left, right, proof, facts, named=False)

    for range_ in ("before", "block"):
        yield quiet(f"a free number of {range_}", _on(range_, _x), _x, "it does not vary along the keys", ("free", "x"))
        for op in BINARY:
            pair = Term(op, (_x, _y))
            pushed = Term(op, (_on(range_, _x), _on(range_, _y)))
            yield quiet(f"{op} of {range_}", _on(range_, pair), pushed, "elementwise")
        for f in UNARY:
            yield quiet(f"{f} of {range_}", _on(range_, Term(f, (_x,))), Term(f, (_on(range_, _x),)), "elementwise")
        named = Term("map", (_x,), name="?f")
        yield quiet(
            f"a function of {range_}", _on(range_, named), Term("map", (_on(range_, _x),), name="?f"), "elementwise"
        )
        leaf = Term("key", name="?n", range="all")
        yield quiet(f"a key of {range_}", _on(range_, leaf), Term("key", name="?n", range=range_), "by definition")
    was_leaf = Term("key", name="?n", range="all")
    yield quiet("what a key was", _was(was_leaf), Term("key", name="?n", range="before"), "an earlier key")
    was_map = Term("map", (_x,), name="?f")
    yield quiet(
        "what a function was",
        _was(was_map),
        Term("map", (_was(_x),), name="?f"),
        "of what its part was",
        ("whole", "x"),
    )
    for op in BINARY:
        yield quiet(
            f"what {op} was",
            _was(Term(op, (_x, _y))),
            Term(op, (_was(_x), _was(_y))),
            "of what its parts were",
            ("whole", "x"),
            ("whole", "y"),
        )
    for f in UNARY:
        yield quiet(f"what {f} was", _was(Term(f, (_x,))), Term(f, (_was(_x),)), "of what its part was", ("whole", "x"))
    yield quiet("what a sum was", _was(total(_x)), total(_was(_x), "before"), "the sum over earlier keys")
    yield quiet("what a maximum was", _was(peak(_x)), peak(_was(_x), "before"), "the largest of earlier keys")
    named_now = Term("now", name="?n")
    yield quiet("what a carried value was", _was(named_now), Term("old", name="?n"), "by definition")
    yield quiet("what does not change", _was(_x), _x, "no block changes it", ("same", "x"))
    inverse = Term("map", (_b,), name="Reciprocal")
    yield quiet("a division by one number", _a / _b, _a * inverse, "a/b = a·(1/b)", ("keyed", "a"), ("free", "b"))
    yield quiet("a product's order", _a * _b, _b * _a, "ab = ba")
    yield quiet("a product's brackets", (_a * _b) * _c, _a * (_b * _c), "(ab)c = a(bc)")
    yield quiet("a quotient in a product", (_a / _b) * _c, (_a * _c) / _b, "(a/b)c = (ac)/b")


RULES: tuple[Rule, ...] = tuple(_rules())
