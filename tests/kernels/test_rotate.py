"""Rotations of rows by Triton: their numbers in Triton's interpreter, and the functions that programs call (no GPU needed)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from onnx_fa.iree.compiler import iree_compile
from onnx_fa.kernels.mlir.text import element_type, tensor_type
from onnx_fa.kernels.triton.rotate import emit_rotated
from onnx_fa.spec.rotated import KeptHeads, RotatedSpec, rotate, rotated_name
from onnx_fa.spec.target import parse_target
from tests.support.rotation_cases import CASES
from tests.support.triton_sources import triton_sources

ROOT = Path(__file__).parents[2]
CUDA = parse_target("cuda")
TOLERANCE = {"f32": 1e-6, "f16": 4e-3}
"""Of a sum of two products of numbers below 4, rounded once."""


def test_numbers() -> None:
    command = [sys.executable, "-m", "tests.support.rotation_interpreter", *CASES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {n: d for n, d in found.items() if not max(d) <= TOLERANCE[CASES[n].dtype]} == {}


def test_meaning() -> None:
    """The reference against numbers that were computed one by one: a quarter turn, and rows at the end of caches."""
    spec = RotatedSpec((1, 2), 8, 0, 1, 2, "f32", KeptHeads(4, 6, 1, 3))
    x = np.arange(16, dtype=np.float32).reshape(1, 2, 8)
    cos, sin = np.array([[[0.0], [1.0]]]), np.array([[[1.0], [0.0]]])
    keys, values = (np.full((3, 1, 1, 2), float(n)) for n in (-1, -2))
    y, k, v = rotate(spec, [x, cos, sin, keys, values])
    assert y.tolist() == [[[-1, 0], [8, 9]]]
    assert k[:, 0, 0].tolist() == [[-1, -1], [-5, 4], [12, 13]] and v[:, 0, 0].tolist() == [[-2, -2], [6, 7], [14, 15]]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"D": 7}, "7 numbers have no halves"),
        ({"heads": 5}, "rows of 64"),
        ({"kept": KeptHeads(48, 32, 2, 4)}, "rows of 64"),
    ],
)
def test_what_is_no_rotation(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        RotatedSpec(**{"lead": (1, 1), "width": 64, "first": 0, "heads": 2, "D": 16, "dtype": "f32"} | changes)  # type: ignore[arg-type]


def _module(spec: RotatedSpec) -> str:
    """A module whose function `site` is the rotation, in the caches that are passed to it."""
    types = [tensor_type(shape, element_type(spec.dtype)) for shape in spec.operand_shapes]
    given = ", ".join(f"%a{i}: {type_}" for i, type_ in enumerate(types))
    results = ", ".join(tensor_type(shape, element_type(dtype)) for shape, dtype in spec.results)
    values, many = ", ".join(f"%a{i}" for i in range(len(types))), len(spec.results)
    names = ", ".join(f"%r#{i}" for i in range(many)) if many > 1 else "%r"
    result = f"%r:{many}" if many > 1 else "%r"
    call = f"{result} = util.call @{rotated_name(spec)}({values}) : ({', '.join(types)}) -> ({results})"
    function = [f"func.func @site({given}) -> ({results}) {{", call, f"return {names} : {results}", "}"]
    return "\n".join([*emit_rotated(spec).values(), *function])


@pytest.mark.parametrize("name", ["token", "prompt", "columns"])
def test_modules(name: str, tmp_path: Path) -> None:
    """One dispatch a call, which copies nothing but what is to be the caller's; of no rows, one workgroup."""
    spec = CASES[name]
    with nullcontext() if name == "token" else triton_sources():
        module = _module(spec)
    iree_compile(module, tmp_path / "m.stream", CUDA, phase="stream", timeout_s=120)
    text = (tmp_path / "m.stream").read_text()
    assert len(re.findall(r"stream\.cmd\.dispatch", text)) == 1
    assert ("arith.maxui" in module) == (name == "prompt")
    if name == "token":
        iree_compile(module, tmp_path / "m.vmfb", CUDA, timeout_s=120)
        data = (tmp_path / "m.vmfb").read_bytes()
        assert b".target sm_90a" in data and b".target sm_80" in data
