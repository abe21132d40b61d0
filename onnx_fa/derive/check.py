"""Computes programs and recurrences in float64, to see that a derivation says what its program says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onnx_fa.derive.recurrence import Pass, Recurrence
from onnx_fa.derive.terms import Term, key, known, now, old
from onnx_fa.derive.writer import write
from onnx_fa.spec.expr import OPS

F64 = npt.NDArray[np.float64]
Function = Callable[[F64], F64]
Keys = Mapping[str, F64]
"""Numbers of every key, by name: (n,), or (n, columns) for wide ones. The name "1" needs none: it is 1 everywhere."""


@dataclass(frozen=True)
class NumpyLanguage:
    """The ops of terms on arrays. A wide array has the columns last; narrow ones are (n, 1) beside it."""

    functions: Mapping[str, Function]

    def add(self, a: F64, b: F64) -> F64:
        return a + b

    def sub(self, a: F64, b: F64) -> F64:
        return a - b

    def mul(self, a: F64, b: F64) -> F64:
        return a * b

    def div(self, a: F64, b: F64) -> F64:
        return a / b

    def max(self, a: F64, b: F64) -> F64:
        return np.maximum(a, b)

    def exp(self, x: F64) -> F64:
        return np.exp(x)

    def log(self, x: F64) -> F64:
        return np.log(x)

    def num(self, value: float) -> F64:
        return np.asarray(value)

    def map(self, name: str, x: F64) -> F64:
        if name in self.functions:
            return self.functions[name](x)
        return np.asarray(OPS[name].run(x), np.float64)


def evaluate(
    term: Term,
    keys: Keys,
    rows: Mapping[str, float] | None = None,
    functions: Mapping[str, Function] | None = None,
) -> F64:
    """A term about all keys, in float64: (n, columns) where it varies along the keys, (1, columns) else. "before" is half of the
    keys and "block" the others; raises KeyError for a name that is not given."""
    language, count = NumpyLanguage(functions or {}), len(next(iter(keys.values())))
    ranges = {"all": slice(None), "before": slice(0, count // 2), "block": slice(count // 2, None)}

    def value(t: Term) -> F64:
        match t.op:
            case "key":
                return _column(np.ones(count) if t.name == "1" else keys[t.name])[ranges[t.range]]
            case "row" | "known":
                return np.full((1, 1), (rows or {})[t.name])
            case "sum":
                return np.asarray(of_keys(t).sum(axis=0, keepdims=True))
            case "peak":
                return np.asarray(of_keys(t).max(axis=0, keepdims=True, initial=-np.inf))
            case "across":
                return (functions or {})[t.name](value(t.args[0]))
        places = {_leaf(i): value(a) for i, a in enumerate(t.args)}
        return write(Term(t.op, tuple(places), t.name, t.number), language, places)

    def of_keys(t: Term) -> F64:
        """What a reduction reduces, of every key of its range."""
        x = value(t.args[0])
        return np.broadcast_to(x, (len(range(count)[ranges[t.range]]), x.shape[1]))

    with np.errstate(all="ignore"):
        return value(term)


def _leaf(i: int) -> Term:
    return Term("var", name=str(i))


def _column(x: F64) -> F64:
    return x[:, None] if x.ndim == 1 else x


State = dict[str, F64]
"""Carried values by name."""


@dataclass(frozen=True)
class Walker:
    """Runs the passes of a recurrence. `lowest` is where maxima start: a finite number, as in kernels, below every score."""

    recurrence: Recurrence
    functions: Mapping[str, Function]
    lowest: float = -1e300

    def run(self, keys: Keys, blocks: Sequence[int]) -> dict[str, F64]:
        """The program's outputs, of blocks of so many keys each."""
        found: dict[str, F64] = {}
        with np.errstate(all="ignore"):
            for walk in self.recurrence.passes:
                state, at = self.start(walk), 0
                for size in blocks:
                    state = self.step(walk, state, {n: x[at : at + size] for n, x in keys.items()}, found)
                    at += size
                found = found | self.results(walk, state, found)
        return found

    def start(self, walk: Pass) -> State:
        return {c.name: np.full((1, 1), 0.0 if c.reduction == "sum" else self.lowest) for c in walk.carried}

    def step(self, walk: Pass, state: State, block: Keys, found: Mapping[str, F64]) -> State:
        """The carried values after a block of keys."""
        count = len(next(iter(block.values())))
        place = {key(n, "block"): _column(x) for n, x in block.items()} | {key("1", "block"): np.ones((count, 1))}
        place |= {old(n): x for n, x in state.items()} | {known(n): x for n, x in found.items()}
        new: State = {}
        for c in walk.carried:
            new[c.name] = self._update(c.update, place)
            place[now(c.name)] = new[c.name]
        return new

    def _update(self, term: Term, place: Mapping[Term, F64]) -> F64:
        """An update, whose reductions are over the block."""
        reduced: dict[Term, F64] = {}

        def collect(t: Term) -> None:
            if t.op in ("sum", "peak"):
                x = write(t.args[0], NumpyLanguage(self.functions), place)
                reduced[t] = (
                    x.sum(axis=0, keepdims=True) if t.op == "sum" else x.max(axis=0, keepdims=True, initial=-np.inf)
                )
                return
            for a in t.args:
                collect(a)

        collect(term)
        return write(term, NumpyLanguage(self.functions), {**place, **reduced})

    def merge(self, walk: Pass, a: State, b: State) -> State:
        """The carried values of two ranges of keys as those of both: maxima join; what either has summed is corrected from its own
        maxima to the joined ones, as a block would be. Raises NoFactorError where an update is no correction and a sum."""
        joined: State = {c.name: np.maximum(a[c.name], b[c.name]) for c in walk.carried if c.reduction == "peak"}
        for c in walk.carried:
            if c.reduction == "sum":
                first, second = (self._corrected(c.correction, side, joined, side[c.name]) for side in (a, b))
                joined[c.name] = first + second
        return joined

    def _corrected(self, correction: Term | None, side: State, joined: State, value: F64) -> F64:
        if correction is None:
            return value
        place = {old(n): x for n, x in side.items()} | {now(n): x for n, x in joined.items()}
        return value * write(correction, NumpyLanguage(self.functions), place)

    def results(self, walk: Pass, state: State, found: Mapping[str, F64]) -> dict[str, F64]:
        """What a pass leaves."""
        place = {now(n): x for n, x in state.items()} | {known(n): x for n, x in found.items()}
        return {name: write(term, NumpyLanguage(self.functions), place) for name, term in walk.results.items()}
