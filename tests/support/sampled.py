"""The part of a long list of cases that every run tries. What is left out has the mark `whole`: `--whole` tries it too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from onnx_fa.spec.expr import Apply, parts
from onnx_fa.spec.terms import Elementwise
from tests.support.cases import Case


def sampled(
    kinds: Sequence[Iterable[str]],
    every: int | None,
    known: Iterable[str] = (),
    always: Iterable[int] = (),
    costs: Sequence[float] | None = None,
) -> list[int]:
    """Places of a list, in order: each `every`-th one (None: none for its place alone), those of `always`, and so many more that no
    kind of case is missing, those that bring most kinds first, for what they cost where there are `costs`; less those whose kinds
    others brought later, the dearest first. `kinds`: of what kinds each case of the list is, in its order; `known`: kinds of which
    cases of another list are tried."""
    of = [frozenset(k) - frozenset(known) for k in kinds]
    fixed = {*(range(0, len(of), every) if every else ()), *always}
    kept = set(fixed)
    missing = frozenset[str]().union(*of) - frozenset[str]().union(*(of[i] for i in kept))
    while missing:
        # Of those that bring equally many the first: every run finds the same.
        most = max(range(len(of)), key=lambda i: len(of[i] & missing) / (costs[i] if costs else 1))
        kept.add(most)
        missing -= of[most]
    for i in sorted(kept - fixed, key=lambda i: (-costs[i] if costs else 0, i)):
        if of[i] <= frozenset[str]().union(*(of[j] for j in kept - {i})):
            kept.remove(i)
    return sorted(kept)


def parameters(values: Sequence[Any], ids: Sequence[str], kept: Iterable[int]) -> list[ParameterSet]:
    """For `pytest.mark.parametrize`: all values, those at other places than `kept` marked as left out."""
    every_run = frozenset(kept)
    marks = [() if i in every_run else (pytest.mark.whole,) for i in range(len(values))]
    return [pytest.param(v, id=name, marks=m) for v, name, m in zip(values, ids, marks, strict=True)]


def kinds_of(case: Case) -> frozenset[str]:
    """Its tags, every word for its variant, its element type, its masks and what a row without keys is, and the operators of its
    expressions."""
    spec = case.spec
    terms = (*spec.masks, *spec.mods)
    ops = {p.op for t in terms if isinstance(t, Elementwise) for p in parts(t.expr) if isinstance(p, Apply)}
    return case.tags.union(
        spec.variant.split("+"), (spec.dtype, spec.empty_row), (type(t).__name__ for t in terms), ops
    )
