"""Linear attention over all tokens by Triton: numbers in Triton's interpreter, and what becomes of a model for CUDA (no GPU)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onnx_fa.iree.compile import import_model
from tests.iree.test_token_sums import CASES, REFUSED
from tests.support.cuda_programs import program_of
from tests.support.interpreted import distances_of
from tests.support.triton_sources import triton_sources

ROOT = Path(__file__).parents[2]


def test_numbers() -> None:
    """The source is within f32's rounding of float64, and infinities and NaN are where they are there."""
    found = distances_of("token_sums_interpreter")
    assert len(found) == 9 and {name: d for name, d in found.items() if not d <= 3e-7} == {}


@pytest.mark.parametrize("name", ["ragged", "known", "turned", "apart", "plain", "narrow"])
def test_one_dispatch(name: str, tmp_path: Path) -> None:
    """Compiled for all architectures once, and as Triton's source else."""
    program = program_of(CASES[name].model(), tmp_path, compiled=name == "ragged")
    assert len(re.findall(r"stream\.cmd\.dispatch {?@linear_attention_", program)) == 1 and "matmul" not in program


@pytest.mark.parametrize("name", ["upside down", "another divisor", "softmax", "sums beyond the stack"])
def test_stays_as_it_is(name: str) -> None:
    with triton_sources():
        assert "@linear_attention_" not in import_model(REFUSED[name].model(), "cuda").text
