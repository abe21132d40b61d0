"""Every Attention node test of the onnx package, within its own tolerance: rewritten in onnxruntime, and compiled and run here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.node_cases import cases, run_compiled, run_rewritten, run_side_by_side

NAMES = sorted(cases())
IN_ONE = 24
ALONE = ("attention_4d", "attention_24_qk_matmul_output_mode3_softmax_precision")
"""Also compiled as users' models are, the second without packed layouts after the compiler has refused them."""


def test_there_are_all_of_them() -> None:
    assert len(NAMES) == 93


@pytest.mark.parametrize("name", NAMES)
def test_rewritten(name: str) -> None:
    case = cases()[name]
    case.check(run_rewritten(case))


Run = tuple[list[np.ndarray], str]


@pytest.fixture(scope="module")
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """What a compiled case gives, and "fused" or why not. Some cases of one opset that this run tries are compiled together."""
    tried = {item.name for item in request.session.items}
    folder, made = tmp_path_factory.mktemp("compiled"), dict[str, Run]()
    of = {name: max(o.version for o in case.model.opset_import) for name, case in cases().items()}

    def find(name: str) -> Run:
        if name not in made:
            same = [n for n in NAMES if of[n] == of[name] and f"test_compiled[{n}]" in tried]
            start = same.index(name) // IN_ONE * IN_ONE
            made.update(run_side_by_side([cases()[n] for n in same[start : start + IN_ONE]], folder))
        return made[name]

    return find


@pytest.mark.parametrize("name", NAMES)
def test_compiled(name: str, compiled: Callable[[str], Run]) -> None:
    results, state = compiled(name)
    cases()[name].check([np.asarray(r) for r in results])
    assert state == "fused"


@pytest.mark.parametrize("name", ALONE)
def test_compiled_alone(name: str, tmp_path: Path) -> None:
    results, state = run_compiled(cases()[name], tmp_path)
    cases()[name].check([np.asarray(r) for r in results])
    assert state == "fused"
