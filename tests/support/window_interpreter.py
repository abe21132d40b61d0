"""Runs the Triton source of convolutions in Triton's interpreter: `python -m tests.support.window_interpreter` prints, as JSON, the
distance of each case from float64. A process of its own, since Triton decides when it is imported."""

from __future__ import annotations

import json
import math
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from onnx_fa.kernels.triton.linear_source import LinearConfig, program_of_forms
from onnx_fa.kernels.triton.ptx import load_function
from onnx_fa.kernels.triton.window_source import WindowSource
from onnx_fa.spec.windows import WindowSpec, slide
from tests.support.quick_interpreter import quicken
from tests.support.window_cases import GPU_CASES, draw_window

quicken()


def run(spec: WindowSpec, operands: list[Any], parts: int) -> Any:
    """y, by small tiles, with so many parts of K."""
    config = LinearConfig(16, 16, 1 if spec.depthwise else 16, 4, 1, 3 if parts > 1 else 1)
    images = len(operands[0])
    rows = images * spec.rows
    program = WindowSource(spec, config, "window", "ieee").program()
    if spec.images is None and not spec.depthwise:  # of two forms the taller is for more places than there are
        tall = replace(config, BM=64)
        forms = [(most, WindowSource(spec, c, f"of_{most}", "ieee")) for most, c in ((rows, config), (0, tall))]
        program = program_of_forms(forms, "window")
    out = torch.full((images, *spec.y_shape), float("nan"))
    inputs = [torch.from_numpy(np.ascontiguousarray(x)) for x in operands]
    tiles = -(-rows // config.BM) * -(-spec.N // config.BN) * spec.groups
    if config.splits > 1:
        sums = torch.full((parts * tiles * config.BM * config.BN,), float("nan"))
        inputs += [torch.zeros(tiles, dtype=torch.int32), sums]
    with tempfile.TemporaryDirectory() as folder:
        function = load_function(program, Path(folder))
        for _ in range(2 if parts > 1 else 1):  # the counters are ready for another call
            function[tiles, parts](*inputs, out, rows)
    return out.numpy()


def distance(spec: WindowSpec) -> float:
    """The largest relative distance, with one part and with several; NaN stays."""
    operands, found = draw_window(spec), 0.0
    want = slide(spec, *operands)
    several = not spec.depthwise and math.prod(spec.kernel) * spec.channels >= 48
    for parts in (1, 3) if several else (1,):
        got = run(spec, operands, parts).astype(np.float64)
        found = float(np.maximum(found, np.linalg.norm(got - want) / np.linalg.norm(want)))
    return found


if __name__ == "__main__":
    print(json.dumps({name: distance(spec) for name, spec in GPU_CASES.items()}))
