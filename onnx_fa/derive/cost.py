"""What a program costs: exponents that may overflow, then passes over the keys, then carried values, then operations per score.

A pass is one walk over all keys (FuseMax, section 3; `onnx_fa.passes` counts the same on ONNX graphs). A reduction over all keys
needs one pass more than what it reads; reductions over a block, and those over earlier blocks that a loop carries, run within the
first pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from onnx_fa.derive.egraph import Classes, Node, term_of
from onnx_fa.derive.terms import REDUCTIONS, Term, in_range

_PER_KEY = 64
"""Keys of a block: an operation on each of them counts as so many on a row's number."""
OPERATIONS = {"exp": 8, "exp_safe": 8, "log": 8, "div": 4, "map": 8}
"""In additions, roughly those of a vector unit."""
_WHOLE = ("sum_all", "peak_all")


@dataclass(frozen=True, order=True)
class Cost:
    """Compared from the first field on. `keeps`: whether some number of every key must be kept until all keys were seen.
    `ready`: passes after which the number is there. `keyed`: it is a number for every key, which what is made of it counts for."""

    keeps: bool = False
    overflows: int = 0
    ready: int = 0
    carried: int = 0
    operations: int = 0
    keyed: bool = False


def cost_of(op: str, args: Sequence[Cost]) -> Cost | None:
    """The cost of a node whose arguments cost so much; None for what no program can be made of."""
    keeps = any(a.keeps for a in args)
    overflows = sum(a.overflows for a in args) + (op == "exp")
    ready = max((a.ready for a in args), default=0)
    carried, operations = sum(a.carried for a in args), sum(a.operations for a in args)
    keyed = op.startswith("key_") or op == "across" or any(a.keyed for a in args)
    match op:
        case "on" | "here" | "was" | "sum_before" | "peak_before":
            return None
        case "across":
            return Cost(True, overflows, ready + 1, carried, operations, True)
        case "carried_sum" | "carried_peak":
            return Cost(keeps, overflows, 1, 1, 1)
        case "old" | "now":
            return Cost(ready=1)
        case "sum_block" | "peak_block":
            return Cost(keeps, overflows, max(1, ready), carried, operations + _PER_KEY)
        case "sum_all" | "peak_all":
            return Cost(keeps, overflows, ready + 1, carried, operations + _PER_KEY)
    if args:
        operations += OPERATIONS.get(op, 1) * (_PER_KEY if keyed else 1)
    return Cost(keeps, overflows, ready, carried, operations, keyed)


@cache
def is_past(term: Term) -> bool:
    """Known when the block before is done."""
    if term.op in ("key", *REDUCTIONS):
        return term.range == "before" and all(map(is_past, term.args))
    return term.op != "now" and all(map(is_past, term.args))


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


def price(term: Term, bounded: tuple[str, ...] = ()) -> Cost:
    """The cost of a term as it is written. A sum over earlier keys that nothing carries is another pass. Raises ValueError for what
    stands only between steps (on, here, was)."""
    op = f"{term.op}_{term.range}" if term.range else term.op
    if term.op in REDUCTIONS and term.range == "before":
        op = f"carried_{term.op}" if is_past(term) else f"{term.op}_all"
    if op == "exp" and _is_safe(term.args[0], bounded):
        op = "exp_safe"
    cost = cost_of(op, [price(a, bounded) for a in term.args])
    if cost is None:
        raise ValueError(f"{term} is not a program")
    return cost


def extract(classes: Classes, *roots: Term, split: bool = False) -> list[tuple[Term, Cost]]:
    """The cheapest term of each root's class; with `split` none that reduces all keys at once to the root. Costs of
    arguments add up or grow with them, so the cheapest of every class is found by passing over all nodes until nothing changes."""
    whole = {classes.roots[r] for r in roots} if split else set()
    best: dict[int, tuple[Cost, Node]] = {}
    changed = True
    while changed:
        changed = False
        for c, nodes in classes.nodes.items():
            for node in nodes:
                if c in whole and node[0] in _WHOLE:
                    continue
                if all(a in best for a in node[2]):
                    cost = cost_of(node[0], [best[a][0] for a in node[2]])
                    if cost is not None and (c not in best or cost < best[c][0]):
                        best[c], changed = (cost, node), True

    made: dict[int, Term] = {}

    def build(c: int) -> Term:
        if c not in made:
            node = best[c][1]
            made[c] = term_of(node, tuple(build(a) for a in node[2]))
        return made[c]

    return [(build(classes.roots[r]), best[classes.roots[r]][0]) for r in roots]
