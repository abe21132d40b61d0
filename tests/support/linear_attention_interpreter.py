"""Runs the Triton source of linear attentions in Triton's interpreter: `python -m tests.support.linear_attention_interpreter NAME`
prints, as JSON, how far each case is from float64. A process of its own, since Triton decides when it is imported."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from onnx_fa.kernels.triton.linear_attention import program_of
from onnx_fa.kernels.triton.ptx import load_function
from onnx_fa.spec.linear_attention import LinearAttentionSpec, attend_linearly
from tests.support.linear_attention_cases import CASES, distance, draw
from tests.support.quick_interpreter import quicken

quicken()
COLUMNS = 8


def error(spec: LinearAttentionSpec, sizes: dict[str, int]) -> float:
    """The largest distance of a result; of a batch without sequences one workgroup runs, which changes nothing."""
    operands = draw(spec, sizes)
    B, T = (d if isinstance(d, int) else sizes[d] for d in (spec.B, spec.T))
    wanted = attend_linearly(spec, operands)
    outs = [torch.from_numpy(np.full(x.shape, np.nan, np.float32)) for x in wanted]
    with tempfile.TemporaryDirectory() as folder:
        function = load_function(program_of(spec, "tokens", COLUMNS), Path(folder))
        groups = max(1, B * spec.H * -(-spec.Dv // COLUMNS))
        function[(groups,)](*map(torch.from_numpy, operands), *outs, B, T)
    return max(distance(want, have.numpy()) for want, have in zip(wanted, outs, strict=True))


if __name__ == "__main__":
    sizes = ({"B": 2, "T": 3}, {"B": 0, "T": 3}, {"B": 1, "T": 0})
    print(json.dumps({n: [error(CASES[n], s) for s in sizes] for n in sys.argv[1:]}))
