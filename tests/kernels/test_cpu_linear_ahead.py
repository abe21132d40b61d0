"""Linear sites whose weight is fetched ahead: their numbers, and what is fetched. Nothing in the code needs AMX, by which a target
says that its cores have two wide multipliers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from onnx_fa.kernels.cpu.linear_body import LinearTiles
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.target import parse_target
from tests.kernels.test_cpu_linear import CASES, HOST, check_numbers, check_rows, compile_site, packed

AHEAD_HOST = replace(HOST, amx=True)


@pytest.mark.parametrize("name", ["plain", "gelu", "dynamic_one", "residual_dynamic"])
def test_numbers(name: str, tmp_path: Path) -> None:
    check_numbers(CASES[name], AHEAD_HOST, tmp_path)


def test_free_rows(tmp_path: Path) -> None:
    """Past the end of the last panel nothing is read that could matter."""
    spec = packed(LinearSpec(("n",), 64, 72, "f32"), AHEAD_HOST)
    compile_site(spec, tmp_path / "m.vmfb", AHEAD_HOST)
    for rows in range(1, 31):
        check_rows(tmp_path / "m.vmfb", spec.panel, rows)


@pytest.mark.parametrize(
    ("rows", "target", "lines"), [(48, "cpu-amx", 2 * 4), (4, "cpu-amx", 0), (48, "cpu-avx512", 0)]
)
def test_what_is_fetched(rows: int, target: str, lines: int, tmp_path: Path) -> None:
    """Each line of a panel once, so many steps before it is read; of a few rows and by other processors none. No operand is
    copied."""
    on = parse_target(target)
    spec, tiles = replace(LinearSpec((rows,), 64, 128, "f32"), panel=32), LinearTiles(16, min(rows, 8), 4, 4, 4)
    compile_site(spec, tmp_path / "m.vmfb", on, (f"--iree-hal-dump-executable-intermediates-to={tmp_path}",), tiles)
    fetched = re.findall(r"prefetcht0\s+(-?\d*)\(", "".join(f.read_text() for f in tmp_path.glob("*.s")))
    assert len(fetched) == lines
    if lines:
        first = min(int(byte or 0) for byte in fetched)
        assert sorted(int(byte or 0) - first for byte in fetched) == [64 * i for i in range(lines)]
    compile_site(spec, tmp_path / "m.mlir", on, phase="executable-targets", tiles=tiles)
    text = (tmp_path / "m.mlir").read_text()
    assert re.findall(r"llvm\.alloca %\w+ x (\S+ x \w+>|\w+)", text) == ["i64"] * bool(lines)
