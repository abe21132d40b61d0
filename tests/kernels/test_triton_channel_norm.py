"""What norms of channels take, by Triton: numbers in Triton's interpreter, and what becomes of a model for CUDA (no GPU)."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.support.cuda_programs import program_of
from tests.support.halved import halved
from tests.support.image_nets import Net
from tests.support.interpreted import distances_of
from tests.support.random_sounds import sound_net


def test_numbers() -> None:
    """Factors of numbers whose mean is a thousand times their spread keep five digits, where squares less the mean's have none."""
    found = distances_of("channel_norm_interpreter")
    assert len(found) == 6 and {name: d for name, d in found.items() if not d <= 4e-6} == {}


def of_sounds() -> onnx.ModelProto:
    """wav2vec 2.0's first layers: a norm of each channel over a free length between two convolutions."""
    n = sound_net(16)
    x = n.add("Conv", "x", n.weight(32, 16, 3), n.weight(32), strides=[2])
    x = n.add("Relu", n.add("InstanceNormalization", x, n.weight(32), n.weight(32)))
    return n.model(n.add("Conv", x, n.weight(32, 32, 3), n.weight(32)))


def of_groups() -> onnx.ModelProto:
    """A block of Stable Diffusion's decoder, as PyTorch's exporter writes norms of groups before opset 21."""
    n, x = Net(16, 12, 10), "x"
    for channels in (16, 32):
        x = n.silu(n.add("Reshape", _normal(n, n.conv(x, channels, 32, 3)), n.ints(0, 32, 12, 10)))
    return n.model(n.conv(x, 32, 16, 3))


def _normal(n: Net, x: str) -> str:
    groups = [n.const(np.ones(8, np.float32)), n.const(np.zeros(8, np.float32))]
    rows = n.add("InstanceNormalization", n.add("Reshape", x, n.ints(0, 8, -1)), *groups)
    return str(rows)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("make", [of_sounds, of_groups])
def test_two_dispatches(make: object, half: bool, tmp_path: Path) -> None:
    """Two for each norm, and nothing is turned between convolutions; compiled for all architectures once."""
    model = make()  # type: ignore[operator]
    model, whole = (halved(model) if half else model), make is of_sounds and not half
    program = program_of(model, tmp_path, compiled=whole)
    norms = 1 if make is of_sounds else 2
    assert len(re.findall(r"stream\.cmd\.dispatch {@channels_", program)) == 2 * norms
    assert len(re.findall(r"stream\.cmd\.dispatch {@conv_", program)) == norms + 1
    turned = re.findall(r"stream\.cmd\.dispatch @\w+::@\w+transpose", program)
    assert len(turned) <= 2 and "linalg.conv" not in program
