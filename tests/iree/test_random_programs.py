"""What surrounds attention, drawn at random, gives what onnxruntime gives."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnx_fa
from tests.support.branches import TAKEN, in_branch
from tests.support.ort_run import run
from tests.support.random_programs import draw_program

COUNT, FIRST = int(os.environ.get("ONNX_FA_PROGRAMS", "0")), int(os.environ.get("ONNX_FA_SEED", "0"))
SEEDS = range(FIRST, FIRST + COUNT) if COUNT else (0, 1, 41, 59)
"""The last two are wrong where packed layouts get what they make wrong. By hand as many as one likes."""


@pytest.mark.parametrize("branch", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_program(seed: int, branch: bool, tmp_path: Path) -> None:
    """In a branch that the run chooses too."""
    model, feeds = draw_program(seed)
    if branch:
        model, feeds = in_branch(model, run(model, feeds)), {TAKEN: np.array(True), **feeds}
    onnx.checker.check_model(model, full_check=True)
    onnx_fa.compile(model, tmp_path / "m.vmfb")
    (got,), (want,) = onnx_fa.run(tmp_path / "m.vmfb", *feeds.values()), run(model, feeds)
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max(), [n.op_type for n in model.graph.node]
