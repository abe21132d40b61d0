"""Runs the Triton source of what norms of channels take in Triton's interpreter: `python -m tests.support.channel_norm_interpreter`
prints, as JSON, the distance of each case from float64. A process of its own, since Triton decides when it is imported."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from onnx_fa.kernels.triton.channel_norm import PARTS, _blocks, parts_program, whole_program
from onnx_fa.kernels.triton.ptx import load_function
from onnx_fa.spec.channel_norm import ChannelSpec, measure_channels
from onnx_fa.spec.dtypes import NUMPY
from tests.support.quick_interpreter import quicken

quicken()

CASES = {
    "short": ChannelSpec(2, 5, 24, 1e-5),
    "free": ChannelSpec(None, None, 70, 1e-5),
    "long": ChannelSpec(1, None, 16, 1e-6),
    "known": ChannelSpec(None, 300, 130, 1e-3),
    "one place": ChannelSpec(None, None, 16, 1.0),
    "halves": ChannelSpec(2, None, 32, 1e-5, "f16"),
}
_LONG = {"long": 6000, "one place": 1}
"""Places of a case that only a run knows, where they are not 100."""


def run(spec: ChannelSpec, x: Any, scale: Any) -> tuple[Any, Any]:
    images, length, channels = x.shape
    blocks = _blocks(spec)
    sizes = [n for n, known in ((images, spec.images), (length, spec.length)) if known is None]
    parts = torch.full((images, PARTS, 2, channels), float("nan"))
    made = [torch.full((images, 1, channels), float("nan")) for _ in range(2)]
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        load_function(parts_program(spec, "parts"), Path(first))[images * blocks * PARTS, 1](
            torch.from_numpy(x), parts, *sizes
        )
        whole = load_function(whole_program(spec, "whole"), Path(second))
        whole[images * blocks, 1](parts, torch.from_numpy(scale), *made, *sizes)
    return made[0].numpy(), made[1].numpy()


def distance(name: str) -> float:
    """The larger of the distances of means and of factors. The means are a thousand times what they leave."""
    spec, rng = CASES[name], np.random.default_rng(0)
    shape = spec.images or 2, spec.length or _LONG.get(name, 100), spec.channels
    far = 1e3 if spec.dtype == "f32" else 1.0
    x = (far + rng.standard_normal(shape)).astype(NUMPY[spec.dtype])
    scale = rng.standard_normal(spec.channels).astype(np.float32)
    want = measure_channels(spec, x, scale)
    pairs = zip(run(spec, x, scale), want, strict=True)
    return float(max(np.linalg.norm(got - w) / np.linalg.norm(w) for got, w in pairs))


if __name__ == "__main__":
    print(json.dumps({name: distance(name) for name in CASES}))
