"""Runs the Triton source of linear sites in Triton's interpreter: `python -m tests.support.linear_interpreter NAME...` prints, as
JSON, the distance of each case from float64. A process of its own, since Triton decides when it is imported."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from onnx_fa.kernels.triton.few_source import MOST_ROWS, FewConfig
from onnx_fa.kernels.triton.linear import FEW
from onnx_fa.kernels.triton.linear_bits import FewBitsSource
from onnx_fa.kernels.triton.linear_few import FewRowsSource
from onnx_fa.kernels.triton.linear_source import LinearConfig, LinearSource, program_of_forms
from onnx_fa.kernels.triton.program import Program
from onnx_fa.kernels.triton.ptx import load_function
from onnx_fa.spec.fused_linear import FusedLinear, multiply_fused
from onnx_fa.spec.linear import LinearSpec, multiply
from tests.support.linear_cases import CASES, FUSED, SIZES, bound, draw, draw_fused
from tests.support.quick_interpreter import quicken

quicken()


LARGE = 5e37
"""Numbers of x whose products with those of a weight f32 holds, and with its integers it does not."""


_JOINED = (
    r"tl\.inline_asm_elementwise\('{ \.reg \.b32 e; mov\.b32 e, (\w+); lop3\.b32 \$0, \$1, (\w+), e, 0xEA; }', "
    r"'=r,r', \[(\w+)\], .*?\)\."
)


def without_assembly(program: Program) -> Program:
    """The program with what its one instruction in assembly does as operations: the interpreter has no assembly."""
    text = re.sub(_JOINED, r"((\3 & \2) | \1).", program.text)
    assert "asm" not in text
    return replace(program, text=text)


def is_cut(spec: LinearSpec) -> bool:
    """Whether K is cut into parts, which is tried where it is long."""
    return spec.K >= 192 or (spec.rows is None and spec.K >= 96)


def run(spec: LinearSpec, lead: tuple[int, ...], operands: list[Any]) -> list[Any]:
    """y (*lead, N), by small tiles; several results side by side. Of free rows the grid says how many parts there are, and there is
    a y of each number that is tried; not a number where a second call gives another one."""
    rows, step = int(np.prod(lead)), 16 * (spec.bits.places if spec.bits else 1)
    few = spec.rows is not None and spec.rows <= MOST_ROWS
    splits = 3 if is_cut(spec) else 1
    config: FewConfig | LinearConfig = LinearConfig(16, 32, step, 4, 1, splits)
    others = splits if spec.dtype == "f32" else 1  # of halves those of a few rows alone are cut
    wide = LinearConfig(32, 64, 2 * step, 4, 1, others)
    if few:
        config = FewConfig(4, 4 * step, 1) if spec.bits else FewConfig(32, step, 3)
    if isinstance(config, FewConfig) and spec.bits is not None:
        program = without_assembly(FewBitsSource(FusedLinear(spec), config, "linear").program())
    elif isinstance(config, FewConfig):
        program = FewRowsSource(FusedLinear(spec), config, "linear").program()
    elif spec.rows is None and all(p % wide.BN == 0 for p in spec.parts):
        low = LinearConfig(32, 32, step, 4, 1, others)
        tiles_of = ((FEW, config), (64, low), (0, wide))
        forms = [(most, LinearSource(spec, tiles, f"of_{most}", "ieee")) for most, tiles in tiles_of]
        program = program_of_forms(forms, "linear")
        config = next(tiles for most, tiles in tiles_of if rows <= most or not most)
    else:
        program = LinearSource(spec, config, "linear", "ieee").program()
    dtype = torch.float32 if spec.dtype == "f32" else torch.float16
    outs = [torch.full((rows, columns), float("nan"), dtype=dtype) for columns in spec.parts or (spec.N,)]
    inputs = [torch.from_numpy(np.ascontiguousarray(x.view(np.int8) if x.dtype == np.uint8 else x)) for x in operands]
    with tempfile.TemporaryDirectory() as folder:
        function = load_function(program, Path(folder))
        tiles = -(-rows // config.BM) * -(-spec.N // config.BN)
        if any(name == "part" for name, _ in program.pointers):
            inputs += [
                torch.zeros(tiles, dtype=torch.int32),
                torch.full((config.splits * tiles * config.BM * config.BN,), float("nan")),
            ]
        found = []
        for parts in sorted({1, config.splits}) if spec.rows is None else [config.splits]:
            calls = [[out.clone() for out in outs] for _ in range(2)]
            for made in calls[: 1 + (parts > 1)]:
                function[tiles, parts](*inputs, *made, rows)
            if parts > 1 and not all(torch.equal(a, b) for a, b in zip(*calls, strict=True)):
                return [np.full((*lead, spec.N), np.nan)]
            found.append(torch.cat(calls[0], 1).numpy().reshape(*lead, spec.N))
    return found


def run_fused(spec: FusedLinear, operands: list[Any]) -> Any:
    """y (*lead, N), by small tiles."""
    product = spec.product
    assert product.rows is not None
    source, config = FewRowsSource, FewConfig(32, 16, 3)
    if product.bits is not None:
        source, config = FewBitsSource, FewConfig(8, 64 * product.bits.places, 1)
    program = without_assembly(source(spec, config, "fused").program())
    dtype = torch.float32 if product.dtype == "f32" else torch.float16
    outs = [torch.full((product.rows, columns), float("nan"), dtype=dtype) for columns in product.widths]
    inputs = [torch.from_numpy(np.ascontiguousarray(x.view(np.int8) if x.dtype == np.uint8 else x)) for x in operands]
    grid, weights = (-(-product.N // config.BN), config.splits), 2 if spec.gate else 1
    if config.splits > 1:
        parts = torch.full((config.splits * weights * product.rows * product.N,), float("nan"))
        inputs += [torch.zeros(grid[0], dtype=torch.int32), parts]
    with tempfile.TemporaryDirectory() as folder:
        load_function(program, Path(folder))[grid](*inputs, *outs, product.rows)
    return torch.cat(outs, 1).numpy().reshape(*product.lead, product.N)


def fused_distance(spec: FusedLinear) -> float:
    """The largest relative distance, of rows whose squares no f32 holds too."""
    found = 0.0
    for size in (1.0, *[1e25] * (spec.norm is not None and spec.norm.dtype == "f32")):
        operands = draw_fused(spec, size=size)
        want = multiply_fused(spec, operands)
        found = float(np.maximum(found, np.linalg.norm(run_fused(spec, operands) - want) / np.linalg.norm(want)))
    return found


def distance(name: str) -> float:
    """The largest relative distance of the results, of all sizes."""
    if name in FUSED:
        return fused_distance(FUSED[name])
    spec, found = CASES[name], 0.0
    few_bits = spec.bits is not None and spec.rows is not None and spec.rows <= MOST_ROWS
    for lead in dict.fromkeys(bound(spec, sizes) for sizes in SIZES):
        for size in (1.0, *[LARGE] * (few_bits and spec.dtype == "f32")):
            operands = draw(spec, lead, size=size)
            if size == LARGE:
                operands[2] = (operands[2] * 0.01).astype(operands[2].dtype)
            want = multiply(spec, operands) / size
            for made in run(spec, lead, operands):
                got = made.astype(np.float64) / size
                found = float(np.maximum(found, np.linalg.norm(got - want) / np.linalg.norm(want)))  # NaN stays
    return found


if __name__ == "__main__":
    print(json.dumps({name: distance(name) for name in sys.argv[1:]}))
