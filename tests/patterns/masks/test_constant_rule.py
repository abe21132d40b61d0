"""Constant masks by value: the rule that a constant follows gives every element back, and what follows none has none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnx_fa.patterns.masks.algebra import Algebra
from onnx_fa.patterns.masks.constant_rule import rule_of
from onnx_fa.patterns.masks.expressions import AxisPosition, integer
from onnx_fa.spec.expr import K, Kind, Q, ScoreExpr, evaluate, words
from tests.support.expressions import tensor

N, M = 6, 9
ROW, COLUMN = np.arange(N)[:, None], np.arange(M)[None, :]
SQUARE = np.arange(N)[None, :]
LOWEST = float(np.finfo(np.float32).min)
SLOPES = np.asarray([0.5, 0.25, 0.125], np.float32)
HEAD = AxisPosition(0)


def read(array: np.ndarray) -> tuple[ScoreExpr | None, list[np.ndarray]]:
    """The rule of a constant that is read at (head, q, k), the last of these that it has, and the tensors that the rule reads."""
    kind: Kind = {"b": "bool", "f": "float"}.get(array.dtype.kind, "int")  # type: ignore[assignment]
    index = (HEAD, Q, K)[3 - array.ndim :]
    algebra = Algebra({axis: size for axis, size in zip(index, array.shape, strict=True)})
    tensors: list[np.ndarray] = []

    def table(values: np.ndarray, at: ScoreExpr) -> ScoreExpr:
        shape = {HEAD: (-1, 1, 1), Q: (-1, 1), K: (1, -1)}[at]
        tensors.append(values.reshape(shape))
        return tensor(len(tensors) - 1, "float" if values.dtype.kind == "f" else "int")

    return rule_of(algebra, array, index, kind, table), tensors


def check(array: np.ndarray) -> str | None:
    """The rule in words, once it has been held to every element; None where there is none."""
    found, tensors = read(array)
    if found is None:
        return None
    shape = (1,) * (2 - array.ndim) + array.shape
    have = np.broadcast_to(evaluate(found, np.zeros(shape), tensors), shape).reshape(array.shape)
    np.testing.assert_array_equal(have.astype(array.dtype), array, err_msg=words(found))
    return words(found)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (COLUMN <= ROW, "(k <= q)"),
        (COLUMN <= ROW + 2, "(k <= (q + 2))"),
        (COLUMN < ROW, "(k <= (q - 1))"),
        (COLUMN > ROW, "(q <= (k - 1))"),
        (abs(COLUMN - ROW) <= 1, "((q <= (k + 1)) and (k <= (q + 1)))"),
        ((COLUMN <= ROW) & (ROW - COLUMN < 3), "((q <= (k + 2)) and (k <= q))"),
        (np.broadcast_to(COLUMN < 4, (N, M)), "(k <= 3)"),
        (np.broadcast_to(ROW >= 2, (N, M)), "(2 <= q)"),
        (COLUMN == ROW, "((q <= k) and (k <= q))"),
        (np.ones((N, M), bool), "True"),
        ((COLUMN <= ROW) | (COLUMN < 3), "((k <= q) or (k <= 2))"),
        (ROW // 2 == SQUARE // 2, "((k / 2) == (q / 2))"),
        ((ROW // 3 == SQUARE // 3) & (SQUARE <= ROW), "((k <= q) and ((k / 3) == (q / 3)))"),
        (np.equal.outer(ids := np.asarray([0, 0, 1, 2, 2, 0]), ids), "(t0 == t1)"),
        (COLUMN % 3 == 1 + 0 * ROW, "(((k + 2) % 3) == 0)"),
        (np.arange(M), "k"),
        (3 * np.arange(M) - 7, "((k * 3) - 7)"),
        (np.arange(M) // 4, "(k / 4)"),
        (np.arange(M) % 4, "(k % 4)"),
        (COLUMN - ROW, "(k - q)"),
        (abs(ROW - COLUMN), "abs((k - q))"),
        (2 * ROW + 5 * COLUMN + 1, "(((k * 5) + (q * 2)) + 1)"),
        (np.where(COLUMN <= ROW, 0, -np.inf).astype(np.float32), "where((k <= q), 0, -inf)"),
        (np.where(COLUMN > ROW, LOWEST, 0).astype(np.float32), f"where((k <= q), 0, {LOWEST:g})"),
        (np.full((N, M), 2.5, np.float32), "2.5"),
        ((COLUMN - ROW).astype(np.float32) * np.float32(0.3), "(tofloat((k - q)) * 0.3)"),
        (-abs(COLUMN - ROW).astype(np.float32), "(tofloat(abs((k - q))) * -1)"),
        (SLOPES[:, None, None] * (COLUMN - ROW).astype(np.float32), "(tofloat((k - q)) * t0)"),
        (
            np.where(COLUMN <= ROW, SLOPES[:, None, None] * (COLUMN - ROW), -np.inf).astype(np.float32),
            "where((k <= q), (tofloat((k - q)) * t0), -inf)",
        ),
    ],
)
def test_rule(array: np.ndarray, said: str) -> None:
    assert check(array).replace("0.300000", "0.3") == said  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "array",
    [
        np.random.default_rng(0).random((N, M)) < 0.5,
        np.random.default_rng(0).integers(0, 9, (N, M)),
        np.random.default_rng(0).standard_normal((N, M)).astype(np.float32),
        np.asarray([0, 1, 3, 6, 10]),
        np.asarray([0, 0, 1, 1, 0, 0, 1]),
        np.asarray([[0.0, np.nan]], np.float32),
        np.arange(M) * (1 << 40),
        np.zeros((0, M), bool),
        ((COLUMN <= ROW) & ~((ROW == 4) & (COLUMN == 2))),
        (COLUMN - ROW).astype(np.float32) ** 2,
    ],
)
def test_no_rule(array: np.ndarray) -> None:
    assert check(array) is None


def test_an_index_that_is_a_number_picks_its_row() -> None:
    array = np.stack([COLUMN <= ROW, COLUMN >= ROW])
    algebra = Algebra({Q: N, K: M})

    def none(values: np.ndarray, at: ScoreExpr) -> ScoreExpr:
        raise AssertionError

    made = [rule_of(algebra, array, (integer(i), Q, K), "bool", none) for i in (0, 1, -1, 2)]
    assert [words(e) if e is not None else None for e in made] == ["(k <= q)", "(q <= k)", "(q <= k)", None]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    bits=st.lists(st.booleans(), min_size=12, max_size=12),
    base=st.sampled_from(["tri", "diagonals", "columns", "rows", "blocks", "bits"]),
    flips=st.integers(0, 1),
    invert=st.booleans(),
)
def test_every_rule_that_is_found_is_exact(bits: list[bool], base: str, flips: int, invert: bool) -> None:
    size = 4
    row, column = np.arange(size)[:, None], np.arange(size)[None, :]
    values = np.asarray(bits)
    ids = np.cumsum(values[:size])
    arrays = {
        "tri": column <= row + int(values[:4].sum()) - 2,
        "diagonals": values[column - row + size - 1],
        "columns": np.broadcast_to(values[:size], (size, size)),
        "rows": np.broadcast_to(values[:size, None], (size, size)),
        "blocks": ids[:, None] == ids[None, :],
        "bits": values.reshape(3, 4),
    }
    array = arrays[base].copy() ^ invert
    if flips:
        array[1, 2] ^= True
    check(array)
    check(np.where(array, 0, -np.inf).astype(np.float32))
    check(np.where(array, column, 7)[: len(array)] if base != "bits" else array.astype(np.int64))
