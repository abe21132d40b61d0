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
from onnx_fa.spec.norm import NormSpec
from tests.support.norm_cases import CASES, NUMPY, distance, keeps_special_rows
from tests.support.quick_interpreter import quicken

quicken()


def run(spec: NormSpec, lead: tuple[int, ...], operands: list[Any], each: int) -> list[Any]:
    """The results, of the site's shapes, by workgroups of so many rows."""
    rows = int(np.prod(lead))
    program = NormSource(spec, NormConfig(each, 4), "norm").program()
    outs = [torch.from_numpy(np.full((rows, spec.N), np.nan, NUMPY[dtype])) for _, dtype in spec.results]
    with tempfile.TemporaryDirectory() as folder:
        function = load_function(program, Path(folder))
        function[(max(1, -(-rows // each)),)](*map(torch.from_numpy, operands), *outs, rows)
    return [out.numpy().reshape(*lead, spec.N) for out in outs]


if __name__ == "__main__":
    given = {name: CASES[name] for name in sys.argv[1:]}
    print(json.dumps({n: (distance(spec, run), keeps_special_rows(spec, run)) for n, spec in given.items()}))
