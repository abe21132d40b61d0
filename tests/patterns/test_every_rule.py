"""Every rule of the tables has tests in the room of its file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onnx_fa.patterns import PATTERNS

HERE = Path(__file__).parent


def _rules() -> Iterator[Callable[..., object]]:
    for field in dataclasses.fields(PATTERNS):
        held = getattr(PATTERNS, field.name)
        yield from held if isinstance(held, tuple) else (held,)


@pytest.mark.parametrize(
    "rule", list(_rules()), ids=lambda r: f"{r.__module__.removeprefix('onnx_fa.patterns.')}.{r.__name__}"
)
def test_a_rule_is_tested_in_its_own_room(rule: Callable[..., object]) -> None:
    # A layer that is peeled off scores or off probabilities is tested where its kin are, in one of two folders.
    texts = [path.read_text() for path in HERE.rglob("test_*.py") if path != Path(__file__)]
    assert any(f".{rule.__name__}" in text or f"import {rule.__name__}" in text for text in texts)
    assert rule.__doc__
