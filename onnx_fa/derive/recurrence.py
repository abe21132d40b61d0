"""What a loop over blocks of keys carries, how a block changes it, and what its results are: the outcome of a derivation.

For softmax attention, found and not written:

    m' = max(m, max° s);   l' = exp(m - m') l + Σ° exp(s - m');   o' = exp(m - m') o + Σ° exp(s - m') v;   result o / l
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from onnx_fa.derive.terms import Term, old


class NoFactorError(ValueError):
    """A carried value whose update is more than a correction and a reduction of the block."""


@dataclass(frozen=True)
class Carried:
    """One carried value: what it is over all keys, and what it becomes with a block, as a term of `old` and `now` values, of keys
    of the "block", and of what is known. `wide`: it has a number for every column of V."""

    name: str
    meaning: Term
    update: Term
    wide: bool

    @property
    def reduction(self) -> str:
        """ "sum" or "peak"."""
        return self.meaning.op

    @property
    def start(self) -> float:
        """The value before the first key: the reduction of nothing."""
        return 0.0 if self.reduction == "sum" else -math.inf

    @cached_property
    def _parts(self) -> tuple[Term | None, Term]:
        join = {"sum": "add", "peak": "max"}[self.reduction]
        if self.update.op == join:
            for kept, block in (self.update.args, self.update.args[::-1]):
                if block.op == self.reduction and block.range == "block":
                    factor = _factor_of(kept, old(self.name))
                    if factor is not None:
                        return (None if factor == _ONE else factor), block.args[0]
        raise NoFactorError(f"{self.name}' = {self.update} is not a correction and a reduction of the block")

    @property
    def correction(self) -> Term | None:
        """What the value so far is multiplied by in every block; None for nothing. Raises NoFactorError for another update."""
        return self._parts[0]

    @property
    def body(self) -> Term:
        """What is reduced over the keys of a block. Raises NoFactorError."""
        return self._parts[1]


_ONE = Term("num", number=1.0)


def _factor_of(kept: Term, value: Term) -> Term | None:
    """By what a value is multiplied; None where it is not a factor."""
    if kept == value:
        return _ONE
    if kept.op == "mul":
        for a, b in (kept.args, kept.args[::-1]):
            rest = _factor_of(a, value)
            if rest is not None:
                return b if rest == _ONE else rest * b
    return None


@dataclass(frozen=True)
class Pass:
    """One walk over the keys. Its `results` are terms of `now` values and of what is known, as they are after the last block."""

    carried: tuple[Carried, ...]
    results: Mapping[str, Term]

    @property
    def wide(self) -> tuple[Carried, ...]:
        return tuple(c for c in self.carried if c.wide)


@dataclass(frozen=True)
class Recurrence:
    """Passes in order; the results of one are known to the next by name, and those of the last are the program's outputs."""

    passes: tuple[Pass, ...]

    @property
    def lines(self) -> list[str]:
        """The recurrence as written by hand."""
        text = []
        for n, walk in enumerate(self.passes):
            for c in walk.carried:
                text.append(f"pass {n + 1}: {c.name} starts at {c.start:g};  {c.name}' = {c.update}")
            text += [f"after pass {n + 1}: {name} = {term}" for name, term in walk.results.items()]
        return text
