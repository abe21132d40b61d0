"""Equality saturation of a reduction program by egglog: the rules, compiled to egglog's language, and the facts that they ask for.

What can be carried by a loop, and which exponents cannot overflow, are facts about terms; where one holds, the term's class gets
one more node, `carried_sum` or `exp_safe`, which cost less. An e-graph grows until nothing new is found or a limit is reached.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from onnx_fa.derive.rules import RULES, Rule
from onnx_fa.derive.terms import BINARY, RANGES, REDUCTIONS, UNARY, Term

MOST_ROUNDS = 14
MOST_NODES = 6000
"""Limits of one saturation; softmax attention needs 9 rounds and some 150 nodes."""

Node = tuple[str, str, tuple[int, ...]]
"""(op, name or number, classes of the arguments)."""


@dataclass(frozen=True)
class Classes:
    """What an e-graph holds: the nodes of every class, and the class of each term that was asked for."""

    nodes: Mapping[int, tuple[Node, ...]]
    roots: Mapping[Term, int]
    rounds: int

    @property
    def size(self) -> int:
        return sum(map(len, self.nodes.values()))


class Saturation:
    """An e-graph of some terms, saturated. `bounded` are keys whose numbers are bounded so that their exponentials, and sums of
    them, are finite and not all zero."""

    def __init__(self, bounded: tuple[str, ...] = ()) -> None:
        # The library takes half a second to load, which commands that derive nothing need not wait for.
        from egglog import bindings

        self._graph: Any = bindings.EGraph()
        self._names: dict[Term, str] = {}
        self.rounds = 0
        self._run(_program())
        for name in bounded:
            self._run(f'(bounded (key_all "{name}"))')

    def _run(self, text: str) -> None:
        self._graph.run_program(*self._graph.parse_program(_capitalised(text)))

    def add(self, term: Term) -> None:
        """Holds the term."""
        if term not in self._names:
            self._names[term] = f"$t{len(self._names)}"
            self._run(f"(let {self._names[term]} {_text(term)})")

    def unite(self, a: Term, b: Term) -> None:
        """Says that two terms are the same number."""
        self._run(f"(union {_text(a)} {_text(b)})")

    def run(self) -> None:
        """Applies all rules until nothing is new, or a limit is reached."""
        before = -1
        for _ in range(MOST_ROUNDS):
            self._run("(run-schedule (saturate (run facts)) (run algebra) (saturate (run facts)))")
            self.rounds += 1
            size = sum(len(f.rows) for f in self._graph.freeze().functions.values())
            if size == before or size > MOST_NODES:
                break
            before = size

    def classes(self) -> Classes:
        """All nodes, by class."""
        frozen, ids = self._graph.freeze(), dict[Any, int]()
        nodes: dict[int, list[Node]] = {}

        def number(value: Any) -> int:
            return ids.setdefault(value, len(ids))

        roots: dict[Term, int] = {}
        for op, function in frozen.functions.items():
            if function.is_let_binding:
                (row,) = function.rows
                roots |= {t: number(row.output) for t, name in self._names.items() if name == op}
            elif function.output_sort == "T":
                for row in function.rows:
                    names = [x for x, sort in zip(row.inputs, function.input_sorts, strict=True) if sort != "T"]
                    args = [x for x, sort in zip(row.inputs, function.input_sorts, strict=True) if sort == "T"]
                    name = ""
                    if names:
                        float_ = function.input_sorts[0] == "f64"
                        name = (
                            repr(self._graph.value_to_f64(names[0]))
                            if float_
                            else self._graph.value_to_string(names[0])
                        )
                    nodes.setdefault(number(row.output), []).append((op.lower(), name, tuple(map(number, args))))
        return Classes({c: tuple(sorted(n)) for c, n in nodes.items()}, roots, self.rounds)


def term_of(node: Node, args: tuple[Term, ...]) -> Term:
    """The term of a node whose arguments are these terms."""
    op, name, _ = node
    if op in ("carried_sum", "carried_peak"):
        return Term(op.removeprefix("carried_"), args, range="before")
    if op == "exp_safe":
        return Term("exp", args)
    if op == "num":
        return Term("num", number=float(name))
    head, _, range_ = op.partition("_")
    return Term(head, args, name, range=range_)


def _text(term: Term) -> str:
    """The term in egglog's language. A name that begins with "?" is a variable."""
    if term.op == "var":
        return term.name
    if term.op == "num":
        return f"(num {term.number!r})"
    op = f"{term.op}_{term.range}" if term.range else term.op
    words = [op, *([_quoted(term.name)] if term.name else []), *map(_text, term.args)]
    return f"({' '.join(words)})"


_LEAVES = ("key", "row", "known", "old", "now", "num", "map", "across", "on", "here", "was", "carried")
_OPS = re.compile(rf"(\(|constructor )({'|'.join((*BINARY, *UNARY, *REDUCTIONS, *_LEAVES))})(?=[_ ])")


def _capitalised(text: str) -> str:
    """Ops with a capital, as egglog has functions of its own by such names."""
    return _OPS.sub(lambda m: m[1] + m[2].capitalize(), text)


def _quoted(name: str) -> str:
    return name.removeprefix("?") if name.startswith("?") else f'"{name}"'


@cache
def _program() -> str:
    return "\n".join([*_sorts(), *_facts(), *map(_rewrite, RULES)])


def _rewrite(rule: Rule) -> str:
    conditions = " ".join(f"({fact} {name})" for fact, name in rule.facts)
    when = f" :when ({conditions})" if conditions else ""
    return f"(rewrite {_text(rule.left)} {_text(rule.right)}{when} :ruleset algebra)"


def _sorts() -> Iterator[str]:
    yield "(sort T)"
    for op in (*(f"key_{r}" for r in RANGES), "row", "known", "old", "now"):
        yield f"(constructor {op} (String) T)"
    yield "(constructor num (f64) T)"
    yield "(constructor map (String T) T)"
    yield "(constructor across (String T) T)"
    for op in BINARY:
        yield f"(constructor {op} (T T) T)"
    reductions = [f"{op}_{r}" for op in REDUCTIONS for r in (*RANGES,)] + [f"carried_{op}" for op in REDUCTIONS]
    for op in (*UNARY, "exp_safe", "on", "here", "was", *reductions):
        yield f"(constructor {op} (T) T)"
    for fact in ("free", "keyed", "past", "fresh", "whole", "same", "positive", "nonpos", "bounded"):
        yield f"(relation {fact} (T))"
    yield "(ruleset facts)"
    yield "(ruleset algebra)"


def _facts() -> Iterator[str]:
    def fact(conditions: str, then: str) -> str:
        return f"(rule ({conditions}) ({then}) :ruleset facts)"

    for leaf in ("(row n)", "(known n)", "(num f)"):
        yield fact(f"(= x {leaf})", "(free x) (past x) (same x) (whole x)")
    yield fact("(= x (old n))", "(free x) (past x)")
    yield fact("(= x (now n))", "(free x) (whole x)")
    yield fact("(= x (key_all n))", "(whole x)")
    yield fact("(= x (key_before n))", "(past x)")
    for r in RANGES:
        yield fact(f"(= x (key_{r} n))", "(keyed x)")
    yield fact("(= x (now n))", "(fresh x)")
    for op in REDUCTIONS:
        yield fact(f"(= x ({op}_all a))", "(fresh x)")
        yield fact(f"(= x ({op}_all a)) (whole a)", "(whole x)")
    for word in ("keyed", "fresh"):
        for op in BINARY:
            yield fact(f"(= x ({op} a b)) ({word} a)", f"({word} x)")
            yield fact(f"(= x ({op} a b)) ({word} b)", f"({word} x)")
        for op in UNARY:
            yield fact(f"(= x ({op} a)) ({word} a)", f"({word} x)")
        yield fact(f"(= x (map n a)) ({word} a)", f"({word} x)")
    for word in ("free", "past", "whole", "same"):
        for op in BINARY:
            yield fact(f"(= x ({op} a b)) ({word} a) ({word} b)", f"({word} x)")
        for op in UNARY:
            yield fact(f"(= x ({op} a)) ({word} a)", f"({word} x)")
        yield fact(f"(= x (map n a)) ({word} a)", f"({word} x)")
    for op in REDUCTIONS:
        for r in RANGES:
            yield fact(f"(= x ({op}_{r} a))", "(free x)")
        yield fact(f"(= x ({op}_before a)) (past a)", f"(past x) (union x (carried_{op} a))")
    # A number less a maximum that it is part of is never positive; nor is an earlier maximum less a later one.
    for r in RANGES:
        yield fact(f"(= y (sub x (peak_{r} x)))", "(nonpos y)")
    yield fact("(= y (sub (on x) (peak_all x)))", "(nonpos y)")
    yield fact("(= y (sub (here x) (peak_all x)))", "(nonpos y)")
    yield fact("(= y (sub (peak_before (on x)) (peak_all x)))", "(nonpos y)")
    yield fact("(= x (sum_all a)) (positive a)", "(positive x)")
    for op in ("add", "mul", "div"):
        yield fact(f"(= x ({op} a b)) (positive a) (positive b)", "(positive x)")
    yield fact("(= x (across n a))", "(keyed x)")
    yield fact("(bounded (key_all n))", "(bounded (key_before n)) (bounded (key_block n))")
    for word in ("nonpos", "bounded"):
        yield fact(f"(= x (exp a)) ({word} a)", "(union x (exp_safe a))")
    yield fact("(= x (exp a))", "(positive x)")
