"""From a program to its recurrence: saturation, the cheapest of all equal programs, and the closure of what that one carries.

Every carried value's own update is found in the same e-graph, until no update names a value that is not carried. What cannot be
done in one pass is cut at the numbers that a later pass needs whole: those become results of the pass before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from onnx_fa.derive.cost import Cost, extract, price
from onnx_fa.derive.egraph import Saturation
from onnx_fa.derive.recurrence import Carried, Pass, Recurrence
from onnx_fa.derive.terms import (
    REDUCTIONS,
    Term,
    about_all,
    in_range,
    known,
    names_key,
    now,
    old,
    parts,
    replace_parts,
    varies,
)

MOST_PASSES = 4


class NoRecurrenceError(ValueError):
    """No loop over keys that carries a few numbers per row computes the program."""


@dataclass(frozen=True)
class Program:
    """Outputs of a reduction program, by name. `wide` are keys with many columns (the values); `bounded` keys have numbers between
    bounds within which exponentials are finite and not 0."""

    outputs: tuple[tuple[str, Term], ...]
    wide: tuple[str, ...] = ("v",)
    bounded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Derivation:
    """`best`: the cheapest form of each output, over all keys. `nodes`, `classes`, `rounds`: what the e-graphs grew to."""

    program: Program
    recurrence: Recurrence
    best: tuple[tuple[str, Term, Cost], ...]
    nodes: int
    classes: int
    rounds: int
    seconds: float

    @property
    def passes(self) -> int:
        return len(self.recurrence.passes)


@cache
def derive(program: Program) -> Derivation:
    """The cheapest recurrence that computes a program. Raises NoRecurrenceError, which says what cannot be carried."""
    start, outputs = time.perf_counter(), dict(program.outputs)
    passes: list[Pass] = []
    nodes = classes = rounds = 0
    first: tuple[tuple[str, Term, Cost], ...] = ()
    while len(passes) < MOST_PASSES:
        graph = Saturation(program.bounded)
        for term in outputs.values():
            graph.add(term)
        graph.run()
        held = graph.classes()
        found = dict(zip(outputs, extract(held, *outputs.values()), strict=True))
        nodes, classes, rounds = max(nodes, held.size), max(classes, len(held.nodes)), rounds + held.rounds
        for term, cost in found.values():
            if cost.keeps:
                made = next(p for p in parts(term) if p.op == "across")
                raise NoRecurrenceError(
                    f"{made} needs the numbers of all keys at once: no rule makes it of what earlier keys and a block made"
                )
        first = first or tuple((name, term, cost) for name, (term, cost) in found.items())
        needed = _needed_whole({name: term for name, (term, _) in found.items()})
        if not needed:
            passes.append(_close(graph, outputs, program.wide))
            return Derivation(
                program, Recurrence(tuple(passes)), first, nodes, classes, rounds, time.perf_counter() - start
            )
        names = {term: f"x{len(passes)}{i}" for i, term in enumerate(needed)}
        done = {name: term for name, (term, cost) in found.items() if cost.ready <= 1}
        passes.append(_close(graph, {names[t]: t for t in needed} | done, program.wide))
        outputs = {
            name: replace_parts(term, {t: known(n) for t, n in names.items()}) for name, (term, _) in found.items()
        }
        outputs |= {name: known(name) for name in done}
    raise NoRecurrenceError(f"needs more than {MOST_PASSES} passes over the keys")


def _needed_whole(found: Mapping[str, Term]) -> list[Term]:
    """The largest numbers, one for all keys, that reductions of a later pass read and the first pass can give."""
    needed: dict[Term, None] = {}

    def visit(term: Term, inside: bool) -> None:
        ready = price(term).ready
        if inside and not varies(term) and ready == 1:
            needed[term] = None
            return
        if ready > 1 or (inside and ready == 1):
            for a in term.args:
                visit(a, inside or (term.op in REDUCTIONS and term.range != "before"))

    for term in found.values():
        visit(term, False)
    return list(needed)


def _close(graph: Saturation, outputs: Mapping[str, Term], wide: tuple[str, ...]) -> Pass:
    """The values that a loop carries for these outputs, each with its update, and the outputs as terms of them."""
    for term in outputs.values():
        graph.add(term)
    graph.run()
    carried: dict[Term, Carried] = {}
    todo = [c for term, _ in extract(graph.classes(), *outputs.values()) for c in _reductions(term)]
    while todo := [t for t in todo if t not in carried]:
        # What others are made of comes first: a maximum before the sums that subtract it.
        meaning = min(todo, key=lambda t: sum(p.op in REDUCTIONS for p in parts(t)))
        inner = [p for p in _reductions(meaning.args[0]) if p not in carried]
        if inner:
            todo += inner
            continue
        name = _name(meaning, wide, [c.name for c in carried.values()])
        graph.add(meaning)
        graph.unite(in_range(meaning, "before"), old(name))
        graph.run()
        ((update, _),) = extract(graph.classes(), meaning, split=True)
        carried[meaning] = Carried(name, meaning, update, names_key(meaning, wide))
        graph.unite(meaning, now(name))
        graph.run()
        todo += _reductions(update)
    results = dict(zip(outputs, (t for t, _ in extract(graph.classes(), *outputs.values())), strict=True))
    return Pass(tuple(carried.values()), results)


def _reductions(term: Term) -> list[Term]:
    """What a term reduces of all keys, or of earlier ones, as reductions of all."""
    found = {about_all(p): None for p in parts(term) if p.op in REDUCTIONS and p.range != "block"}
    return list(found)


def _name(meaning: Term, wide: tuple[str, ...], taken: list[str]) -> str:
    """m for a maximum, o for what has V's columns, l for other sums; numbered from the second on."""
    of_sum = "o" if names_key(meaning, wide) else "l"
    letter = "m" if meaning.op == "peak" else of_sum
    return next(n for i in range(len(taken) + 1) if (n := letter + (str(i + 1) if i else "")) not in taken)
