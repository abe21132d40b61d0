"""Linear sites on CPUs: the numbers of the vector kernel, and its code."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from onnx_fa.errors import UnsupportedError
from onnx_fa.iree.compile import MODEL_FLAGS
from onnx_fa.iree.compiler import iree_compile
from onnx_fa.kernels.cpu.linear import emit_linear, is_faster, panel_of, tiles_for
from onnx_fa.kernels.mlir.text import element_type, tensor_type
from onnx_fa.spec.linear import LinearSpec, linear_name, multiply
from onnx_fa.spec.target import Target, foreign_cpu, parse_target
from tests.support.linear_cases import CASES, SIZES, bound, draw, in_panels

HOST = parse_target("cpu-host")
PLAIN = [name for name, spec in CASES.items() if spec.dtype == "f32" and spec.bits is None and panel_of(HOST) <= spec.N]
TOLERANCE = 3e-7


def packed(spec: LinearSpec, target: Target = HOST) -> LinearSpec:
    """The site with its weight in the layout of a target."""
    return replace(spec, transposed=False, panel=panel_of(target))


def compile_site(spec: LinearSpec, output: Path, target: Target = HOST, **options: Any) -> None:
    """A module whose function `site` is the site."""
    types = [tensor_type(s, element_type(d)) for s, d in zip(spec.operand_shapes, spec.operand_dtypes, strict=True)]
    ((shape, dtype),) = spec.results
    result, names = tensor_type(shape, dtype), [f"%a{i}" for i in range(len(types))]
    arguments = ", ".join(f"{n}: {t}" for n, t in zip(names, types, strict=True))
    call = f"%r = util.call @{linear_name(spec)}({', '.join(names)}) : ({', '.join(types)}) -> {result}"
    function = [f"func.func @site({arguments}) -> {result} {{", call, f"return %r : {result}", "}"]
    text = "\n".join([*emit_linear(spec, target).values(), *function])
    iree_compile(text, output, target, flags=MODEL_FLAGS["llvm-cpu"], timeout_s=120, **options)


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
    plain = CASES[name]
    spec = packed(plain, on)
    compile_site(spec, tmp_path / "m.vmfb", on)
    for sizes in SIZES:
        operands = draw(plain, bound(plain, sizes))
        want = multiply(plain, operands)
        w = operands[1].T if plain.transposed else operands[1]
        moved = [operands[0], in_panels(w, spec.panel), *operands[2:]]
        assert np.array_equal(multiply(spec, moved), want)
        got = run(tmp_path / "m.vmfb", moved)
        assert np.linalg.norm(got - want) <= TOLERANCE * np.linalg.norm(want)


@pytest.mark.parametrize("rows", [1, 3, 12, 13, 24, 30])
def test_known_rows(rows: int, tmp_path: Path) -> None:
    """No tile reads or writes past the last row, and infinities stay in their rows."""
    compile_site(packed(LinearSpec((rows,), 40, 72, "f32")), tmp_path / "m.vmfb")
    _check_rows(tmp_path / "m.vmfb", rows)


def test_free_rows(tmp_path: Path) -> None:
    compile_site(packed(LinearSpec(("n",), 40, 72, "f32")), tmp_path / "m.vmfb")
    for rows in range(1, 31):
        _check_rows(tmp_path / "m.vmfb", rows)


def _check_rows(module: Path, rows: int) -> None:
    rng = np.random.default_rng(rows)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((rows, 40), (40, 72)))
    x[rows // 2, 3], w[3] = np.inf, np.abs(w[3])
    y = run(module, [x, in_panels(w, panel_of(HOST))])
    assert np.isinf(y[rows // 2]).all()
    others = np.arange(rows) != rows // 2
    np.testing.assert_allclose(y[others], (x.astype(np.float64) @ w)[others], rtol=0, atol=1e-4)


def test_tiles() -> None:
    """Rows that a tile of eight does not divide take another height; few rows are one tile."""
    avx = parse_target("cpu-avx512")
    tall = [tiles_for(LinearSpec((rows,), 64, 64, "f32"), avx).rows for rows in (512, 197, 77, 7)]
    assert tall == [8, 8, 7, 7]


def test_who_takes_a_site() -> None:
    """Vectors of 16 lanes, f32, more rows than four or a number that only the run knows, and a panel of columns at the least."""
    avx = parse_target("cpu-avx512")
    for rows, target, wanted in (
        (5, avx, True),
        ("n", avx, True),
        (4, avx, False),
        (64, parse_target("cpu-avx2"), False),
        (64, parse_target("cpu-neon"), False),
        (64, parse_target("cpu-avx512", "iree"), False),
    ):
        assert is_faster(LinearSpec((rows,), 64, 64, "f32"), target) == wanted
    assert not is_faster(LinearSpec((64,), 64, 24, "f32"), avx) and not is_faster(LinearSpec((64,), 64, 64, "f16"), avx)


def test_code(tmp_path: Path) -> None:
    """A step along K is a fused multiply-add for each vector of the tile, whose sums stay in registers."""
    avx = parse_target("cpu-avx512")
    compile_site(packed(LinearSpec((48,), 64, 128, "f32"), avx), tmp_path / "m.mlir", avx, phase="executable-targets")
    text = (tmp_path / "m.mlir").read_text()
    assert len(re.findall(r"llvm\.intr\.fmuladd", text)) == 8 * 2 * 4


@pytest.mark.parametrize("changes", [{"dtype": "f16"}, {"panel": 16}, {"panel": 0}])
def test_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="linear site"):
        emit_linear(replace(packed(CASES["plain"]), **changes), parse_target("cpu-avx512"))
