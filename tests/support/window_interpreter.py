"""Runs the Triton source of convolutions in Triton's interpreter: `python -m tests.support.window_interpreter` prints, as JSON, the
distance of each case from float64, those of sequences behind "sound: ". A process of its own, since Triton decides when it is
imported."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from onnx_fa.kernels.triton.linear_source import LinearConfig, program_of_forms
from onnx_fa.kernels.triton.program import Program
from onnx_fa.kernels.triton.ptx import load_function
from onnx_fa.kernels.triton.window_source import WindowSource
from onnx_fa.spec.dtypes import NUMPY
from onnx_fa.spec.sequences import SequenceSpec, slide_along
from onnx_fa.spec.windows import WindowSpec, slide
from tests.support.quick_interpreter import quicken
from tests.support.window_cases import GPU_CASES, GPU_SOUNDS, draw_sound, draw_window

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
    return call(program, config, spec, operands, (images, *spec.y_shape), (rows,), parts)


def call(
    program: Program,
    config: LinearConfig,
    spec: WindowSpec,
    operands: list[Any],
    shape: tuple[int, ...],
    sizes: tuple[int, ...],
    parts: int,
) -> Any:
    """The result, of that shape, of a program with these sizes."""
    out = torch.full(shape, float("nan"), dtype=getattr(torch, np.dtype(NUMPY[spec.dtype]).name))
    inputs = [torch.from_numpy(np.ascontiguousarray(x)) for x in operands]
    tiles = -(-sizes[0] // config.BM) * -(-spec.N // config.BN) * spec.groups
    if config.splits > 1:
        sums = torch.full((parts * tiles * config.BM * config.BN,), float("nan"))
        inputs += [torch.zeros(tiles, dtype=torch.int32), sums]
    with tempfile.TemporaryDirectory() as folder:
        function = load_function(program, Path(folder))
        for _ in range(2 if parts > 1 else 1):  # the counters are ready for another call
            function[tiles, parts](*inputs, out, *sizes)
    return out.numpy()


def run_along(spec: SequenceSpec, operands: list[Any], parts: int) -> Any:
    """y of a sequence whose length is read, by small tiles, with so many parts of K."""
    config = LinearConfig(16, 16, 1 if spec.depthwise else 16, 4, 1, 3 if parts > 1 else 1)
    images, length, _ = operands[0].shape
    line, places = replace(spec.line(length), images=None), spec.places(length)
    free = spec.length is None
    program = WindowSource(line, config, "window", "ieee", free=free).program()
    sizes = (images * places, length, places) if free else (images * places,)
    return call(program, config, line, operands, (images, places, spec.columns), sizes, parts)


def distance(spec: WindowSpec) -> float:
    """The largest relative distance, with one part and with several; NaN stays."""
    operands = draw_window(spec)
    several = not spec.depthwise and math.prod(spec.kernel) * spec.channels >= 48
    return _largest(slide(spec, *operands), lambda parts: run(spec, operands, parts), several)


def distance_along(spec: SequenceSpec) -> float:
    """The same of a sequence."""
    operands = draw_sound(spec)
    several = not spec.depthwise and spec.kernel * spec.channels >= 48
    want = slide_along(spec, *operands)
    return _largest(want, lambda parts: run_along(spec, operands, parts).reshape(want.shape), several)


def _largest(want: Any, make: Callable[[int], Any], several: bool) -> float:
    found = 0.0
    for parts in (1, 3) if several else (1,):
        got = make(parts).astype(np.float64)
        found = float(np.maximum(found, np.linalg.norm(got - want) / np.linalg.norm(want)))
    return found


if __name__ == "__main__":
    distances = {name: distance(spec) for name, spec in GPU_CASES.items()}
    distances |= {f"sound: {name}": distance_along(spec) for name, spec in GPU_SOUNDS.items()}
    print(json.dumps(distances))
