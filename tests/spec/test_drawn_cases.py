"""Attentions drawn at random: the same for a seed, apart from the table, and of the sizes that they are said to have."""

from __future__ import annotations

import math

import pytest

from onnx_fa.spec.cases import CASES
from onnx_fa.spec.drawn_cases import BUDGETS, HEAD_DIMS, REPORTED_SEED, WIDE_HEAD_DIMS, draw_cases


@pytest.mark.parametrize("device", BUDGETS)
def test_drawn(device: str) -> None:
    seed, budget = REPORTED_SEED[device], BUDGETS[device]
    drawn = draw_cases(device, seed, 100)
    assert drawn == draw_cases(device, seed, 100) and drawn[:10] == draw_cases(device, seed, 10)
    specs = [c.spec for c in drawn]
    assert len({*specs}) == 100 and len({c.title for c in drawn}) == 100
    assert not {*specs} & {c.spec for c in CASES}
    assert not {*specs} & {c.spec for c in draw_cases(device, seed + 1, 100)}
    for c in drawn:
        spec = c.spec
        assert isinstance(spec.Sq, int) and isinstance(spec.Skv, int)
        assert 64 <= spec.Skv <= 1 << 15 and (spec.Sq == 1 or 64 <= spec.Sq <= 1 << 15)
        assert (spec.D, spec.Dv) in HEAD_DIMS + WIDE_HEAD_DIMS and spec.dtype in budget.dtypes
        shapes = [*spec.operand_shapes, spec.out_shape]
        assert sum(math.prod(int(d) for d in shape) for shape in shapes) <= budget.elements
        assert c.title.startswith("decode" if "decode" in c.tags else "causal" if spec.masks else "plain")


@pytest.mark.parametrize("device", BUDGETS)
def test_everything_is_drawn(device: str) -> None:
    """A hundred cases have every kind and head dim, GQA and not, lengths that divide nothing, short ones and long ones."""
    specs = [c.spec for c in draw_cases(device, REPORTED_SEED[device], 100)]
    assert {(s.D, s.Dv) for s in specs} == {*HEAD_DIMS, *WIDE_HEAD_DIMS}
    kinds = [[s.Sq == 1 for s in specs], [bool(s.masks) for s in specs], [s.group > 1 for s in specs]]
    kinds += [
        [int(s.Skv) % 64 > 0 for s in specs],
        [int(s.Skv) < 256 for s in specs],
        [int(s.Skv) > 4096 for s in specs],
    ]
    assert all(10 <= sum(kind) <= 90 for kind in kinds), [sum(kind) for kind in kinds]
    assert any(1 != s.Sq != s.Skv for s in specs)
