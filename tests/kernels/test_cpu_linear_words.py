"""Linear sites of bf16 and bytes with AVX2, which widens them: their numbers and their code."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnx_fa.kernels.cpu.linear import body_name, kept_why, tiles_for
from onnx_fa.kernels.cpu.linear_staged import DEEP, MOST_STACK, staged_bytes
from onnx_fa.kernels.row_sites import panel_of
from onnx_fa.spec.expr import SCORE, Apply, Tensor
from onnx_fa.spec.linear import LinearSpec, biased, multiply
from onnx_fa.spec.linear_cases import in_panels, packed
from onnx_fa.spec.target import foreign_cpu, parse_target
from onnx_fa.spec.terms import TensorArg
from tests.kernels.test_cpu_linear import compile_site, run
from tests.support.kernel_harness import cases_asked_for
from tests.support.linear_cases import CASES, SCALED, SIZES, bound, draw
from tests.support.linear_modules import compile_sites

AVX2 = parse_target("cpu-avx2")
pytestmark = pytest.mark.skipif(bool(foreign_cpu(AVX2)), reason=foreign_cpu(AVX2))
LONGER = {
    "pairs": biased(LinearSpec((70,), 2 * DEEP, 96, "bf16")),
    "pairs_rest": biased(LinearSpec(("b", "s"), DEEP + 18, 72, "bf16")),
    "pairs_short_rest": LinearSpec((53,), 2 * DEEP + 2, 53, "bf16", True),
    "pairs_few": LinearSpec((3,), DEEP + 6, 64, "bf16"),
    "bytes": LinearSpec((70,), 4 * DEEP, 96, "u8", zero=True),
    "bytes_rest": LinearSpec(
        ("b", "s"), 2 * DEEP + 36, 72, "u8", then=SCALED, tensors=(TensorArg(()), TensorArg((72,))), zero=True
    ),
    "bytes_short_rest": LinearSpec((53,), 4 * DEEP + 4, 53, "i8", True, zero=True),
    "bytes_few": LinearSpec((3,), DEEP + 12, 64, "i8", zero=True),
}
EVERY = {
    **{n: s for n, s in CASES.items() if (s.dtype == "bf16" and s.bits is None) or s.is_of_bytes},
    **{f"longer_{n}": s for n, s in LONGER.items()},
}
TOLERANCE = {"bf16": 2.0**-9, "u8": 1e-7, "i8": 1e-7}
"""Of rounding sums of f32 to eight bits, and of what is done to exact sums."""


def in_own_panels(plain: LinearSpec) -> LinearSpec:
    """The site with its weight as the kernel wants it."""
    return replace(plain, transposed=False, panel=panel_of(plain, AVX2))


def compiled(plain: LinearSpec, folder: Path, flags: tuple[str, ...] = ()) -> LinearSpec:
    """The site in panels, of which a module is in the folder."""
    spec = in_own_panels(plain)
    compile_site(spec, folder / "m.vmfb", AVX2, flags)
    return spec


@pytest.fixture(scope="module")
def every(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module with a function for each case that is tried."""
    output, tried = tmp_path_factory.mktemp("numbers") / "m.vmfb", cases_asked_for(request, "name")
    compile_sites(
        {name: (in_own_panels(plain), None) for name, plain in EVERY.items() if (name,) in tried}, output, AVX2
    )
    return output


@pytest.mark.parametrize("name", EVERY)
def test_numbers(name: str, every: Path) -> None:
    plain = EVERY[name]
    assert body_name(plain, AVX2) == "linear_staged"
    panel = panel_of(plain, AVX2)
    for sizes in SIZES:
        operands = draw(plain, bound(plain, sizes))
        want = multiply(plain, operands)
        got = run(every, packed(plain, operands, panel), name)
        assert np.linalg.norm(got - want) <= TOLERANCE[plain.dtype] * np.linalg.norm(want)


@pytest.mark.parametrize("dtype", ["u8", "i8"])
def test_bytes_are_exact(dtype: Any, tmp_path: Path) -> None:
    """Where all numbers are the ends of their types, two neighbouring products exceed 16 bits; sums of any rows equal NumPy's."""
    K, N = 2 * DEEP + 20, 40
    plain = LinearSpec(("n",), K, N, dtype, zero=True)
    spec, ends = compiled(plain, tmp_path), np.iinfo(np.uint8 if dtype == "u8" else np.int8)
    for rows in (1, 2, 5, 6, 7, 47, 48, 49, 97):
        rng = np.random.default_rng(rows)
        x = rng.choice([ends.min, ends.max], (rows, K)).astype(ends.dtype)
        w = rng.choice([-128, 127], (K, N)).astype(np.int8)
        x[0], w[:, 0], w[:, 1] = ends.max, 127, -128
        zero = np.array(ends.max if rows % 2 else ends.min, np.int32)
        got = run(tmp_path / "m.vmfb", packed(plain, [x, w, zero], spec.panel))
        assert np.array_equal(got, ((x.astype(np.int64) - zero) @ w.astype(np.int64)).astype(np.float32))


@pytest.mark.parametrize("K", [64, DEEP + 22])
def test_rows_of_pairs(K: int, tmp_path: Path) -> None:
    """No tile reads or writes past the last row, infinities and NaN stay in their rows, and the least numbers count."""
    plain = LinearSpec(("n",), K, 72, "bf16")
    spec = compiled(plain, tmp_path)
    for rows in [*range(1, 15), 31, 48, 65, 129]:
        rng = np.random.default_rng(rows)
        x, w = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((rows, K), (K, 72)))
        odd, nan, w[3] = rows // 2, rows - 1, np.abs(w[3])
        x[odd, 3] = np.inf
        if rows > 3:
            x[0], x[1], x[nan, K - 1] = 2.0**100, 2.0**-100, np.nan
        y = run(tmp_path / "m.vmfb", [x, in_panels(w, spec.panel)]).astype(np.float64)
        assert np.isposinf(y[odd]).all() and (rows <= 3 or np.isnan(y[nan]).all())
        keep = [r for r in range(rows) if r != odd and (rows <= 3 or r != nan)]
        wide, weight = x[keep].astype(np.float64), w.astype(np.float64)
        allowed = 2.0**-8 * np.abs(wide @ weight) + 1e-6 * (np.abs(wide) @ np.abs(weight))
        assert (np.abs(y[keep] - wide @ weight) <= allowed).all()


def test_tiles() -> None:
    """Many rows are multiplied from a block of memory, which tiles of a few do without; the stack holds what waits there."""
    for dtype in ("f16", "bf16", "u8"):
        tall = [tiles_for(LinearSpec((rows,), 768, 768, dtype), AVX2).rows for rows in (1, 4, 16, 64, 512)]
        assert tall[:3] == [1, 4, 4] and min(tall[3:]) > 4
        tiles = tiles_for(LinearSpec((512,), 768, 768, dtype), AVX2)
        assert tiles.rows * tiles.vectors < AVX2.registers - 2
        assert staged_bytes(tiles, stages_x=True) <= MOST_STACK


def test_who_takes_a_site() -> None:
    for dtype in ("bf16", "u8"):
        for rows in (1, 64, "n"):
            assert kept_why(LinearSpec((rows,), 64, 64, dtype), AVX2) == ""
        assert kept_why(LinearSpec((64,), 64, 12, dtype), AVX2) == "fewer than 16 columns"
    assert kept_why(LinearSpec((64,), 63, 64, "bf16"), AVX2) == "odd K"
    assert kept_why(LinearSpec((64,), 62, 64, "u8"), AVX2) == "K that 4 does not divide"
    mixed = LinearSpec((64,), 64, 64, "bf16", then=Apply("Add", SCORE, Tensor(0)), tensors=(TensorArg((64,)),))
    assert kept_why(mixed, AVX2) == "bf16 on a CPU"
    neon = parse_target("cpu-neon")
    assert kept_why(LinearSpec((64,), 64, 64, "bf16"), neon) == kept_why(LinearSpec((64,), 64, 64, "u8"), neon)


@pytest.mark.parametrize(
    ("dtype", "multiplies", "never"),
    [
        ("u8", "vpmaddwd", "vpmulld"),
        ("i8", "vpmaddwd", "vpmulld"),
        ("bf16", "vfmadd", "vpmaddwd"),
    ],
)
def test_code(dtype: Any, multiplies: str, never: str, tmp_path: Path) -> None:
    """The loop of many rows multiplies what was widened before, and no instruction that saturates is there."""
    plain = LinearSpec((96,), 768, 256, dtype, zero=dtype != "bf16")
    spec = compiled(plain, tmp_path, (f"--iree-hal-dump-executable-intermediates-to={tmp_path}",))
    code = "".join(f.read_text() for f in tmp_path.glob("*.s"))
    loop = max(re.split(r"^(?=\.L)", code, flags=re.MULTILINE), key=lambda part: part.count(multiplies))
    tiles = tiles_for(spec, AVX2)
    assert loop.count(multiplies) == tiles.rows * tiles.vectors * tiles.unroll
    assert "vpmaddubsw" not in code and not re.search(rf"{never}|vps[lr][la]", loop)
