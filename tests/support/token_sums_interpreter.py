"""Runs the Triton source of linear attention in Triton's interpreter: `python -m tests.support.token_sums_interpreter` prints, as
JSON, the distance of each case from float64. A process of its own, since Triton decides when it is imported."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from onnx_fa.kernels.cpu.token_sums import TokenSums
from onnx_fa.kernels.triton.ptx import load_function
from onnx_fa.kernels.triton.token_sums import sums_program
from onnx_fa.spec.token_sums import token_sums
from tests.support.quick_interpreter import quicken

quicken()

_TOGETHER = ((0, 0), (0, 16), (0, 32))
CASES = {
    "side by side": TokenSums(((2, 100, 3, 48),), _TOGETHER, 16, 16, (True, True), 1e-5),
    "free sizes": TokenSums((("b", "s", 3, 48),), _TOGETHER, 16, 16, (True, True), 1e-5),
    "no images": TokenSums((("none", "s", 3, 48),), _TOGETHER, 16, 16, (True, True), 1e-5),
    "apart": TokenSums(
        (("b", "q", 2, 5), ("b", "s", 2, 5), ("b", "s", 2, 24)), ((0, 0), (1, 0), (2, 0)), 5, 24, (False, True), 0.5
    ),
    "wide": TokenSums(((1, 70, 1, 192),), ((0, 0), (0, 64), (0, 128)), 64, 64, (True, False), 1e-3),
    "values first": TokenSums(((2, 9, 2, 40),), ((0, 32), (0, 24), (0, 0)), 8, 24, (True, True), 1e-15),
}
SIZES = {"b": 2, "s": 75, "q": 9, "none": 0}


def distance(spec: TokenSums, bad: float = 0.0) -> float:
    """Relative; 1 where infinities and NaN are elsewhere. `bad`: a number of q, k and v, one after the other."""
    rng, found = np.random.default_rng(0), 0.0
    sizes = [dict(zip(x.shape, shape, strict=True)) for x, shape in zip(spec.operands, spec.shapes, strict=True)]
    shapes = [tuple(SIZES[d] if isinstance(d, str) else d for d in shape) for shape in spec.shapes]
    for part in range(3) if bad else (0,):
        arrays = [rng.random(shape).astype(np.float32) - (0.2 if any(spec.relu) else 0.0) for shape in shapes]
        tensor, first = spec.parts[part]
        if bad:
            arrays[tensor][0, 3, 0, first + 1] = bad
        factors = [
            arrays[n][..., at : at + width].astype(np.float64).swapaxes(1, 2)
            for (n, at), width in zip(spec.parts, (spec.D, spec.D, spec.Dv), strict=True)
        ]
        want = token_sums(*factors, relu=spec.relu, epsilon=spec.epsilon).swapaxes(1, 2)
        program = sums_program(spec, "sums")
        known = {name: SIZES[dim] for size in sizes for name, dim in size.items() if isinstance(name, str)}
        out = torch.full(want.shape, float("nan"))
        with tempfile.TemporaryDirectory() as folder:
            function = load_function(program, Path(folder))
            given = [torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]
            B, _, H, _ = shapes[spec.parts[0][0]]
            function[(max(B * H, 1),)](*given, out, *(known[name] for name in program.constants))
        got = out.numpy().astype(np.float64)
        if not np.array_equal(np.isnan(got), np.isnan(want)) or not np.array_equal(np.isinf(got), np.isinf(want)):
            return 1.0
        plain = np.isfinite(want)
        if plain.any():
            found = max(found, float(np.linalg.norm((got - want)[plain]) / np.linalg.norm(want[plain])))
    return found


if __name__ == "__main__":
    distances = {name: distance(spec) for name, spec in CASES.items()}
    for bad in (float("nan"), float("inf"), float("-inf")):
        distances[f"side by side, {bad}"] = distance(CASES["side by side"], bad)
    print(json.dumps(distances))
