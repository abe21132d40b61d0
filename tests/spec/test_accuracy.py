"""The comparison with the reference: in blocks of rows as in one piece, and every kind of wrong number is seen."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from onnx_fa.spec.accuracy import TOLERANCE, compare, expect, rows_of
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.cases import CASES, draw_operands
from onnx_fa.spec.reference import attention, scores
from onnx_fa.spec.terms import Elementwise, TensorArg
from tests.support.cases import BY_NAME, Case

_NAMES = (
    *("cross", "causal_end", "causal_offset", "window_end", "bool_mask_row", "add_add_bool", "gqa_mask_per_head"),
    *("k_bhds_from_bshd", "all_transposed", "batch_5d_masks", "empty_zero_bool", "decode_gqa"),
)


def small(case: Case) -> AttentionSpec:
    """The masks of a case of the table, on short lengths."""
    spec, s = case.bound()[0], 24

    def short(shape: tuple[int | str, ...]) -> tuple[int | str, ...]:
        kept = shape[: len(spec.batch)] if len(shape) == len(spec.score_shape) else ()  # a batch dim may be as large
        return (*kept, *(s if d in (case.spec.Sq, case.spec.Skv) and d != 1 else d for d in shape[len(kept) :]))

    masks = []
    for m in spec.masks:
        if isinstance(m, Elementwise):
            m = dataclasses.replace(m, tensors=tuple(TensorArg(short(t.shape), t.dtype) for t in m.tensors))
        elif hasattr(m, "shape"):
            m = dataclasses.replace(m, shape=short(m.shape))
        masks.append(m)
    k_quant, v_quant = (x and dataclasses.replace(x, shape=short(x.shape)) for x in (spec.k_quant, spec.v_quant))
    lengths = {"Sq": 1 if spec.Sq == 1 else s, "Skv": s}
    return dataclasses.replace(spec, **lengths, masks=tuple(masks), k_quant=k_quant, v_quant=v_quant)


_SPECS = {n: BY_NAME[n].spec for n in _NAMES} | {c.name: small(c) for c in CASES if c.spec.masks}


@pytest.mark.parametrize("name", _SPECS)
def test_rows_alone_are_the_rows_of_the_whole(name: str) -> None:
    spec = _SPECS[name]
    operands = draw_operands(spec, 0)
    whole = attention(spec, *operands)
    axis, sq = spec.o_layout.index(spec.rank - 2), spec.Sq
    assert isinstance(sq, int)
    for start, stop in ((0, sq), (sq // 3, sq // 3 + 1), (sq // 2, sq)):
        part, inputs = rows_of(spec, operands, start, stop)
        assert [x.shape for x in inputs] == list(part.operand_shapes)
        np.testing.assert_allclose(
            attention(part, *inputs), np.take(whole, range(start, stop), axis), rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize("budget", [1, 1 << 26])
def test_wrong_numbers_are_seen(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnx_fa.spec.accuracy.BLOCK_SCORES", 1 << 18)
    spec = dataclasses.replace(BY_NAME["causal"].spec, Sq=512, Skv=512)  # more than two blocks
    operands = draw_operands(spec, 1)
    right = attention(spec, *operands).astype(np.float32)
    fine = compare(spec, operands, right, budget=budget)
    assert fine.problem == "" and fine.error < fine.allowed
    assert (fine.rows == fine.of) == (budget > 1) and fine.rows >= 2
    for row in (0, -1):
        for value, word in ((np.nan, "NaN"), (1e3, "relative error"), (np.inf, "relative error")):
            wrong = right.copy()
            wrong[0, 0, row, 0] = value
            assert word in compare(spec, operands, wrong, budget=budget).problem
    assert "shape" in compare(spec, operands, right[:1]).problem


def test_a_sink_is_a_score_too() -> None:
    """Beside a sink of 45 all probabilities are e**-45: rounding the sink to f32 moves every one of them."""
    spec = AttentionSpec("f32", 2, 2, 6, 9, 8, 8, scale=0.1, sink=TensorArg((1,), "f32"))
    operands = [*draw_operands(spec, 0)[:3], np.array([45.618713], np.float32)]
    found = expect(spec, operands)
    assert found.largest_score == pytest.approx(45.618713)
    s = np.float32(math.log2(math.e)) * scores(spec, *operands).astype(np.float32)
    p = np.exp2(s - np.float32(math.log2(math.e)) * operands[3]).astype(np.float32)  # as a kernel in f32 does
    comparison = found.compare((p @ operands[2]).astype(np.float32))
    assert TOLERANCE["f32"] / 10 < comparison.error < comparison.allowed
