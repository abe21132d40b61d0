"""1 + erf(x) and 1 + tanh(x) as kernels write them, computed in f32 by NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest

from onnx_fa.kernels.triton.expressions import Block, Expressions
from onnx_fa.kernels.triton.one_and import one_and_erf, one_and_tanh
from onnx_fa.spec.expr import SCORE, Apply, Float, ScoreExpr

Array = npt.NDArray[np.float32]
TRITON = SimpleNamespace(abs=np.abs, exp2=np.exp2, where=np.where, erf=np.vectorize(math.erf))
X = np.concatenate([np.linspace(-9, 9, 40001), [0.0, -0.0, 1e-30, -1e-30, 3e38, -3e38]]).astype(np.float32)


def computed(write: Callable[[Callable[[str], str], str], str], x: Array) -> Array:
    """What the lines make of x."""
    t, names = Block(), {"tl": TRITON, "x": x}
    t.do(f"found = {write(t.let, 'x')}")
    with np.errstate(over="ignore"):
        exec("\n".join(line.strip() for line in t.lines), names)
    found = names["found"]
    assert isinstance(found, np.ndarray)
    return found


def test_one_and_erf() -> None:
    """Within a hundredth of what f16 rounds, of small results too, which 1 + erf in f32 has not."""
    found, want = computed(one_and_erf, X), np.array([math.erfc(-float(v)) for v in X])
    there = want >= 2.0**-29
    assert np.max(np.abs(found[there] / want[there] - 1)) < 6.5e-6
    assert np.max(found[~there]) <= 2.0**-29
    with np.errstate(divide="ignore"):
        sums = (np.float32(1) + np.array([math.erf(v) for v in X], np.float32))[there] / want[there] - 1
    assert np.max(np.abs(sums)) > 0.1


def test_one_and_tanh() -> None:
    wide = X.astype(np.float64)
    with np.errstate(over="ignore"):
        want = 2 / (1 + np.exp(-2 * wide))
    assert np.allclose(computed(one_and_tanh, X), want, rtol=2e-6, atol=1e-37)


@pytest.mark.parametrize("write", [one_and_erf, one_and_tanh])
def test_edges(write: Callable[[Callable[[str], str], str], str]) -> None:
    """Infinities and what is no number give what the sums give."""
    found = computed(write, np.array([np.inf, -np.inf, np.nan], np.float32))
    assert found[:2].tolist() == [2.0, 0.0] and np.isnan(found[2])


@pytest.mark.parametrize(
    ("expr", "to_halves", "exact", "op"),
    [
        (Apply("Add", Apply("Erf", SCORE), Float(1.0)), True, True, "exp2"),
        (Apply("Add", Float(1.0), Apply("Erf", SCORE)), True, True, "exp2"),
        (Apply("Add", Apply("Erf", SCORE), Float(1.0)), False, True, "erf"),
        (Apply("Add", Apply("Erf", SCORE), Float(-1.0)), True, True, "erf"),
        (Apply("Sub", Apply("Erf", SCORE), Float(1.0)), True, True, "erf"),
        (Apply("Erf", SCORE), True, True, "erf"),
        (Apply("Add", Float(1.0), Apply("Tanh", SCORE)), False, True, "2.0 / (1.0"),
        (Apply("Add", Float(2.0), Apply("Tanh", SCORE)), False, True, "tl.where"),
        (Apply("Add", Float(1.0), Apply("Tanh", SCORE)), False, False, "asm"),
    ],
)
def test_where_it_is_written(expr: ScoreExpr, to_halves: bool, exact: bool, op: str) -> None:
    """For sums with one alone, 1 + erf for halves alone, and not where scores share reciprocals."""
    t = Block()
    Expressions(t, "rows", 1, (), exact, to_halves=to_halves).emit(expr, {SCORE: "x"}.get)
    text = "\n".join(t.lines)
    assert op in text and (op == "exp2" or "erf" in op or "erf(" not in text)
