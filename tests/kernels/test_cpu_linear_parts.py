"""Linear sites of several results on CPUs: each result has its own panels of the weight, and its own columns of what follows."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from onnx_fa.errors import UnsupportedError
from onnx_fa.iree.run import load_module
from onnx_fa.kernels.cpu.linear import MOST_RESULTS, emit_linear, kept_why, missing, panel_of, tiles_for
from onnx_fa.kernels.cpu.linear_body import LinearTiles
from onnx_fa.kernels.cpu.linear_measured import rows_computed
from onnx_fa.spec.expr import SCORE, Apply, Tensor
from onnx_fa.spec.linear import LinearSpec, biased, multiply, panel_starts, weight_of
from onnx_fa.spec.linear_cases import GELU, RESIDUAL, draw_linear, in_panels
from onnx_fa.spec.linear_cases import packed as packed_operands
from onnx_fa.spec.target import Target, foreign_cpu, parse_target
from onnx_fa.spec.terms import TensorArg
from tests.kernels.test_cpu_linear import AMX, TOLERANCE, compile_site, packed, pairs_here
from tests.support.cpu_targets import cpu_targets
from tests.support.kernel_harness import cases_asked_for
from tests.support.linear_modules import compile_sites

Array = npt.NDArray[Any]
AVX2, AVX512 = parse_target("cpu-avx2"), parse_target("cpu-avx512")


def check(
    plain: LinearSpec, panel: int, module: Path, tolerance: float, *, adversarial: bool = False, function: str = "site"
) -> None:
    """The results for operands of these rows against float64, those of rows with an infinity or NaN for being as it says."""
    operands = draw_linear(plain, 3, adversarial=adversarial)
    moved = packed_operands(plain, operands, panel)
    with np.errstate(invalid="ignore"):
        want = multiply(plain, operands)
    got = np.concatenate([np.asarray(y, np.float64) for y in load_module(module, function=function)(*moved)], axis=-1)
    assert got.shape == want.shape
    for mine, right in zip(got.reshape(-1, plain.N), want.reshape(-1, plain.N), strict=True):
        if np.isfinite(right).all():
            assert np.linalg.norm(mine - right) <= tolerance * max(np.linalg.norm(right), 1e-30)
        else:
            assert np.array_equal(np.isnan(mine), np.isnan(right))
            assert np.array_equal(np.isposinf(mine), np.isposinf(right))
            assert np.array_equal(np.isneginf(mine), np.isneginf(right))


def test_panels_belong_to_one_result() -> None:
    """The last panel of each result has its last columns; the weight that panels say is the one that they were made of."""
    assert panel_starts((768, 768), 32) == list(range(0, 1536, 32))
    assert panel_starts((20, 33, 16), 16) == [0, 4, 20, 36, 37, 53]
    spec = LinearSpec((3,), 5, 69, "f32", parts=(20, 33, 16), panel=16)
    w = np.arange(5.0 * 69).reshape(5, 69)
    assert spec.panels == 6 and spec.weight_shape == (6, 5, 16)
    panels = in_panels(w, 16, parts=spec.parts)
    assert panels.shape == spec.weight_shape
    assert np.array_equal(weight_of(spec, [np.ones((3, 5)), panels]), w)
    with pytest.raises(ValueError, match="panels of 17 columns of a weight of 16"):
        replace(spec, panel=17)


PARTS = ((48, 48, 48), (64, 24), (33, 50, 25, 31), (24, 100))
ROWS = (1, 13, "n")


def _site(rows: int | str, parts: tuple[int, ...]) -> LinearSpec:
    N = sum(parts)
    return LinearSpec(
        (2, rows), 37, N, "f32", then=RESIDUAL, tensors=(TensorArg((N,)), TensorArg((2, rows, N))), parts=parts
    )


@pytest.fixture(scope="module")
def modules(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """By the target's name: a module with a function for each number of rows and each index of PARTS that a panel fits,
    of those that are tried."""
    tried = cases_asked_for(request, "rows", "parts", "target")

    @cache
    def compiled(target: str) -> Path:
        on, output = parse_target(target), tmp_path_factory.mktemp("numbers") / "m.vmfb"
        cases = [(rows, parts) for rows in ROWS for parts in PARTS if (rows, parts, target) in tried]
        plain = {f"{rows}_{PARTS.index(parts)}_rows": _site(rows, parts) for rows, parts in cases}
        fitting = {name: spec for name, spec in plain.items() if panel_of(spec, on) <= min(spec.parts)}
        compile_sites({f"of_{name}": (packed(spec, on), None) for name, spec in fitting.items()}, output, on)
        return output

    return compiled


@pytest.mark.parametrize("target", cpu_targets("cpu-host", "cpu-avx512", "cpu-avx2"))
@pytest.mark.parametrize("parts", PARTS, ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_numbers(rows: int | str, parts: tuple[int, ...], target: str, modules: Callable[[str], Path]) -> None:
    """Of sizes that neither tiles nor panels divide, large numbers and infinities too, and of no rows."""
    on = parse_target(target)
    if why := foreign_cpu(on):
        pytest.skip(why)
    plain = _site(rows, parts)
    panel, name = panel_of(plain, on), f"of_{rows}_{PARTS.index(parts)}_rows"
    if panel > min(parts):
        pytest.skip("a result is narrower than a panel")
    for n in (0, 1, 5, 66) if rows == "n" else (1,):
        bound = plain.bind({"n": n})
        check(bound, panel, modules(target), TOLERANCE["f32"], function=name)
        if n:
            check(bound, panel, modules(target), TOLERANCE["f32"], adversarial=True, function=name)


@pytest.mark.parametrize("seed", range(6))
def test_random(seed: int, tmp_path: Path) -> None:
    """Drawn tiles, rows, widths and what follows, for processors with AVX2."""
    rng = np.random.default_rng(seed)
    vectors, tall = ((2, 6), (3, 4), (2, 3))[rng.integers(3)]
    tiles = LinearTiles(8, tall, (1, 4)[rng.integers(2)], *map(int, rng.integers(1, 5, 2)), vectors)
    panel = 8 * vectors
    parts = tuple(int(n) for n in rng.integers(panel, 5 * panel, rng.integers(2, MOST_RESULTS + 1)))
    rows, K, N = int(rng.integers(tall, 60)), int(rng.integers(1, 80)), sum(parts)
    plain = LinearSpec((rows,), K, N, "f32", parts=parts)
    plain = (plain, biased(plain), replace(plain, then=GELU, tensors=(TensorArg((N,)),)))[rng.integers(3)]
    compile_site(replace(plain, panel=panel), tmp_path / "m.vmfb", AVX2, tiles=tiles)
    operands = draw_linear(plain, seed)
    got = np.concatenate(load_module(tmp_path / "m.vmfb")(*packed_operands(plain, operands, panel)), axis=-1)
    want = multiply(plain, operands)
    assert np.linalg.norm(got - want) <= TOLERANCE["f32"] * np.linalg.norm(want)


HALVES = LinearSpec(
    ("n",), 136, 72 + 33, "f16", then=Apply("Add", SCORE, Tensor(0)), tensors=(TensorArg((105,), "f16"),)
)


def test_halves(tmp_path: Path) -> None:
    """Whose weight becomes f32 on the stack, a block of a panel at a time."""
    plain = replace(HALVES, parts=(72, 33))
    spec = packed(plain, AVX2)
    compile_site(spec, tmp_path / "m.vmfb", AVX2)
    for n in (1, 4, 70):
        check(plain.bind({"n": n}), spec.panel, tmp_path / "m.vmfb", 2**-11)


@pairs_here
@pytest.mark.parametrize("dtype", ["bf16", "u8", "i8"])
@pytest.mark.parametrize("amx", [True, False])
def test_words(dtype: Any, amx: bool, tmp_path: Path) -> None:
    plain = LinearSpec(("n",), 64, 105, dtype, parts=(72, 33), zero=dtype != "bf16")
    on = replace(AMX, amx=amx)
    spec = packed(plain, on)
    compile_site(spec, tmp_path / "m.vmfb", on)
    for n in (1, 20, 70):
        # Of a row alone: rounding a sum to bf16, whose numbers have eight bits, is off by up to 2^-8 of it.
        check(plain.bind({"n": n}), spec.panel, tmp_path / "m.vmfb", 2**-8 if dtype == "bf16" else TOLERANCE[dtype])


@pytest.mark.parametrize("on", [AVX2, AVX512], ids=str)
def test_code(on: Target, tmp_path: Path) -> None:
    """One dispatch that writes each result where it is wanted: no buffer on the way, and nothing is copied."""
    spec = packed(LinearSpec((197,), 64, 288, "f32", parts=(96, 96, 96)), on)
    texts = emit_linear(spec, on)
    assert [t.count("flow.executable private") for t in texts.values()] == [1, 0]
    compile_site(spec, tmp_path / "m.stream", on, phase="stream")
    text = (tmp_path / "m.stream").read_text()
    assert len(re.findall(r"stream\.cmd\.dispatch", text)) == 1 and "stream.cmd.copy" not in text
    compile_site(spec, tmp_path / "m.mlir", on, phase="executable-targets")
    text = (tmp_path / "m.mlir").read_text()
    tiles = tiles_for(spec, on)
    unroll = next(u for u in (8, 4, 2, 1) if u <= tiles.unroll)
    assert len(re.findall(r"llvm\.intr\.fmuladd", text)) == 3 * tiles.rows * tiles.vectors * unroll
    assert "llvm.alloca" not in text and "memcpy" not in text


def test_who_takes_a_site() -> None:
    """Up to four results, of a panel's columns at the least."""
    for on in (AVX2, AVX512):
        assert kept_why(LinearSpec((64,), 768, 2304, "f32", parts=(768,) * 3), on) == ""
        odd = LinearSpec((64,), 768, 3 * 97, "f32", parts=(97,) * 3)
        assert "do not divide" in kept_why(odd, on) and kept_why(replace(odd, parts=()), on) == ""
        assert missing(LinearSpec((64,), 64, 160, "f32", parts=(32,) * 5), on) == "more than 4 results"
        narrow = LinearSpec((64,), 768, 1552, "f32", parts=(768, 768, 16))
        assert kept_why(narrow, on) or panel_of(narrow, on) <= 16
    with pytest.raises(UnsupportedError, match="more than 4 results"):
        emit_linear(LinearSpec((64,), 64, 160, "f32", parts=(32,) * 5, panel=16), AVX512)


def test_columns_that_are_computed_twice() -> None:
    """Of each result, since no panel has columns of two."""
    tiles = {"lanes": 8, "rows": 6, "unroll": 4, "down": 4, "across": 4, "vectors": 2}
    assert rows_computed(LinearSpec((12,), 64, 48, "f32"), tiles) == 12
    assert rows_computed(LinearSpec((12,), 64, 48, "f32", parts=(24, 24)), tiles) == 12 * 64 / 48
