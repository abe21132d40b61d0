"""The steps from a program to its cheapest form, as a lecturer would write them: one named rule at a time, wherever it applies.

Terms are kept in a normal form (products flattened, quotients in front of products, ranges of keys pushed down to the keys), which
stands for the unnamed rules. The path is the shortest: breadth first, until a term costs what the e-graph found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from onnx_fa.derive.cost import OPERATIONS, Cost, cost_of
from onnx_fa.derive.factors import factors_of, product
from onnx_fa.derive.rules import RULES, Rule
from onnx_fa.derive.search import Derivation
from onnx_fa.derive.terms import REDUCTIONS, Term, in_range, old, parts, rebuild, show, varies

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
    if _worth(priced(start, program.bounded)) <= goal:
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
        done = [t for t in following if _worth(priced(t, program.bounded)) <= goal]
        last = min(done, key=lambda t: priced(t, program.bounded), default=None)
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


def _worth(cost: Cost) -> tuple[bool, int, int, int]:
    return cost.keeps, cost.overflows, cost.ready, 0


def _step(term: Term, rule: str, proof: str, wide: tuple[str, ...], bounded: tuple[str, ...]) -> Step:
    held = {in_range(_as_all(p), "all") for p in parts(term) if p.op in REDUCTIONS}
    columns = {p for p in held if any(k.op == "key" and k.name in wide for k in parts(p))}
    keyed = {_as_all(p) for p in _streamed(term) if p.op != "key" and varies(p)} | held
    count = sum(1 if p.op in REDUCTIONS else OPERATIONS.get(p.op, 1) for p in keyed)
    return Step(term, rule, proof, priced(term, bounded).ready, len(held), len(columns), count)


def _as_all(term: Term) -> Term:
    """The term about all keys, whichever it is about: what earlier keys gave is the same number of theirs."""
    made = rebuild(term, _as_all)
    return Term(made.op, made.args, made.name, made.number, "all") if made.range else made


def _streamed(term: Term) -> Iterator[Term]:
    """What is computed as keys stream by: everything but what earlier blocks left."""
    yield term
    if not (term.op in REDUCTIONS and term.range == "before" and is_past(term)):
        for a in term.args:
            yield from _streamed(a)


# Facts, as the e-graph's.


@cache
def is_past(term: Term) -> bool:
    """Known when the block before is done."""
    if term.op in ("key", *REDUCTIONS):
        return term.range == "before" and all(map(is_past, term.args))
    return term.op != "now" and all(map(is_past, term.args))


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


def _is_safe(x: Term, bounded: tuple[str, ...]) -> bool:
    """Whether the exponential of x does not overflow."""
    if x.op == "key" and x.name in bounded:
        return True
    if x.op != "sub":
        return False
    a, b = x.args
    if b.op != "peak":
        return False
    inner = b.args[0]
    if b.range == "all":
        return a in (inner, *(in_range(inner, r) for r in ("before", "block"))) or a == in_range(b, "before")
    return a == inner


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


def priced(term: Term, bounded: tuple[str, ...]) -> Cost:
    """What a term costs. A sum over earlier keys that nothing carries is another pass."""
    op = f"{term.op}_{term.range}" if term.range else term.op
    if term.op in REDUCTIONS and term.range == "before":
        op = f"carried_{term.op}" if is_past(term) else f"{term.op}_all"
    if op == "exp" and _is_safe(term.args[0], bounded):
        op = "exp_safe"
    cost = cost_of(op, [priced(a, bounded) for a in term.args])
    assert cost is not None, term
    return cost


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


__all__ = ["Step", "chain_of", "normalise", "priced"]
