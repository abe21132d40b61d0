"""Probabilities that are rounded before they multiply V: kernels, forms, what is found and what is left alone, and how far ties go."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnx_fa.emit.kernel import emit_kernel
from tests.cases import draw_operands, select
from tests.kernel_harness import HOST, Kernels, mismatch

_CASES = select("rounded")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    return Kernels([emit_kernel(c.spec, HOST) for c in _CASES], tmp_path_factory.mktemp("rounded"))


@pytest.mark.parametrize("index", range(len(_CASES)), ids=[c.name for c in _CASES])
def test_case(compiled: Kernels, index: int) -> None:
    for seed, spec in enumerate(_CASES[index].bound()):
        for adversarial in (False, True):
            operands = draw_operands(spec, seed, adversarial=adversarial)
            assert mismatch(spec, operands, compiled.run(index, operands)) is None, (spec, adversarial)
