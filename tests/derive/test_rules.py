"""Every rule holds under its conditions, in exact arithmetic where it has no exponential and in float64 in any case."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnx_fa.derive.rules import RULES, Rule
from onnx_fa.derive.terms import Term, parts

BEFORE, ALL = 3, 7
"""Keys of earlier blocks, and all: the block has the rest."""
Draw = Callable[[], Any]
_RANGES = {"all": slice(0, ALL), "before": slice(0, BEFORE), "block": slice(BEFORE, ALL)}


class Holder:
    """Gives the variables of a rule values that fit its facts: numbers of all keys, or one for all where they are free. `number`
    draws one."""

    def __init__(self, rule: Rule, number: Draw) -> None:
        self.number, self.values = number, dict[str, tuple[bool, list[Any]]]()
        facts = {name: {f for f, n in rule.facts if n == name} for _, name in rule.facts}
        for part in (*parts(rule.left), *parts(rule.right)):
            name = part.name.removeprefix("?")
            if (part.op == "var" or part.name.startswith("?")) and name not in self.values:
                has = facts.get(name, set())
                one = bool(has & {"free", "same"})
                drawn = [number() for _ in range(1 if one else ALL)]
                if "positive" in has:
                    drawn = [abs(x) + 1 for x in drawn]
                # What a number was before this block is another number, unless nothing changes it.
                earlier = drawn if "same" in has or not one else [number()]
                self.values[name] = one, drawn
                self.values[f"was {name}"] = one, earlier
                self.values[f"past {name}"] = ("past" in has), []

    def of(self, term: Term, range_: str = "all", *, was: bool = False) -> list[Any] | Any:
        """A term for the keys of a range: a list, or one number where it does not vary."""
        match term.op:
            case "var":
                one, values = self.values[f"was {term.name}" if was else term.name]
                if one:
                    return values[0]
                return values[_RANGES["before" if self.values[f"past {term.name}"][0] or was else range_]]
            case "key":
                if term.name == "1":
                    return [self._one()] * len(
                        range(ALL)[_RANGES["before" if was else term.range if term.range != "all" else range_]]
                    )
                _, values = self.values[term.name.removeprefix("?")]
                return values[self._keys(term, range_, was)]
            case "now" | "old":
                _, values = self.values[("was " if was or term.op == "old" else "") + term.name.removeprefix("?")]
                return values[0]
            case "num":
                return self._one() * int(term.number)
            case "on" | "here":
                return self.of(term.args[0], "before" if term.op == "on" else "block", was=was)
            case "was":
                return self.of(term.args[0], "before", was=True)
            case "sum" | "peak":
                inner = "before" if was else term.range
                x = self.of(term.args[0], inner if inner != "all" else "all", was=was)
                count = len(range(ALL)[_RANGES[inner]])
                x = x if isinstance(x, list) else [x] * count
                return sum(x) if term.op == "sum" else max(x)
        args = [self.of(a, range_, was=was) for a in term.args]
        lists = [a for a in args if isinstance(a, list)]
        if not lists:
            return self.apply(term, args)
        full = [a if isinstance(a, list) else [a] * len(lists[0]) for a in args]
        assert len({len(a) for a in full}) == 1, term
        return [self.apply(term, list(x)) for x in zip(*full, strict=True)]

    @staticmethod
    def _keys(term: Term, range_: str, was: bool) -> slice:
        if was:
            return _RANGES["before"]
        return _RANGES[term.range if term.range != "all" else range_]

    def _one(self) -> Any:
        return abs(self.number()) * 0 + 1

    def apply(self, term: Term, x: list[Any]) -> Any:
        match term.op:
            case "add":
                return x[0] + x[1]
            case "sub":
                return x[0] - x[1]
            case "mul":
                return x[0] * x[1]
            case "div":
                return x[0] / x[1]
            case "max":
                return max(x)
            case "map":
                return 1 / x[0] if term.name == "Reciprocal" else x[0] * x[0] - 3 * x[0]  # any function will do
            case "exp":
                return np.exp(float(x[0]))
            case "log":
                return np.log(abs(float(x[0])) + 1)
        raise AssertionError(term)


def same(a: Any, b: Any, *, exact: bool) -> bool:
    if isinstance(a, list) != isinstance(b, list):
        some, one = (a, b) if isinstance(a, list) else (b, a)
        return all(same(x, one, exact=exact) for x in some)
    if exact:
        return bool(a == b)
    return bool(np.allclose(np.asarray(a, float), np.asarray(b, float), rtol=1e-9, atol=1e-9))


EXACT = [r for r in RULES if not any(p.op in ("exp", "log") for p in (*parts(r.left), *parts(r.right)))]
NUMBERS = st.integers(-40, 40).filter(bool)


@pytest.mark.parametrize("rule", EXACT, ids=lambda r: r.name)
@settings(max_examples=20, deadline=None)
@given(st.data())
def test_holds_exactly(rule: Rule, data: st.DataObject) -> None:
    holder = Holder(rule, lambda: Fraction(data.draw(NUMBERS), data.draw(st.integers(1, 9))))
    assert same(holder.of(rule.left), holder.of(rule.right), exact=True)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_holds_in_float64(rule: Rule) -> None:
    draw = np.random.default_rng(7)
    for _ in range(25):
        holder = Holder(rule, lambda: float(draw.normal() or 1.0))
        assert same(holder.of(rule.left), holder.of(rule.right), exact=False)


@pytest.mark.parametrize(
    "name", ["a division leaves a sum", "a factor leaves a sum", "a sum of one number", "what does not change"]
)
def test_fails_without_its_condition(name: str) -> None:
    """What varies along the keys does not leave a sum; what a block changes was another number before it."""
    (rule,) = [r for r in RULES if r.name == name]
    bare = Rule(
        rule.name, rule.left, rule.right, rule.proof, tuple(f for f in rule.facts if f[0] not in ("free", "same"))
    )
    bare = Rule(
        bare.name, bare.left, bare.right, bare.proof, (("free", "x"),) if name == "what does not change" else ()
    )
    draw = np.random.default_rng(3)
    holder = Holder(bare, lambda: float(draw.normal()))
    assert not same(holder.of(rule.left), holder.of(rule.right), exact=False)


def test_no_rule_knows_attention() -> None:
    words = " ".join(f"{r.name} {r.proof} {r.left} {r.right}" for r in RULES).lower()
    assert not any(w in words for w in ("softmax", "attention", "score", "query", "probab"))
    assert len({r.name for r in RULES}) == len(RULES)
