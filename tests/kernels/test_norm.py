"""Norm sites by Triton: their numbers in Triton's interpreter, their code, and the functions that programs call (no GPU needed)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from onnx_fa.errors import UnsupportedError
from onnx_fa.iree.compiler import iree_compile
from onnx_fa.kernels.row_sites import kept_why
from onnx_fa.kernels.triton.norm import MOST_NUMBERS, config_of, emit_norm
from onnx_fa.spec.norm import NormSpec, norm_name, normalise
from onnx_fa.spec.target import parse_target
from tests.support.norm_cases import CASES, function_text, tolerance

ROOT = Path(__file__).parents[2]
CUDA = parse_target("cuda")


def test_numbers() -> None:
    """The source, run in the interpreter, is within its rounding of float64, also where squares overflow; and NaN where that is."""
    names = [name for name, spec in CASES.items() if "bf16" not in spec.operand_dtypes]
    command = [sys.executable, "-m", "tests.support.norm_interpreter", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {n: d for n, (d, _) in found.items() if not d <= tolerance(CASES[n])} == {}
    assert [n for n, (_, same) in found.items() if not same] == []


def test_meaning() -> None:
    """The reference against numbers that were computed one by one."""
    layer = NormSpec((1,), 4, "f32", "f32", 0.75, True, "f32", "f32")
    x = np.array([[1, 2, 3, 6]], np.float32)  # less 3: -2, -1, 0, 3, of which the mean square is 3.5
    (y,) = normalise(layer, [x, np.array([1, 2, 3, 4.0]), np.array([0, 0, 1, 0.0])])
    assert np.allclose(y, np.array([[-2, -2, 0, 12]]) / np.sqrt(4.25) + [0, 0, 1, 0], rtol=1e-15)
    rms = NormSpec((1,), 2, "f32", "f32", 0.0, False, skip=True, gives_sum=True)
    y, total = normalise(rms, [np.array([[1.0, 5.0]]), np.array([[2.0, -1.0]])])
    assert total.tolist() == [[3, 4]] and np.allclose(y, np.array([[3, 4]]) / np.sqrt(12.5), rtol=1e-15)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"N": 0}, "rows of 0"), ({"epsilon": -1.0}, "epsilon of -1"), ({"gives_sum": True}, "nothing is added")],
)
def test_what_is_no_site(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        NormSpec(**{"lead": (4,), "N": 64, "dtype": "f32", "result": "f32", "epsilon": 1e-5} | changes)  # type: ignore[arg-type]


def _module(spec: NormSpec) -> str:
    """A module whose function `site` is the site."""
    return "\n".join([*emit_norm(spec).values(), function_text("site", spec)])


@pytest.mark.parametrize("name", ["layer", "sum", "dynamic_sum", "bfloat"])
def test_modules(name: str, tmp_path: Path) -> None:
    """One dispatch a call, of code for both architectures; rows known at run time only are one workgroup at the least."""
    spec = CASES[name]
    iree_compile(_module(spec), tmp_path / "m.stream", CUDA, phase="stream", timeout_s=120)
    text = (tmp_path / "m.stream").read_text()
    assert len(re.findall(r"stream\.cmd\.dispatch", text)) == 1 and "stream.cmd.copy" not in text
    assert ("arith.maxui" in _module(spec)) == (spec.rows is None)
    iree_compile(_module(spec), tmp_path / "m.vmfb", CUDA, timeout_s=120)
    data = (tmp_path / "m.vmfb").read_bytes()
    assert b".target sm_90a" in data and b".target sm_80" in data


def test_code() -> None:
    """Memory is read once: as many loads of global memory as operands, of 16 bytes where rows allow."""
    text = "".join(emit_norm(NormSpec((512,), 1024, "f16", "f16", 1e-5, True, "f16", "f16")).values())
    for code in (bytes.fromhex(x).decode() for x in re.findall(r'dense<"0x([0-9a-f]+)"', text)):
        assert len(re.findall(r"ld\.global\.v4", code)) == 3 and len(re.findall(r"st\.global", code)) == 1


def test_rows_that_registers_do_not_hold() -> None:
    longest = NormSpec((2,), MOST_NUMBERS, "f16", "f16", 1e-5)
    assert config_of(longest).warps * 32 * 64 == MOST_NUMBERS
    longer = NormSpec((2,), MOST_NUMBERS + 1, "f16", "f16", 1e-5)
    with pytest.raises(UnsupportedError, match="32769 numbers"):
        emit_norm(longer)
    assert "32769 numbers" in kept_why(longer, CUDA)
    assert kept_why(CASES["layer"], parse_target("cuda", "iree")) == "--kernels iree"


def test_names() -> None:
    """Equal specs share a function, others do not."""
    assert len({norm_name(spec) for spec in CASES.values()}) == len(CASES)
    assert norm_name(CASES["bare"]) == norm_name(NormSpec((3,), 40, "f32", "f32", 1e-5))
