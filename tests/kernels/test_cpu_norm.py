"""Norm sites on CPUs: the numbers of the kernels, which sites they take, and their code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from onnx_fa.errors import UnsupportedError
from onnx_fa.iree.compile import MODEL_FLAGS
from onnx_fa.iree.compiler import iree_compile
from onnx_fa.kernels.cpu.norm import emit_norm
from onnx_fa.kernels.row_sites import emit_site, kept_why, origin_of
from onnx_fa.spec.norm import NormSpec
from onnx_fa.spec.target import foreign_cpu, parse_target
from tests.support.check_text import check_text
from tests.support.cpu_targets import cpu_targets
from tests.support.kernel_harness import UNVERIFIED
from tests.support.norm_cases import CASES, distance, function_text, keeps_special_rows, tolerance

HOST = parse_target("cpu-host")
TAKEN = {name: spec for name, spec in CASES.items() if not kept_why(spec, HOST)}
LONG = {
    "long": NormSpec((197,), 768, "f32", "f32", 1e-12, True, "f32", "f32"),
    "longest": NormSpec((3,), 9000, "f32", "f32", 1e-5, True, "f32", "f32", True, True),
    "in_parts": NormSpec((2, 3), 48000, "f32", "f32", 1e-5),
}
"""More rows than a workgroup's, rows that pass what one has, and rows whose sums are added up in parts."""


@dataclass(frozen=True)
class Module:
    """A compiled module, whose functions are called by the names of cases."""

    functions: Any
    names: dict[NormSpec, str]

    def run(
        self, spec: NormSpec, lead: tuple[int, ...], operands: list[npt.NDArray[Any]], rows: int
    ) -> list[npt.NDArray[Any]]:
        made = self.functions[self.names[spec]](*operands)
        return [x.to_host() for x in (made if isinstance(made, tuple) else (made,))]


def compile_cases(cases: dict[str, NormSpec], target: str, folder: Path) -> Module:
    import iree.runtime as rt

    on = parse_target(target)
    if why := foreign_cpu(on):
        pytest.skip(why)
    texts = [text for spec in cases.values() for text in emit_norm(spec, on).values()]
    text = "\n".join([*texts, *(function_text(name, spec) for name, spec in cases.items())])
    iree_compile(text, folder / "m.vmfb", on, flags=(*MODEL_FLAGS["llvm-cpu"], UNVERIFIED), timeout_s=300)
    functions = rt.load_vm_flatbuffer_file(str(folder / "m.vmfb"), driver="local-task")
    return Module(functions, {spec: name for name, spec in cases.items()})


@pytest.mark.parametrize("target", cpu_targets("cpu-host", "cpu-avx2"))
def test_numbers(target: str, tmp_path: Path) -> None:
    """Within their rounding of float64, also where squares overflow; NaN where that is, and only there."""
    cases = TAKEN | LONG
    module = compile_cases(cases, target, tmp_path)
    found = {name: distance(spec, module.run) for name, spec in cases.items()}
    assert {name: d for name, d in found.items() if not d <= tolerance(cases[name])} == {}
    enough = {name: spec for name, spec in cases.items() if spec.rows is None or spec.rows > 3}
    assert len(enough) > 10 and [n for n, spec in enough.items() if not keeps_special_rows(spec, module.run)] == []


def test_no_rows(tmp_path: Path) -> None:
    """None are none."""
    module = compile_cases({"free": CASES["dynamic"]}, "cpu-host", tmp_path)
    empty = np.zeros((2, 0, 72), np.float16)
    (y,) = module.run(CASES["dynamic"], (2, 0), [empty, *[np.zeros(72, np.float16)] * 2], 1)
    assert y.shape == (2, 0, 72)


def test_which_sites_are_taken() -> None:
    odd = "rows of 77 numbers, which no vector divides"
    assert kept_why(CASES["odd"], HOST) == odd and sorted(set(CASES) - set(TAKEN)) == ["odd", "odd_half", "one_number"]
    with pytest.raises(UnsupportedError, match=f"norm site: {odd}"):
        emit_site(CASES["odd"], HOST)
    assert kept_why(CASES["layer"], parse_target("cpu-avx512", "iree")) == "--kernels iree"
    assert kept_why(CASES["layer"], parse_target("cpu-neon")) == "vectors of four lanes"
    assert "Triton" in kept_why(CASES["layer"], parse_target("rocm-gfx942"))
    origin = origin_of(LONG["long"], parse_target("cpu-avx2"))
    assert dict(origin.tiles) == {"lanes": 8, "rows": 10} and origin.tuning == "built in: a rule"


def test_text() -> None:
    """Three walks over a row, four vectors at a time, and two more where its squares pass f32, which those of f16 do not."""
    check_text("norm.mlir", "\n".join(emit_norm(LONG["long"], parse_target("cpu-avx512")).values()))
    half = "\n".join(emit_norm(CASES["layer_half"], HOST).values())
    assert "scf.if" not in half and "arith.extf" in half and len(re.findall("vector.reduction", half)) == 3
