"""The command lines of IREE's own tools that run and time what a command of ours wrote."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_fa.cli.printing import note
from onnx_fa.errors import ModelError
from onnx_fa.huge_pages import huge_pages_command
from onnx_fa.scheduling import batch_command
from onnx_fa.spec.target import Target

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import onnx_ir as ir


def note_lines(
    args: argparse.Namespace, module: Path, model: ir.Model, target: Target, sizes: Mapping[str, int] | None = None
) -> None:
    """How iree-run-module and iree-benchmark-module take a module of `model`, with an example of its inputs.

    `sizes` are those of free dims that the user has fixed; others are what the graph asks for, or made up. Where no inputs can be
    made up, their place says so.
    """
    before = [] if target.is_gpu else [*huge_pages_command(), *batch_command()]
    for what, tool in (("run", "iree-run-module"), ("time", "iree-benchmark-module")):
        note(args, f"{what} it with: {shlex.join([*before, tool, *_flags(module, model, target, sizes or {})])}")


def _flags(module: Path, model: ir.Model, target: Target, sizes: Mapping[str, int]) -> list[str]:
    from onnx_fa.iree.archives import parameter_flags
    from onnx_fa.iree.drivers import preferred_device
    from onnx_fa.iree.run import BUFFERS_KEPT

    device = preferred_device(module, target.device) if target.devices == 1 else target.device
    return [
        f"--module={module}",
        *parameter_flags(module),
        *[f"--device={device}"] * target.devices,
        *BUFFERS_KEPT.get(target.device, ()),
        f"--function={model.graph.name}",
        *(f"--input={text}" for text in _example(model, sizes)),
    ]


def _example(model: ir.Model, sizes: Mapping[str, int]) -> Sequence[str]:
    """SHAPExTYPE=value of each input of the module."""
    from onnx_fa.graph.determined import determined_sizes
    from onnx_fa.verifier.inputs import random_inputs

    try:
        arrays = random_inputs(model, dims=determined_sizes(model) | dict(sizes))
    except ModelError as e:
        return [f"... ({e})"]
    return [_splat(array) for array in arrays.values()]


def _splat(array: npt.NDArray[np.generic]) -> str:
    """An input all of whose elements are one of those of the array."""
    import numpy as np

    kinds = {"f": "f", "i": "i", "u": "ui", "b": "i", "V": "bf"}
    bits = 1 if array.dtype.kind == "b" else 8 * array.dtype.itemsize
    shape = "".join(f"{size}x" for size in array.shape)
    numbers = np.sort(array.astype(np.float64), axis=None)
    value = numbers[3 * numbers.size // 4] if numbers.size else 0  # of most masks this keeps, of floats it is not 0
    shown = f"{value:.2f}" if array.dtype.kind in "fV" else str(int(value))
    return f"{shape}{kinds[array.dtype.kind]}{bits}={shown}"
