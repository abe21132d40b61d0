"""Linear sites on CPUs: the numbers of the kernels, and their code. Of bf16 this machine's units are tried: AMX, or AVX512_BF16."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from onnx_fa.errors import UnsupportedError
from onnx_fa.iree.compile import MODEL_FLAGS
from onnx_fa.iree.compiler import iree_compile
from onnx_fa.kernels.cpu.linear import emit_linear, kept_why, panel_of, tiles_for
from onnx_fa.kernels.mlir.text import element_type, tensor_type
from onnx_fa.spec.expr import SCORE, Apply, Tensor
from onnx_fa.spec.linear import LinearSpec, linear_name, multiply
from onnx_fa.spec.target import Target, foreign_cpu, parse_target
from onnx_fa.spec.terms import TensorArg
from tests.support.linear_cases import CASES, SIZES, bound, draw, in_panels

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
    spec: LinearSpec, output: Path, target: Target = HOST, flags: Sequence[str] = (), **options: Any
) -> None:
    """A module whose function `site` is the site."""
    types = [tensor_type(s, element_type(d)) for s, d in zip(spec.operand_shapes, spec.operand_dtypes, strict=True)]
    ((shape, dtype),) = spec.results
    result, names = tensor_type(shape, dtype), [f"%a{i}" for i in range(len(types))]
    arguments = ", ".join(f"{n}: {t}" for n, t in zip(names, types, strict=True))
    call = f"%r = util.call @{linear_name(spec)}({', '.join(names)}) : ({', '.join(types)}) -> {result}"
    function = [f"func.func @site({arguments}) -> {result} {{", call, f"return %r : {result}", "}"]
    text = "\n".join([*emit_linear(spec, target).values(), *function])
    iree_compile(text, output, target, flags=(*MODEL_FLAGS["llvm-cpu"], *flags), timeout_s=120, **options)


def run(module: Path, operands: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    import iree.runtime as rt

    found: npt.NDArray[Any] = rt.load_vm_flatbuffer_file(str(module), driver="local-task").site(*operands).to_host()
    return found


@pytest.mark.parametrize("target", ["cpu-host", "cpu-avx512", "cpu-avx2"])
@pytest.mark.parametrize("name", PLAIN)
def test_numbers(name: str, target: str, tmp_path: Path) -> None:
    on = parse_target(target)
    if why := foreign_cpu(on):
        pytest.skip(why)
    _check_numbers(CASES[name], on, tmp_path)


@pairs_here
@pytest.mark.parametrize("name", BFLOAT)
@pytest.mark.parametrize("amx", [True, False])
def test_pairs(name: str, amx: bool, tmp_path: Path) -> None:
    _check_numbers(CASES[name], replace(AMX, amx=amx), tmp_path)


@pairs_here
@pytest.mark.parametrize("name", BYTES)
@pytest.mark.parametrize("amx", [True, False])
def test_bytes(name: str, amx: bool, tmp_path: Path) -> None:
    _check_numbers(CASES[name], replace(AMX, amx=amx), tmp_path)


def _check_numbers(plain: LinearSpec, on: Target, tmp_path: Path) -> None:
    spec = packed(plain, on)
    compile_site(spec, tmp_path / "m.vmfb", on)
    for sizes in SIZES:
        operands = draw(plain, bound(plain, sizes))
        want = multiply(plain, operands)
        w = operands[1].T if plain.transposed else operands[1]
        sums = [w.sum(0, dtype=np.int32)] if spec.zero else []
        moved = [operands[0], in_panels(w, spec.panel), *operands[2 : 2 + len(sums)], *sums, *operands[2 + len(sums) :]]
        assert np.array_equal(multiply(spec, moved), want)
        got = run(tmp_path / "m.vmfb", moved)
        assert np.linalg.norm(got - want) <= TOLERANCE[plain.dtype] * np.linalg.norm(want)


@pytest.mark.parametrize("rows", [1, 3, 12, 13, 24, 30])
def test_known_rows(rows: int, tmp_path: Path) -> None:
    """No tile reads or writes past the last row, and infinities stay in their rows."""
    compile_site(packed(LinearSpec((rows,), 64, 72, "f32")), tmp_path / "m.vmfb")
    _check_rows(tmp_path / "m.vmfb", rows)


def test_free_rows(tmp_path: Path) -> None:
    compile_site(packed(LinearSpec(("n",), 64, 72, "f32")), tmp_path / "m.vmfb")
    for rows in range(1, 31):
        _check_rows(tmp_path / "m.vmfb", rows)


@pairs_here
@pytest.mark.parametrize("rows", [1, 12, 16, 31, 48, 50, 64, 130, "n"])
def test_rows_of_pairs(rows: int | str, tmp_path: Path) -> None:
    """The same of tiles of 16 rows, one of them or two at a time, and of lower ones."""
    compile_site(packed(LinearSpec((rows,), 64, 72, "bf16"), AMX), tmp_path / "m.vmfb", AMX)
    for n in [rows] if isinstance(rows, int) else [1, 7, 8, 15, 16, 17, 32, 33, 47, 64, 65, 81, 97, 128, 129]:
        _check_rows(tmp_path / "m.vmfb", n, ml_dtypes.bfloat16)


def _check_rows(module: Path, rows: int, dtype: Any = np.float32) -> None:
    rng = np.random.default_rng(rows)
    x, w = (rng.standard_normal(s).astype(dtype) for s in ((rows, 64), (64, 72)))
    x[rows // 2, 3], w[3] = np.inf, np.abs(w[3])
    y = run(module, [x, in_panels(w, 32)]).astype(np.float64)
    assert np.isinf(y[rows // 2]).all()
    others = np.arange(rows) != rows // 2
    want = (x.astype(np.float64) @ w.astype(np.float64))[others]
    allowed = {"rtol": 0, "atol": 1e-4} if dtype == np.float32 else {"rtol": 2**-8, "atol": 1e-4}
    np.testing.assert_allclose(y[others], want, **allowed)


def test_tiles() -> None:
    """Rows that a tile of eight does not divide take another height; few rows are one tile."""
    avx = parse_target("cpu-avx512")
    tall = [tiles_for(LinearSpec((rows,), 64, 64, "f32"), avx).rows for rows in (512, 197, 77, 7)]
    assert tall == [8, 8, 7, 7]


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
    assert kept_why(LinearSpec((64,), 64, 64, "f32", parts=(32, 32)), avx) == "several results"
    mixed = LinearSpec((64,), 64, 64, "bf16", then=Apply("Add", SCORE, Tensor(0)), tensors=(TensorArg((64,)),))
    assert kept_why(mixed, AMX) == "bf16 on a CPU"


def test_code(tmp_path: Path) -> None:
    """A step along K is a fused multiply-add for each vector of the tile, whose sums stay in registers."""
    avx = parse_target("cpu-avx512")
    compile_site(packed(LinearSpec((48,), 64, 128, "f32"), avx), tmp_path / "m.mlir", avx, phase="executable-targets")
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
        {"parts": (48, 48)},
        {"dtype": "i8"},
        {"dtype": "u8"},
    ],
)
def test_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="linear site"):
        emit_linear(replace(packed(CASES["plain"]), **changes), parse_target("cpu-avx512"))
