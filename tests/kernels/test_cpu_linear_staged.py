"""Linear sites on CPUs whose numbers are kept in f16, or whose weight is in a shorter type than x: their numbers and their code."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnx_fa.kernels.cpu.linear import kept_why, tiles_for
from onnx_fa.kernels.cpu.linear_staged import DEEP
from onnx_fa.spec.linear import LinearSpec, biased, multiply
from onnx_fa.spec.linear_cases import in_panels
from onnx_fa.spec.target import foreign_cpu, parse_target
from onnx_fa.spec.terms import TensorArg
from tests.kernels.test_cpu_linear import HOST, compile_site, packed, run
from tests.support.cpu_targets import cpu_targets
from tests.support.kernel_harness import cases_asked_for
from tests.support.linear_cases import CASES, GATED, RESIDUAL, SIZES, bound, draw
from tests.support.linear_modules import compile_sites

AVX512 = parse_target("cpu-avx512")
HALVES = {name: spec for name, spec in CASES.items() if spec.dtype == "f16" and spec.bits is None and not spec.parts}
LONGER = {
    "blocks": biased(LinearSpec((70,), 2 * DEEP, 96, "f16")),
    "rest": LinearSpec((70,), DEEP + 1, 70, "f16", then=GATED, tensors=(TensorArg((70, 70), "f16"),)),
    "rows": biased(LinearSpec(("b", "s"), 2 * DEEP + 18, 72, "f16")),
    "one_row": LinearSpec((1,), DEEP + 24, 64, "f16", True),
    "three_rows": LinearSpec((3,), 40, 64, "f16"),
    "narrow_weight": biased(LinearSpec(("b", "s"), DEEP + 8, 80, "f32", stored="f16")),
    "narrow_row": LinearSpec((1,), 77, 64, "f32", True, stored="bf16"),
    "narrow_many": LinearSpec(
        (1, 45), DEEP + 44, 72, "f32", then=RESIDUAL, tensors=(TensorArg((72,)), TensorArg((1, 45, 72))), stored="bf16"
    ),
}
EVERY = {**HALVES, **LONGER}
TOLERANCE = {"f32": 3e-7, "f16": 2.0**-11}
"""Of sums in f32, and of rounding them to eleven bits."""
NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}


def panels(spec: LinearSpec, w: Any, panel: int) -> Any:
    """A weight in panels, one row after the other also of bf16."""
    made = in_panels((w.T if spec.transposed else w).astype(np.float64), panel)
    return made.astype(w.dtype)


@pytest.fixture(scope="module")
def modules(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """By the target's name: a module with a function for each case that is tried."""
    tried = cases_asked_for(request, "name", "target")

    @cache
    def compiled(target: str) -> Path:
        on, output = parse_target(target), tmp_path_factory.mktemp("numbers") / "m.vmfb"
        compile_sites(
            {name: (packed(plain, on), None) for name, plain in EVERY.items() if (name, target) in tried}, output, on
        )
        return output

    return compiled


@pytest.mark.parametrize("target", cpu_targets("cpu-host", "cpu-avx2"))
@pytest.mark.parametrize("name", EVERY)
def test_numbers(name: str, target: str, modules: Callable[[str], Path]) -> None:
    on = parse_target(target)
    if why := foreign_cpu(on):
        pytest.skip(why)
    plain, module = EVERY[name], modules(target)
    spec = packed(plain, on)
    for sizes in SIZES:
        operands = draw(plain, bound(plain, sizes))
        want = multiply(plain, operands)
        moved = [operands[0], panels(plain, operands[1], spec.panel), *operands[2:]]
        assert np.array_equal(multiply(spec, moved), want)
        got = run(module, moved, name)
        assert np.linalg.norm(got - want) <= TOLERANCE[plain.dtype] * np.linalg.norm(want)


@pytest.mark.parametrize("K", [64, DEEP + 19])
def test_free_rows(K: int, tmp_path: Path) -> None:
    """No tile reads or writes past the last row, infinities stay in their rows, and what f16 cannot hold becomes infinite."""
    compile_site(packed(LinearSpec(("n",), K, 72, "f16")), tmp_path / "m.vmfb")
    for rows in [*range(1, 18), 31, 64, 65, 129]:
        rng = np.random.default_rng(rows)
        x, w = (rng.standard_normal(s).astype(np.float16) for s in ((rows, K), (K, 72)))
        odd, w[3] = rows // 2, np.abs(w[3])
        x[odd, 3] = np.inf
        if rows > 3:
            x[0], x[1] = 6e4, 2.0**-24  # past the largest f16, and the least
        y = run(tmp_path / "m.vmfb", [x, in_panels(w, packed(LinearSpec((8,), 64, 72, "f16")).panel)])
        assert np.isinf(y[odd]).all()
        with np.errstate(over="ignore", invalid="ignore"):
            exact = x.astype(np.float64) @ w.astype(np.float64)
            want = exact.astype(np.float16).astype(np.float64)
        keep = (np.arange(rows) != odd)[:, None] & (np.abs(np.abs(exact) - 65504) > 64)
        with np.errstate(invalid="ignore"):
            off = np.where(y == want, 0.0, np.abs(y.astype(np.float64) - want))
        allowed = (
            2.0**-10 * np.abs(want) + 2.0**-24 + 1e-6 * (np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64))
        )
        assert (off <= np.where(np.isfinite(allowed), allowed, 0.0))[keep].all()


def test_who_takes_a_site() -> None:
    """Also of few rows, as the compiler would read a weight of f32; what kernels cannot mix stays the compiler's."""
    assert kept_why(LinearSpec((1,), 64, 64, "f16"), AVX512) == ""
    assert kept_why(LinearSpec((1,), 64, 64, "f32", stored="f16"), AVX512) == ""
    assert kept_why(LinearSpec((1,), 64, 64, "f32"), AVX512) == ""  # as measured
    avx2, neon = parse_target("cpu-avx2"), parse_target("cpu-neon")
    for rows in (1, 64, "n"):
        for spec in (LinearSpec((rows,), 64, 64, "f16"), LinearSpec((rows,), 64, 64, "f32", stored="bf16")):
            assert kept_why(spec, avx2) == "" and kept_why(spec, neon) == "no AVX-512"
    mixed = LinearSpec((64,), 64, 64, "f16", then=GATED, tensors=(TensorArg((64, 64)),))
    assert kept_why(mixed, AVX512) == "f16 on a CPU"


@pytest.mark.parametrize(("dtype", "stored"), [("f16", "f16"), ("f32", "f32"), ("bf16", "f16"), ("f32", "f64")])
def test_what_is_no_shorter_type(dtype: Any, stored: Any) -> None:
    with pytest.raises(ValueError, match="a weight of"):
        LinearSpec((8,), 64, 64, dtype, stored=stored)


def test_code(tmp_path: Path) -> None:
    """A step along K multiplies f32 that was widened before: nothing is widened beside the multiplications of many rows. What the
    dispatch keeps on the stack is a block of the panel, one of x, and the sums."""
    spec = packed(biased(LinearSpec((512,), 256, 96, "f16")), AVX512)
    compile_site(spec, tmp_path / "m.mlir", AVX512, phase="executable-targets")
    text = (tmp_path / "m.mlir").read_text()
    loops = re.split(r"\n\s*\^bb", text)
    multiplied = [b for b in loops if "llvm.intr.fmuladd" in b]
    assert sum(b.count("llvm.intr.fmuladd") for b in multiplied) == 8 * 2 * 4
    assert not any("llvm.fpext" in b for b in multiplied) and "llvm.fpext" in text
    rows = tiles_for(spec, AVX512).rows * tiles_for(spec, AVX512).down
    stack = sorted(map(int, re.findall(r"llvm\.alloca %\w+ x !llvm\.array<(\d+) x f32>", text)))
    assert stack == sorted([DEEP * 32, 8 * DEEP, rows * 32]) and 4 * sum(stack) <= 32768


def test_code_of_a_row(tmp_path: Path) -> None:
    """The weight of a row goes from memory to the multiplication, and nothing of it is on the stack."""
    compile_site(
        packed(LinearSpec((1,), 256, 96, "f32", stored="f16"), HOST),
        tmp_path / "m.mlir",
        HOST,
        phase="executable-targets",
    )
    text = (tmp_path / "m.mlir").read_text()
    assert "llvm.alloca" not in text and "llvm.fpext" in text
