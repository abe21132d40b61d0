"""Runs the Triton source of rotations in Triton's interpreter: `python -m tests.support.rotation_interpreter NAME...` prints, as
JSON, how far each result of each case is from float64. A process of its own, since Triton decides when it is imported."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from onnx_fa.kernels.triton.ptx import load_function
from onnx_fa.kernels.triton.rotate import rotation_program
from onnx_fa.spec.rotated import RotatedSpec, rotate
from tests.support.quick_interpreter import quicken
from tests.support.rotation_cases import CASES, draw, sizes_of

quicken()


def distances(spec: RotatedSpec) -> list[float]:
    """The largest distance of each result; infinite where the places of infinities and of what is no number differ."""
    operands = draw(spec)
    given = [torch.from_numpy(np.ascontiguousarray(o)) for o in operands]
    out = torch.full(sizes_of(spec.results[0][0]), float("nan"), dtype=given[0].dtype)
    B, S = operands[0].shape[:2]
    first = len(operands[3]) - S if spec.kept else 0
    with tempfile.TemporaryDirectory() as folder:
        function = load_function(rotation_program(spec, "rotate"), Path(folder))
        # One workgroup more than there are heads, as of no rows.
        function[(B * S * spec.all_heads + 1,)](*given, out, B * S, S, first)
    found = []
    for got, want in zip([out, *given[3:]], rotate(spec, operands), strict=True):
        close = np.array_equal(np.isfinite(got.numpy()), np.isfinite(want))
        with np.errstate(invalid="ignore"):
            found.append(
                float(np.nanmax(np.where(np.isfinite(want), np.abs(got.numpy() - want), 0))) if close else np.inf
            )
    return found


if __name__ == "__main__":
    print(json.dumps({name: distances(CASES[name]) for name in sys.argv[1:]}))
