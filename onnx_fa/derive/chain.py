"""The steps from a program to its cheapest form, as a lecturer would write them: one named rule at a time, wherever it applies.

Terms are kept in a normal form (products flattened, quotients in front of products, ranges of keys pushed down to the keys), which
stands for the unnamed rules. The path is the shortest: breadth first, until a term costs what the e-graph found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from onnx_fa.derive.cost import OPERATIONS, Cost, is_past, price
from onnx_fa.derive.factors import factors_of, product
from onnx_fa.derive.rules import RULES, Rule
from onnx_fa.derive.search import Derivation
from onnx_fa.derive.terms import REDUCTIONS, Term, about_all, names_key, old, parts, rebuild, show, varies

MOST_TERMS = 3000
_SEVERAL = "several rules at once, by the e-graph"


@dataclass(frozen=True)
class Step:
    """A form of the program and the rule that made it of the one before ("" for the program itself). `reductions`: numbers that
    must be held per row, `wide` of them with a column for each of V; `operations`: per score, in additions."""

    term: Term
    rule: str
    proof: str
    passes: int
    reductions: int
    wide: int
    operations: int

    @property
    def cascade(self) -> str:
        return show(self.term)

    def bytes_held(self, columns: int) -> int:
        """Bytes of f32 per row, for a V of so many columns."""
        return 4 * (self.reductions - self.wide + self.wide * columns)


def chain_of(derivation: Derivation, output: str) -> list[Step]:
    """The steps to the form that was chosen for an output. Where no path is found within MOST_TERMS, the last step says so."""
    program = derivation.program
    ((best, cost),) = [(t, c) for name, t, c in derivation.best if name == output]
    start = normalise(dict(program.outputs)[output])
    goal = _worth(cost)
    reached: dict[Term, tuple[Term | None, str, str]] = {start: (None, "", "")}
    front, last = [start], None
    if _worth(price(start, program.bounded)) <= goal:
        last = start
    while front and last is None and len(reached) < MOST_TERMS:
        following: list[Term] = []
        for term in front:
            for rule in RULES:
                if not rule.named:
                    continue
                new = _everywhere(rule, term, program.bounded)
                if new not in reached:
                    reached[new] = (term, rule.name, rule.proof)
                    following.append(new)
        done = [t for t in following if _worth(price(t, program.bounded)) <= goal]
        last = min(done, key=lambda t: price(t, program.bounded), default=None)
        front = following
    steps: list[Step] = []
    at: Term | None = last
    while at is not None:
        before, name, proof = reached[at]
        steps.insert(0, _step(at, name, proof, program.wide, program.bounded))
        at = before
    if not steps:
        steps = [
            _step(start, "", "", program.wide, program.bounded),
            _step(normalise(best), _SEVERAL, "", program.wide, program.bounded),
        ]
    return steps


def _worth(cost: Cost) -> tuple[bool, int, int]:
    return cost.keeps, cost.overflows, cost.ready


def _step(term: Term, rule: str, proof: str, wide: tuple[str, ...], bounded: tuple[str, ...]) -> Step:
    held = {about_all(p) for p in parts(term) if p.op in REDUCTIONS}
    columns = {p for p in held if names_key(p, wide)}
    keyed = {about_all(p) for p in _streamed(term) if p.op != "key" and varies(p)} | held
    count = sum(1 if p.op in REDUCTIONS else OPERATIONS.get(p.op, 1) for p in keyed)
    return Step(term, rule, proof, price(term, bounded).ready, len(held), len(columns), count)


def _streamed(term: Term) -> Iterator[Term]:
    """What is computed as keys stream by: everything but what earlier blocks left."""
    yield term
    if not (term.op in REDUCTIONS and term.range == "before" and is_past(term)):
        for a in term.args:
            yield from _streamed(a)


# Facts, as the e-graph's.


def _is_fresh(term: Term) -> bool:
    return any((p.op in REDUCTIONS and p.range == "all") or p.op == "now" for p in parts(term))


def _is_positive(term: Term) -> bool:
    match term.op:
        case "exp":
            return True
        case "sum":
            return term.range == "all" and _is_positive(term.args[0])
        case "add" | "mul" | "div":
            return all(map(_is_positive, term.args))
    return term.op == "num" and term.number > 0


def _holds(fact: str, term: Term, bounded: tuple[str, ...]) -> bool:
    match fact:
        case "free":
            return not varies(term)
        case "keyed":
            return varies(term)
        case "past":
            return is_past(term)
        case "fresh":
            return _is_fresh(term)
        case "positive":
            return _is_positive(term)
        case "bounded":
            return term.op == "key" and term.name in bounded
    return all(p.op not in ("key", "now", "old", *REDUCTIONS) for p in parts(term))


# Rewriting.


@cache
def normalise(term: Term) -> Term:
    """Products flattened and sorted, quotients in front of them; ranges of keys at the keys."""
    term = rebuild(term, normalise)
    match term.op:
        case "on":
            return _on(term.args[0], "before")
        case "here":
            return _on(term.args[0], "block")
        case "was":
            return _was(term.args[0])
        case "mul":
            factors = factors_of(term)
            for i, f in enumerate(factors):
                if f.op == "div":
                    rest = [*factors[:i], f.args[0], *factors[i + 1 :]]
                    return normalise(product(rest) / f.args[1])
            return product(sorted(factors, key=show))
    return term


def _on(term: Term, range_: str) -> Term:
    if not varies(term):
        return term
    if term.op == "key":
        return Term("key", name=term.name, range=range_)
    return normalise(rebuild(term, lambda a: _on(a, range_)))


def _was(term: Term) -> Term:
    if term.op == "now":
        return old(term.name)
    if term.range:
        return Term(term.op, tuple(map(_was, term.args)), term.name, term.number, "before")
    return normalise(rebuild(term, _was))


def _everywhere(rule: Rule, term: Term, bounded: tuple[str, ...]) -> Term:
    """The term with the rule applied once at every place where it holds, from within."""
    term = normalise(rebuild(term, lambda a: _everywhere(rule, a, bounded)))
    for found in _match(rule.left, term, {}):
        if all(_holds(fact, found[name], bounded) for fact, name in rule.facts):
            return normalise(_put(rule.right, found))
    return term


def _match(pattern: Term, term: Term, found: Mapping[str, Term]) -> Iterator[Mapping[str, Term]]:
    """All ways in which a term is the pattern; of a product, any factors may be either side, as many as can be the first."""
    if pattern.op == "var":
        if found.get(pattern.name, term) == term:
            yield {**found, pattern.name: term}
        return
    if pattern.op != term.op or pattern.range != term.range or pattern.name != term.name:
        return
    if term.op == "mul":
        factors = factors_of(term)
        for size in range(len(factors) - 1, 0, -1):
            for chosen in combinations(range(len(factors)), size):
                sides = [[f for i, f in enumerate(factors) if (i in chosen) == first] for first in (True, False)]
                for one in _match(pattern.args[0], product(sides[0]), found):
                    yield from _match(pattern.args[1], product(sides[1]), one)
        return
    if pattern.op == "num" and pattern.number != term.number:
        return
    yield from _match_all(list(zip(pattern.args, term.args, strict=True)), found)


def _match_all(pairs: list[tuple[Term, Term]], found: Mapping[str, Term]) -> Iterator[Mapping[str, Term]]:
    if not pairs:
        yield found
        return
    (pattern, term), *rest = pairs
    for one in _match(pattern, term, found):
        yield from _match_all(rest, one)


def _put(pattern: Term, found: Mapping[str, Term]) -> Term:
    return found[pattern.name] if pattern.op == "var" else rebuild(pattern, lambda a: _put(a, found))
