"""Sizes that may be 1 in a run and are not 1 in the model: what onnxruntime gives, or a line that says where it stopped."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import onnx_fa
from onnx_fa.errors import OnnxFaError
from onnx_fa.iree.legalise.broadcasts import doubtful_sizes
from tests.support.ort_run import run
from tests.support.random_broadcasts import draw_broadcast

COUNT, FIRST = int(os.environ.get("ONNX_FA_BROADCASTS", "0")), int(os.environ.get("ONNX_FA_SEED", "0"))
SEEDS = range(FIRST, FIRST + COUNT) if COUNT else range(4)


def doubts(text: str, opset: int = 18) -> list[tuple[list[str], list[int]]]:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {text}')
    found = [check for checks in doubtful_sizes(ir.from_proto(model)).values() for check in checks]
    return [(list(n.input), list(n.attribute[0].ints)) for n in found]


@pytest.mark.parametrize("seed", SEEDS)
def test_random_broadcast(seed: int, tmp_path: Path) -> None:
    model, feeds, odd = draw_broadcast(seed)
    (want,) = run(model, feeds)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    try:
        (got,) = onnx_fa.run(tmp_path / "m.vmfb", *feeds.values())
    except OnnxFaError as e:
        # A free size beside a number is that number to IREE, which says so of inputs.
        assert odd and ("to be of one size, and they are not" in str(e) or "and the module takes" in str(e))
        return
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_free_size_that_is_one_stops_the_program(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[B, 4] a, float[one, 4] b) => (float[B, 4] y) { y = Add(a, b) }'
    )
    a, b = np.ones((2, 4), np.float32), np.ones((1, 4), np.float32)
    onnx_fa.compile(model, tmp_path / "free.vmfb")
    with pytest.raises(
        OnnxFaError, match=r"Add .* axis 0 of 'a' \(B\) and axis 0 of 'b' \(one\) to be of one size.*--dim NAME=1"
    ):
        onnx_fa.run(tmp_path / "free.vmfb", a, b)
    np.testing.assert_array_equal(onnx_fa.run(tmp_path / "free.vmfb", a, a)[0], a + a)
    onnx_fa.compile(model, tmp_path / "one.vmfb", dims={"one": 1})
    np.testing.assert_array_equal(onnx_fa.run(tmp_path / "one.vmfb", a, b)[0], a + b)


MATRICES = "float[B, 4, S, 8] a, float[C, 4, 8, S] b"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("g (float[B, S] a, float[B, S] b) => (float[B, S] y) { y = Add(a, b) }", []),
        ("g (float[B, S] a, float[1, S] b) => (float[B, S] y) { y = Add(a, b) }", []),
        ("g (float[B, S] a) => (float[B, S] y) { y = Mul(a, a) }", []),
        ("g (float[B, S] a) => (float[B, S] y) { h = Exp(a) y = Mul(a, h) }", []),
        ("g (float[B, S] a, float[T] b) => (float[B, S] y) { y = Add(a, b) }", [(["a", "b"], [1, 0])]),
        ("g (float[B, 4] a, float[3, 4] b) => (float[3, 4] y) { y = Add(a, b) }", [(["b", "a"], [0, 0])]),
        # Once for a pair of names: the second op has nothing to look at any more.
        ("g (float[B, S] a, float[T] b) => (float[B, S] y) { h = Add(a, b) y = Mul(a, b) }", [(["a", "b"], [1, 0])]),
        (f"g ({MATRICES}) => (float[B, 4, S, S] y) {{ y = MatMul(a, b) }}", [(["a", "b"], [0, 0])]),
        ("g (float[B, 4, S, 8] a, float[8, 8] b) => (float[B, 4, S, 8] y) { y = MatMul(a, b) }", []),
        (
            f'g ({MATRICES}) => (float[B, 4, S, S] y) {{ y = Einsum<equation = "bhsd,bhdt->bhst">(a, b) }}',
            [(["a", "b"], [0, 0])],
        ),
        (
            "g (float[M, 4] a, float[4, 8] w, float[N, 8] c) => (float[M, 8] y) { y = Gemm(a, w, c) }",
            [(["a", "c"], [0, 0])],
        ),
        ("g (float[M, 4] a, float[4, 8] w, float[8] c) => (float[M, 8] y) { y = Gemm(a, w, c) }", []),
        ("g (bool[B, S] c, float[B, T] a, float b) => (float[B, S] y) { y = Where(c, a, b) }", [(["c", "a"], [1, 1])]),
    ],
)
def test_doubtful_sizes(text: str, want: list[tuple[list[str], list[int]]]) -> None:
    assert doubts(text) == want
