"""CPUs that a test compiles for, those once whose code is the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from _pytest.mark.structures import ParameterSet

from onnx_fa.spec.target import Target, parse_target


def kind_of(target: Target) -> Target:
    """What of a target decides which kernels it has: targets that differ in name and flags alone have the same."""
    return replace(target, name="", flags=())


def cpu_targets(*names: str) -> list[ParameterSet]:
    """For `pytest.mark.parametrize`: the names. One whose kernels are those of a name before it (cpu-avx2 on a machine that has no
    more) has the mark `whole`: the compiler would get the same text again."""
    marks = marks_of_again([kind_of(parse_target(name)) for name in names])
    return [pytest.param(name, marks=mark) for name, mark in zip(names, marks, strict=True)]


def marks_of_again(kinds: Sequence[object]) -> list[tuple[pytest.MarkDecorator, ...]]:
    """`whole` for each that has an equal one before it."""
    return [(pytest.mark.whole,) if kind in kinds[:i] else () for i, kind in enumerate(kinds)]
