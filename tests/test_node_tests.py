"""Every Attention node test of the onnx package, within its own tolerance: rewritten in onnxruntime, and compiled and run here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from node_cases import cases, run_compiled, run_rewritten

NAMES = sorted(cases())


def test_there_are_all_of_them() -> None:
    assert len(NAMES) == 93


@pytest.mark.parametrize("name", NAMES)
def test_rewritten(name: str) -> None:
    case = cases()[name]
    case.check(run_rewritten(case))


@pytest.mark.parametrize("name", NAMES)
def test_compiled(name: str, tmp_path: Path) -> None:
    case = cases()[name]
    results, state = run_compiled(case, tmp_path)
    case.check([np.asarray(r) for r in results])
    assert state == "fused"
