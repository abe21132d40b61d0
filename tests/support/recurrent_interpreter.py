"""Runs the Triton source of an LSTM's and a GRU's steps in Triton's interpreter: `python -m tests.support.recurrent_interpreter`
prints, as JSON, the distance of each case from float64. A process of its own, since Triton decides when it is imported. Workgroups
run one after the other there, so that only those that are alone can be waited for."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from onnx_fa.kernels.triton.ptx import load_function
from onnx_fa.kernels.triton.recurrent import steps_program
from onnx_fa.spec.recurrent import Cell, RecurrentSpec, gate_panels, unroll
from tests.support.quick_interpreter import quicken

quicken()

CASES = {
    "known": RecurrentSpec("LSTM", 5, 2, 16, 16),
    "free": RecurrentSpec("LSTM", None, None, 8, 8, started=True),
    "a gru": RecurrentSpec("GRU", 4, None, 16, 16),
    "a gru that is started": RecurrentSpec("GRU", None, 3, 4, 4, started=True),
}
STEPS, ROWS = 6, 2


def drawn(spec: RecurrentSpec, steps: int, rows: int, seed: int = 0) -> list[np.ndarray]:
    """Operands of a spec, of so many steps and rows."""
    rng, H, G = np.random.default_rng(seed), spec.H, spec.gates
    weight = rng.standard_normal((G * H, H)) / np.sqrt(H)
    found = [rng.standard_normal((steps, rows, G * H)), gate_panels(spec, weight)]
    found += [rng.standard_normal(H)] * (spec.cell == "GRU")
    found += [rng.standard_normal((rows, H)) for _ in range(spec.states * spec.started)]
    return [x.astype(np.float32) for x in found]


def distance(spec: RecurrentSpec, steps: int = STEPS, rows: int = ROWS, bad: float = 0.0) -> float:
    """The largest of all results; 1 where NaN is elsewhere."""
    steps, rows = spec.steps or steps, spec.rows or rows
    operands = drawn(spec, steps, rows)
    if bad:
        operands[0][1, 0, 1] = bad
    want = unroll(spec, *operands)
    program = steps_program(spec, "steps")
    sizes = {"steps": steps, "rows": rows}
    with tempfile.TemporaryDirectory() as folder:
        function = load_function(program, Path(folder))
        given = [torch.from_numpy(np.ascontiguousarray(x)) for x in operands]
        outs = [torch.full(y.shape, float("nan")) for y in want]
        count = torch.zeros(1, dtype=torch.int32)
        function[(spec.panels, 2)](*given, count, *outs, *(sizes[name] for name in program.constants))
    found = 0.0
    for got, y in zip((x.numpy().astype(np.float64) for x in outs), want, strict=True):
        if not np.array_equal(np.isnan(got), np.isnan(y)):
            return 1.0
        found = max(found, float(np.max(np.abs(np.nan_to_num(got) - np.nan_to_num(y)), initial=0.0)))
    return found


if __name__ == "__main__":
    distances = {name: distance(spec) for name, spec in CASES.items()}
    distances["no steps"] = distance(CASES["free"], steps=0)
    distances["no steps of a start of zeros"] = distance(replace(CASES["free"], started=False), steps=0)
    distances["no rows"] = distance(CASES["free"], rows=0)
    cells: tuple[Cell, ...] = ("LSTM", "GRU")
    for cell in cells:
        for bad in (float("nan"), float("inf"), float("-inf"), 1e30):
            distances[f"{cell}, {bad}"] = distance(RecurrentSpec(cell, 4, 2, 8, 8), bad=bad)
    print(json.dumps(distances))
