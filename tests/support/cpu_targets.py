"""CPUs that a test compiles for, those once whose code is the same."""

from __future__ import annotations

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
    seen: list[Target] = []
    made = []
    for name in names:
        kind = kind_of(parse_target(name))
        made.append(pytest.param(name, marks=(pytest.mark.whole,) if kind in seen else ()))
        seen.append(kind)
    return made
