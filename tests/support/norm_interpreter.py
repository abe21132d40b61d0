"""Runs the Triton source of norm sites in Triton's interpreter: `python -m tests.support.norm_interpreter NAME...` prints, as JSON,
how far each case is from float64, for operands of several sizes. A process of its own, since Triton decides when it is imported."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from onnx_fa.kernels.triton.norm_source import NormConfig, NormSource
from onnx_fa.kernels.triton.ptx import load_function
from onnx_fa.spec.norm import NormSpec, normalise
from tests.support.norm_cases import CASES, NUMPY, SIZES, bound, draw
from tests.support.quick_interpreter import quicken

quicken()
LARGE = {"f32": 3e37, "f16": 1e4}
"""Numbers whose squares the type does not hold."""


def run(spec: NormSpec, lead: tuple[int, ...], operands: list[Any], config: NormConfig) -> list[Any]:
    """The results, of the site's shapes."""
    rows = int(np.prod(lead))
    program = NormSource(spec, config, "norm").program()
    outs = [torch.from_numpy(np.full((rows, spec.N), np.nan, NUMPY[dtype])) for _, dtype in spec.results]
    with tempfile.TemporaryDirectory() as folder:
        function = load_function(program, Path(folder))
        function[(max(1, -(-rows // config.rows)),)](*map(torch.from_numpy, operands), *outs, rows)
    return [out.numpy().reshape(*lead, spec.N) for out in outs]


def distance(name: str) -> float:
    """The largest relative distance of a result from float64, over sizes of numbers and of dims; NaN where one is NaN and the other
    is not."""
    spec, found = CASES[name], 0.0
    for sizes in SIZES:
        lead = bound(spec, sizes)
        for size, shift, rows in ((1e-3, 0.0, 1), (1.0, 30.0, 4), (LARGE[spec.dtype], 0.0, 2)):
            operands = draw(spec, lead, size, shift)
            if spec.skip and size > 1:
                operands[1] = -operands[0] / 2  # a sum that is no infinity
            wanted = normalise(spec, operands)
            for got, want in zip(run(spec, lead, operands, NormConfig(rows, 4)), wanted, strict=True):
                scale = np.linalg.norm(want) or 1.0
                found = max(found, float(np.linalg.norm((got - want).ravel() / scale)))
    return found


def special(name: str) -> bool:
    """Whether rows of infinities, NaNs and zeros are NaN, and finite, where those of float64 are; and other rows unmoved."""
    spec = CASES[name]
    lead = bound(spec, {"b": 2, "s": 7})
    operands = draw(spec, lead)
    plain = run(spec, lead, operands, NormConfig(1, 4))[0].reshape(-1, spec.N)
    x = operands[0].reshape(-1, spec.N)
    x[0, 0], x[1, -1], x[2] = np.inf, np.nan, 0
    got = run(spec, lead, operands, NormConfig(4, 4))[0].reshape(-1, spec.N)
    want = normalise(spec, operands)[0].reshape(-1, spec.N)
    same = np.array_equal(np.isnan(got), np.isnan(want)) and np.array_equal(got[3:], plain[3:])
    return bool(same and np.allclose(np.nan_to_num(got[2]), np.nan_to_num(want[2]), atol=2e-3))


if __name__ == "__main__":
    print(json.dumps({name: (distance(name), special(name)) for name in sys.argv[1:]}))
