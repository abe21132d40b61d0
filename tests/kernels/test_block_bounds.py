"""Interval arithmetic over a block, done in Python: what it says surely holds must hold, also where int64 wraps around."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from onnx_fa.kernels.plan.bounds import BlockBounds, Range, Truth
from onnx_fa.spec.expr import Apply, Int, K, Q, ScoreExpr, Tensor

MINIMUM, MAXIMUM = -(2**63), 2**63 - 1
TENSOR: ScoreExpr = Tensor(0)


def wrapped(value: int) -> int:
    """As int64 keeps it."""
    return (value - MINIMUM) % 2**64 + MINIMUM


@dataclass
class Machine:
    """Does at once what a kernel's text would do when it runs, in int64."""

    values: dict[str, int]

    def _name(self, value: int) -> str:
        name = f"v{len(self.values)}"
        self.values[name] = value
        return name

    def index(self, value: int) -> str:
        return self._name(wrapped(value))

    def arith(self, op: str, a: str, b: str, type_: str = "index") -> str:
        x, y = self.values[a], self.values[b]
        found: dict[str, Callable[[], int]] = {
            "addi": lambda: x + y,
            "subi": lambda: x - y,
            "muli": lambda: x * y,
            "minsi": lambda: min(x, y),
            "maxsi": lambda: max(x, y),
            "andi": lambda: x & y,
            "ori": lambda: x | y,
            "divsi": lambda: int(x / y) if abs(x) < 2**53 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1),
            "floordivsi": lambda: x // y,
        }
        return self._name(wrapped(found[op]()))

    def test(self, predicate: str, a: str, b: str) -> str:
        x, y = self.values[a], self.values[b]
        return self._name(int({"slt": x < y, "sle": x <= y, "eq": x == y}[predicate]))

    def choose(self, condition: str, a: str, b: str) -> str:
        return self._name(self.values[a if self.values[condition] else b])

    def truth(self, found: Truth) -> bool:
        return found if isinstance(found, bool) else bool(self.values[found])


def evaluate(expr: ScoreExpr, at: dict[ScoreExpr, int]) -> int:
    """An integer expression at one position, as int64 computes it."""
    if expr in at:
        return at[expr]
    if isinstance(expr, Int):
        return expr.value
    assert isinstance(expr, Apply)
    x, *rest = (evaluate(a, at) for a in expr.args)
    match expr.op:
        case "Neg":
            return wrapped(-x)
        case "Add":
            return wrapped(x + rest[0])
        case "Sub":
            return wrapped(x - rest[0])
        case "Mul":
            return wrapped(x * rest[0])
        case "Min":
            return min(x, rest[0])
        case "Max":
            return max(x, rest[0])
    raise AssertionError(expr)


def drawn(rng: random.Random, depth: int) -> ScoreExpr:
    """An integer expression, with numbers at the ends of int64 among the ordinary ones."""
    if depth == 0 or rng.random() < 0.2:
        number: ScoreExpr = Int(rng.choice([0, 1, -3, 7, 2**31, 2**40, 2**62, MAXIMUM, MINIMUM]))
        return rng.choice([Q, K, TENSOR, number])
    op = rng.choice(["Add", "Sub", "Mul", "Min", "Max", "Neg"])
    return Apply(op, *(drawn(rng, depth - 1) for _ in range(1 if op == "Neg" else 2)))


def sure(condition: ScoreExpr, q: tuple[int, int], k: tuple[int, int], tensor: tuple[int, int]) -> tuple[bool, bool]:
    """What the bounds say of a condition over a block: surely everywhere, surely nowhere."""
    machine = Machine({})
    names = {e: tuple(machine.index(x) for x in ends) for e, ends in ((Q, q), (K, k), (TENSOR, tensor))}

    def leaf(e: ScoreExpr) -> Range | None:
        low, high = names[e]
        return low, high

    true, false = BlockBounds(machine, leaf).truth(condition)
    return machine.truth(true), machine.truth(false)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_sure_of_a_block_holds_at_every_position(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        q0, k0 = rng.choice([0, 64, 4096]), rng.choice([0, 32, 8192])
        near = rng.choice([0, 5, -40, 2**31, 2**41, 2**62, MAXIMUM - 3, MINIMUM])
        tensor = near, min(near + rng.choice([0, 3]), MAXIMUM)
        condition = (rng.choice(["Less", "LessOrEqual", "Equal"]), drawn(rng, 2), drawn(rng, 2))
        true, false = sure(condition, (q0, q0 + 3), (k0, k0 + 3), tensor)
        for q in (q0, q0 + 3):
            for k in (k0, k0 + 3):
                for t in tensor:
                    x, y = (evaluate(e, {Q: q, K: k, TENSOR: t}) for e in condition[1:])
                    holds = {"Less": x < y, "LessOrEqual": x <= y, "Equal": x == y}[condition[0]]
                    assert not (true and not holds) and not (false and holds), condition


def test_ordinary_masks_are_decided() -> None:
    length: ScoreExpr = Apply("Less", K, Apply("Add", TENSOR, Q))
    assert sure(length, (0, 3), (64, 67), (5, 6)) == (False, True)
    assert sure(length, (0, 3), (0, 3), (50, 60)) == (True, False)
    assert sure(length, (0, 3), (0, 3), (np.iinfo(np.int64).max - 1, MAXIMUM)) == (False, False)
