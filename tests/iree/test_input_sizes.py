"""Sizes of inputs to which a model gives one name, or a sum of names: a program compares them before it reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import onnx_fa
from onnx_fa.errors import OnnxFaError
from onnx_fa.graph.builder import names_in
from onnx_fa.iree.legalise.input_sizes import named_sizes
from onnx_fa.iree.legalise.writer import attributes_of


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {text}')


CACHE = """g (float[B, P, 4] past, float[B, S, 4] x, float[1, T] mask) => (float[B, Q, 4] y) {
    last = Constant<value = int64[1] {-1}>()
    rows = Concat<axis = 1>(past, x)
    column = Unsqueeze(mask, last)
    y = Add(rows, column)
}"""


def cache() -> onnx.ModelProto:
    """A mask as long as the past and what is new."""
    model = parsed(CACHE)
    model.graph.input[2].type.tensor_type.shape.dim[1].dim_param = "P + S"
    return model


def named(model: onnx.ModelProto) -> list[tuple[list[str], list[int], list[int], int]]:
    work = ir.from_proto(model)
    found = [(list(n.input), attributes_of(n)) for n in named_sizes(work, names_in(work))]
    return [(inputs, list(a["axes"]), list(a["factors"]), a["rest"]) for inputs, a in found]


def test_which_are_compared() -> None:
    assert named(cache()) == [(["x", "past"], [0, 0], [1], 0), (["mask", "past", "x"], [1, 1, 1], [1, 1], 0)]


@pytest.mark.parametrize(
    ("dim", "want"),
    [
        ("B", [(["b", "a"], [0, 0], [1], 0)]),
        ("B + 1", [(["b", "a"], [0, 0], [1], 1)]),
        ("2*S - B", [(["b", "a", "a"], [0, 0, 1], [-1, 2], 0)]),
        ("C", []),
        ("C + B", []),  # nobody says how long C is
        ("B//2", []),
        ("B*S", []),
    ],
)
def test_sums_of_names(dim: str, want: list[object]) -> None:
    model = parsed("g (float[B, S] a, float[X] b) => (float[B, S] y) { y = Identity(a) }")
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = dim
    assert named(model) == want


def test_a_name_behind_its_sum() -> None:
    model = parsed("g (float[X] a, float[P, S] b) => (float[X] y) { y = Identity(a) }")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "P + S"
    assert named(model) == [(["a", "b", "b"], [0, 0, 1], [1, 1], 0)]


def test_a_run_with_other_sizes_stops(tmp_path: Path) -> None:
    """It gave numbers from behind the end of an input before."""
    onnx_fa.compile(cache(), tmp_path / "m.vmfb")

    def run(*shapes: tuple[int, ...]) -> tuple[int, ...]:
        (got,) = onnx_fa.run(tmp_path / "m.vmfb", *(np.zeros(s, np.float32) for s in shapes))
        return got.shape

    assert run((2, 3, 4), (2, 2, 4), (1, 5)) == (2, 5, 4) and run((1, 0, 4), (1, 1, 4), (1, 1)) == (1, 1, 4)
    with pytest.raises(OnnxFaError, match=r"calls axis 0 of 'x' 'B', .* as long as axis 0 of 'past' \(B\) says"):
        run((2, 3, 4), (1, 2, 4), (1, 5))
    with pytest.raises(OnnxFaError, match=r"'P \+ S', .* axis 1 of 'past' \(P\) and axis 1 of 'x' \(S\) says"):
        run((2, 3, 4), (2, 2, 4), (1, 4))


def test_sizes_that_are_given_are_not_compared(tmp_path: Path) -> None:
    onnx_fa.compile(cache(), tmp_path / "m.vmfb", dims={"B": 1, "P": 3, "S": 2})
    (got,) = onnx_fa.run(tmp_path / "m.vmfb", *(np.ones(s, np.float32) for s in ((1, 3, 4), (1, 2, 4), (1, 5))))
    np.testing.assert_array_equal(got, np.full((1, 5, 4), 2.0))
