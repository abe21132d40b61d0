"""Linear sites on CPUs: the numbers of the kernels, and their code. Of bf16 this machine's units are tried: AMX, or AVX512_BF16."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from onnx_fa.errors import UnsupportedError
from onnx_fa.iree.run import load_module
from onnx_fa.kernels.cpu.linear import emit_linear, kept_why, origin_of, panel_of, tiles_for
from onnx_fa.kernels.cpu.linear_body import LinearTiles
from onnx_fa.kernels.cpu.linear_measured import COMPILER
from onnx_fa.kernels.mlir.text import element_type, tensor_type
from onnx_fa.kernels.tiles.database import FOLDER_ENV, Database, read_database
from onnx_fa.spec.expr import SCORE, Apply, Tensor
from onnx_fa.spec.linear import LinearSpec, biased, multiply
from onnx_fa.spec.linear_cases import in_panels
from onnx_fa.spec.target import Target, foreign_cpu, parse_target
from onnx_fa.spec.terms import TensorArg
from tests.support.cpu_targets import cpu_targets
from tests.support.kernel_harness import cases_asked_for
from tests.support.linear_cases import CASES, SIZES, bound, draw
from tests.support.linear_modules import compile_sites

HOST = parse_target("cpu-host")
AMX = parse_target("cpu-amx")
WHOLE = {name: spec for name, spec in CASES.items() if spec.bits is None and not spec.parts}
PLAIN = [name for name, spec in WHOLE.items() if spec.dtype == "f32" and panel_of(spec, HOST) <= spec.N]
BYTES = [name for name, spec in WHOLE.items() if spec.is_of_bytes]
BFLOAT = [name for name, spec in WHOLE.items() if spec.dtype == "bf16"]
TOLERANCE = {"f32": 3e-7, "bf16": 2**-9, "u8": 1e-7, "i8": 1e-7}
"""Of sums in f32, of rounding them to eight bits, and of what is done to exact sums."""
pairs_here = pytest.mark.skipif(bool(foreign_cpu(AMX)), reason=foreign_cpu(AMX))


def packed(spec: LinearSpec, target: Target = HOST) -> LinearSpec:
    """The site with its weight in the layout of a target."""
    return replace(spec, transposed=False, panel=panel_of(spec, target))


def compile_site(
    spec: LinearSpec,
    output: Path,
    target: Target = HOST,
    flags: Sequence[str] = (),
    tiles: LinearTiles | None = None,
    **options: Any,
) -> None:
    """A module whose function `site` is the site."""
    compile_sites({"site": (spec, tiles)}, output, target, flags, **options)


def run(module: Path, operands: list[npt.NDArray[Any]], function: str = "site") -> npt.NDArray[Any]:
    (found,) = load_module(module, function=function)(*operands)
    return found


@pytest.fixture(scope="module")
def modules(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """By the target's name: a module with a function for each plain case that is tried."""
    tried = cases_asked_for(request, "name", "target")

    @cache
    def compiled(target: str) -> Path:
        on, output = parse_target(target), tmp_path_factory.mktemp("numbers") / "m.vmfb"
        compile_sites({name: (packed(CASES[name], on), None) for name in PLAIN if (name, target) in tried}, output, on)
        return output

    return compiled


@pytest.mark.parametrize("target", cpu_targets("cpu-host", "cpu-avx512", "cpu-avx2"))
@pytest.mark.parametrize("name", PLAIN)
def test_numbers(name: str, target: str, modules: Callable[[str], Path]) -> None:
    on = parse_target(target)
    if why := foreign_cpu(on):
        pytest.skip(why)
    check_module(CASES[name], on, modules(target), name)


@pairs_here
@pytest.mark.parametrize("name", BFLOAT)
@pytest.mark.parametrize("amx", [True, False])
def test_pairs(name: str, amx: bool, tmp_path: Path) -> None:
    check_numbers(CASES[name], replace(AMX, amx=amx), tmp_path)


@pairs_here
@pytest.mark.parametrize("name", BYTES)
@pytest.mark.parametrize("amx", [True, False])
def test_bytes(name: str, amx: bool, tmp_path: Path) -> None:
    check_numbers(CASES[name], replace(AMX, amx=amx), tmp_path)


def check_numbers(plain: LinearSpec, on: Target, tmp_path: Path) -> None:
    compile_site(packed(plain, on), tmp_path / "m.vmfb", on)
    check_module(plain, on, tmp_path / "m.vmfb", "site")


def check_module(plain: LinearSpec, on: Target, module: Path, function: str) -> None:
    """A module's function against float64."""
    spec = packed(plain, on)
    for sizes in SIZES:
        operands = draw(plain, bound(plain, sizes))
        want = multiply(plain, operands)
        w = operands[1].T if plain.transposed else operands[1]
        sums = [w.sum(0, dtype=np.int32)] if spec.zero else []
        moved = [operands[0], in_panels(w, spec.panel), *operands[2 : 2 + len(sums)], *sums, *operands[2 + len(sums) :]]
        # In float64 too, a product of columns in another order may differ in its last bit.
        np.testing.assert_allclose(multiply(spec, moved), want, rtol=1e-12, atol=1e-12 * np.abs(want).max(initial=0.0))
        got = run(module, moved, function)
        assert np.linalg.norm(got - want) <= TOLERANCE[plain.dtype] * np.linalg.norm(want)


def test_erf(tmp_path: Path) -> None:
    """Relative to its own size, from the smallest numbers on; +-1 beyond, for infinities too, and NaN of NaN."""
    numbers = np.concatenate([np.logspace(-37, 0, 500), np.linspace(1, 5, 3000), [1e5, 3e38, np.inf]]).astype(
        np.float32
    )
    x = np.concatenate([numbers, -numbers, [np.nan, 0, -0.0]]).astype(np.float32)[:, None]
    spec = packed(LinearSpec(("rows",), 1, 32, "f32", then=Apply("Erf", SCORE)))
    compile_site(spec, tmp_path / "m.vmfb")
    got = run(tmp_path / "m.vmfb", [x, in_panels(np.ones((1, 32), np.float32), spec.panel)])
    want = np.array([math.erf(v) for v in x[:, 0]])[:, None]
    assert np.array_equal(np.isnan(got), np.isnan(np.broadcast_to(want, got.shape)))
    finite = ~np.isnan(want[:, 0])
    assert (np.abs(got[finite] - want[finite]) <= 5e-7 * np.abs(want[finite])).all()
    assert (np.abs(got[np.abs(x[:, 0]) > 3.84]) == 1).all() and (got[:-2][want[:-2, 0] > 0] > 0).all()


def test_known_rows(tmp_path: Path) -> None:
    """No tile reads or writes past the last row, and infinities stay in their rows."""
    specs = {rows: packed(LinearSpec((rows,), 64, 72, "f32")) for rows in (1, 3, 12, 13, 24, 30)}
    compile_sites({f"rows_{rows}": (spec, None) for rows, spec in specs.items()}, tmp_path / "m.vmfb", HOST)
    for rows, spec in specs.items():
        check_rows(tmp_path / "m.vmfb", spec.panel, rows, function=f"rows_{rows}")


def test_free_rows(tmp_path: Path) -> None:
    spec = packed(LinearSpec(("n",), 64, 72, "f32"))
    compile_site(spec, tmp_path / "m.vmfb")
    for rows in range(1, 31):
        check_rows(tmp_path / "m.vmfb", spec.panel, rows)


@pairs_here
@pytest.mark.parametrize("rows", [1, 12, 16, 31, 48, 50, 64, 130, "n"])
def test_rows_of_pairs(rows: int | str, tmp_path: Path) -> None:
    """The same of tiles of 16 rows, one of them or two at a time, and of lower ones."""
    spec = packed(LinearSpec((rows,), 64, 72, "bf16"), AMX)
    compile_site(spec, tmp_path / "m.vmfb", AMX)
    for n in [rows] if isinstance(rows, int) else [1, 7, 8, 15, 16, 17, 32, 33, 47, 64, 65, 81, 97, 128, 129]:
        check_rows(tmp_path / "m.vmfb", spec.panel, n, ml_dtypes.bfloat16)


def check_rows(module: Path, panel: int, rows: int, dtype: Any = np.float32, function: str = "site") -> None:
    rng = np.random.default_rng(rows)
    x, w = (rng.standard_normal(s).astype(dtype) for s in ((rows, 64), (64, 72)))
    x[rows // 2, 3], w[3] = np.inf, np.abs(w[3])
    y = run(module, [x, in_panels(w, panel)], function).astype(np.float64)
    assert np.isinf(y[rows // 2]).all()
    others = np.arange(rows) != rows // 2
    want = (x.astype(np.float64) @ w.astype(np.float64))[others]
    allowed = {"rtol": 0, "atol": 1e-4} if dtype == np.float32 else {"rtol": 2**-8, "atol": 1e-4}
    np.testing.assert_allclose(y[others], want, **allowed)


@pytest.fixture
def nothing_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cpu-avx2", "cpu-avx512"):
        (tmp_path / f"{name}.json").write_text(Database(name).to_json())
    monkeypatch.setenv(FOLDER_ENV, str(tmp_path))


@pytest.mark.usefixtures("nothing_measured")
def test_tiles() -> None:
    """Rows that a tile of eight does not divide take another height; few rows are one tile."""
    avx = parse_target("cpu-avx512")
    tall = [tiles_for(LinearSpec((rows,), 64, 64, "f32"), avx).rows for rows in (512, 197, 77, 7)]
    assert tall == [8, 8, 7, 7]


def test_height_for_one_image() -> None:
    """Of a free batch, which most often is one: rows of an image that tiles of eight would compute a tenth of twice take another
    height, fewer than a tile are one. Sixteen registers hold no other."""

    def tall(target: str, *lead: int | str, **changes: Any) -> int:
        return tiles_for(LinearSpec(lead, 768, 768, "f32", **changes), parse_target(target)).rows

    wide = [tall("cpu-avx512", "b", rows) for rows in (49, 50, 197, 196, 5, 14, 1)]
    assert wide == [7, 10, 8, 8, 5, 7, 8] and tall("cpu-avx512", "b", 7, 7) == 7
    assert [tall("cpu-avx2", "b", rows) for rows in (49, 50, 5, 4, 1)] == [6, 6, 5, 6, 6]
    # Rows of a free length are many, and four would keep no multiplier busy.
    assert [tall("cpu-avx512", *lead) for lead in (("b", "s", 50), (50, "s"), ("b", 4))] == [8, 8, 8]
    spec, avx = LinearSpec(("b", 50), 768, 768, "f32"), parse_target("cpu-avx512")
    origin = origin_of(spec, avx, "")
    assert dict(origin.tiles)["rows"] == 10 and "one image" in origin.tuning
    assert "one image" not in origin_of(replace(spec, lead=("b", "s")), avx, "").tuning


@pytest.mark.parametrize("target", cpu_targets("cpu-avx512", "cpu-avx2"))
def test_numbers_of_images(target: str, tmp_path: Path) -> None:
    """Of one image and of several, whose rows lie side by side."""
    if why := foreign_cpu(parse_target(target)):
        pytest.skip(why)
    on, specs = parse_target(target), [biased(LinearSpec(("b", rows), 40, 64, "f32")) for rows in (5, 8, 10, 13, 14)]
    given = {f"site{i}": packed(spec, on) for i, spec in enumerate(specs)}
    compile_sites({name: (spec, None) for name, spec in given.items()}, tmp_path / "m.vmfb", on)
    for name, spec in given.items():
        for images in (1, 2, 3):
            operands = draw(spec, (images, spec.rows_of_one))
            found, want = run(tmp_path / "m.vmfb", operands, name), multiply(spec, operands)
            assert np.linalg.norm(found - want) <= 3e-7 * np.linalg.norm(want), (name, images)


def test_who_was_measured_to_be_faster() -> None:
    """With AVX2's vectors too, and at few rows; not where nothing was measured."""
    for target in ("cpu-avx2", "cpu-avx512"):
        on = parse_target(target)
        for rows in (1, 4, 16, 512, "n"):
            spec = LinearSpec((rows,), 768, 3072, "f32")
            assert kept_why(spec, on) == ""
            assert tiles_for(spec, on).rows * tiles_for(spec, on).vectors < on.registers
    assert kept_why(LinearSpec((512,), 768, 3072, "f32"), parse_target("cpu-neon")) == "no AVX-512"


def _measured() -> list[tuple[str, LinearTiles]]:
    """The fastest tiles of every entry of a target that runs here."""
    found: dict[tuple[str, LinearTiles], None] = {}
    for name in ("cpu-avx2", "cpu-avx512"):
        for entry in read_database(name).entries:
            best = entry.choices[0].tiles
            if entry.family.body == "linear" and best != COMPILER and not foreign_cpu(parse_target(name)):
                found[name, LinearTiles(**best)] = None
    return list(found)


@pytest.mark.parametrize("target", ["cpu-avx2", "cpu-avx512"])
def test_numbers_of_measured_tiles(target: str, tmp_path: Path) -> None:
    """With rows, columns and workgroups that they do not divide."""
    if why := foreign_cpu(parse_target(target)):
        pytest.skip(why)
    on, plain = parse_target(target), biased(LinearSpec((131,), 40, 3 * 64 + 5, "f32"))
    measured = [tiles for name, tiles in _measured() if name == target]
    specs = [replace(plain, panel=tiles.vectors * tiles.lanes) for tiles in measured]
    sites = {f"tiles_{i}": site for i, site in enumerate(zip(specs, measured, strict=True))}
    compile_sites(sites, tmp_path / "m.vmfb", on)
    operands = draw(plain, (131,))
    want = multiply(plain, operands)
    for name, (spec, tiles) in sites.items():
        got = run(tmp_path / "m.vmfb", [operands[0], in_panels(operands[1], spec.panel), *operands[2:]], name)
        assert np.linalg.norm(got - want) <= TOLERANCE["f32"] * np.linalg.norm(want), tiles


def test_code_of_avx2(tmp_path: Path) -> None:
    """The sums of measured tiles stay in its 16 registers: the innermost loop touches no stack."""
    on = parse_target("cpu-avx2")
    spec = packed(LinearSpec((48,), 768, 3072, "f32"), on)
    compile_site(spec, tmp_path / "m.vmfb", on, (f"--iree-hal-dump-executable-intermediates-to={tmp_path}",))
    code = "".join(f.read_text() for f in tmp_path.glob("*.s"))
    loop = max(re.split(r"^(?=\.L)", code, flags=re.MULTILINE), key=lambda part: part.count("vfmadd"))
    multiplied = loop.count("vfmadd")
    assert multiplied >= 12 and len(re.findall(r"\(%r[sb]p\)", loop)) <= multiplied // 8


@pytest.mark.usefixtures("nothing_measured")
def test_who_takes_a_site() -> None:
    """Vectors of 16 lanes, f32, more rows than four or a number that only the run knows, and a panel of columns at the least."""
    avx = parse_target("cpu-avx512")
    for rows, target, wanted in (
        (5, avx, ""),
        ("n", avx, ""),
        (4, avx, "few rows"),
        (64, parse_target("cpu-avx2"), "no AVX-512"),
        (64, parse_target("cpu-neon"), "no AVX-512"),
        (64, parse_target("cpu-avx512", "iree"), "--kernels iree"),
    ):
        assert kept_why(LinearSpec((rows,), 64, 64, "f32"), target) == wanted
    assert kept_why(LinearSpec((64,), 64, 24, "f32"), avx) == "fewer than 32 columns"
    assert kept_why(LinearSpec((64,), 64, 64, "bf16"), avx) == "no AVX512_BF16"
    assert kept_why(LinearSpec((64,), 63, 64, "bf16"), AMX) == "odd K"
    assert kept_why(LinearSpec((64,), 64, 64, "bf16"), AMX) == ""
    assert kept_why(LinearSpec((64,), 64, 64, "u8"), avx) == "no AVX512_VNNI"
    assert kept_why(LinearSpec((64,), 62, 64, "u8"), AMX) == "K that 4 does not divide"
    assert kept_why(LinearSpec((1,), 64, 64, "u8"), AMX) == ""
    assert kept_why(LinearSpec((64,), 64, 64, "f32", parts=(32, 32)), avx) == ""
    assert kept_why(LinearSpec((64,), 64, 64, "f32", parts=(40, 24)), avx) == "fewer than 32 columns"
    mixed = LinearSpec((64,), 64, 64, "bf16", then=Apply("Add", SCORE, Tensor(0)), tensors=(TensorArg((64,)),))
    assert kept_why(mixed, AMX) == "bf16 on a CPU"


def test_code(tmp_path: Path) -> None:
    """A step along K is a fused multiply-add for each vector of the tile, whose sums stay in registers."""
    avx = parse_target("cpu-avx512")
    spec, tiles = replace(LinearSpec((48,), 64, 128, "f32"), panel=32), LinearTiles(16, 8, 4, 4, 4)
    compile_site(spec, tmp_path / "m.mlir", avx, tiles=tiles, phase="executable-targets")
    text = (tmp_path / "m.mlir").read_text()
    assert len(re.findall(r"llvm\.intr\.fmuladd", text)) == 8 * 2 * 4


def test_code_of_pairs(tmp_path: Path) -> None:
    """One dispatch with the instructions of tiles, loaded from where the operands are, and those of vectors."""
    spec, flags = (
        packed(LinearSpec((48,), 64, 128, "bf16"), AMX),
        f"--iree-hal-dump-executable-intermediates-to={tmp_path}",
    )
    texts = emit_linear(spec, AMX)
    assert [t.count("flow.executable private") for t in texts.values()] == [1, 0]
    types = [tensor_type(s, element_type(d)) for s, d in zip(spec.operand_shapes, spec.operand_dtypes, strict=True)]
    assert types == ["tensor<48x64xbf16>", "tensor<4x32x64xbf16>"]
    compile_site(spec, tmp_path / "m.vmfb", AMX, (flags,))
    code = "".join(f.read_text() for f in tmp_path.glob("*.s"))
    for instruction in ("syscall", "ldtilecfg", "tdpbf16ps", "tilestored", "tilerelease", "vdpbf16ps"):
        assert instruction in code, instruction
    compile_site(spec, tmp_path / "m.stream", AMX, phase="stream")
    text = (tmp_path / "m.stream").read_text()
    assert len(re.findall(r"stream\.cmd\.dispatch", text)) == 1 and "stream.cmd.copy" not in text
    compile_site(spec, tmp_path / "m.mlir", AMX, phase="executable-targets")
    text = (tmp_path / "m.mlir").read_text()
    stack = sorted(re.findall(r"llvm\.alloca %\w+ x (\S+ x \w+>|\w+)", text))
    assert stack == ["!llvm.array<1024 x f32>", "!llvm.array<64 x i8>", "i64", "i64"], "an operand was copied"


@pytest.mark.parametrize("dtype", ["u8", "i8"])
def test_code_of_bytes(dtype: str, tmp_path: Path) -> None:
    """One dispatch with the instructions of tiles and those of vectors, and no copy of an operand."""
    spec = packed(LinearSpec((48,), 64, 128, dtype, zero=True), AMX)  # type: ignore[arg-type]
    compile_site(spec, tmp_path / "m.vmfb", AMX, (f"--iree-hal-dump-executable-intermediates-to={tmp_path}",))
    code = "".join(f.read_text() for f in tmp_path.glob("*.s"))
    for instruction in ("tdpbusd" if dtype == "u8" else "tdpbssd", "vpdpbusd", "vcvtdq2ps"):
        assert instruction in code, instruction
    compile_site(spec, tmp_path / "m.mlir", AMX, phase="executable-targets")
    stack = sorted(re.findall(r"llvm\.alloca %\w+ x (\S+ x \w+>|\w+)", (tmp_path / "m.mlir").read_text()))
    assert stack == ["!llvm.array<1024 x i32>", "!llvm.array<64 x i8>", "i64", "i64"], "an operand was copied"


@pytest.mark.parametrize(
    "changes",
    [
        {"panel": 16},
        {"panel": 0},
        {"dtype": "bf16"},
        {"N": 480, "parts": (96,) * 5},
        {"dtype": "i8"},
        {"dtype": "u8"},
    ],
)
def test_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="linear site"):
        emit_linear(replace(packed(CASES["plain"]), **changes), parse_target("cpu-avx512"))
