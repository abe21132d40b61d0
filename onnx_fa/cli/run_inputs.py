"""The inputs of `onnx-fa run`: random ones, .npy files, and shapes as iree-run-module takes them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from onnx_fa.errors import OnnxFaError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import onnx_ir as ir

_ELEMENTS = {
    **{f"{k}{n}": f"{w}{n}" for k, w in (("i", "int"), ("si", "int"), ("ui", "uint")) for n in (8, 16, 32, 64)},
    **{"f16": "float16", "f32": "float32", "f64": "float64", "i1": "bool", "bf16": "bfloat16"},
}


def read_inputs(args: argparse.Namespace) -> list[npt.NDArray[np.generic]]:
    """The arrays in the module's order. Raises OnnxFaError for what is no input, and for one that does not fit the model of
    --random-inputs."""
    named: dict[str, npt.NDArray[np.generic]] = {}
    declared: dict[str, ir.Value] = {}
    if args.random_inputs:
        from onnx_fa.graph.fixed_inputs import fix_inputs
        from onnx_fa.graph.free_dims import graph_inputs
        from onnx_fa.verifier.given_inputs import check_fits
        from onnx_fa.verifier.inputs import random_inputs

        model = fix_inputs(args.random_inputs, dict(args.set))
        declared = {str(value.name): value for value in graph_inputs(model)}
        named = random_inputs(model, seed=args.seed, dims=dict(args.dim))
    elif args.set:
        raise OnnxFaError("--set needs --random-inputs MODEL, whose input it says is no input of the module")
    positional: list[npt.NDArray[np.generic]] = []
    for text in args.input:
        name, _, rest = text.partition("=")
        if name in named:
            named[name] = parse_input(rest)
            check_fits(named[name], declared[name], f"--input {name}")
        elif rest and (rest.endswith(".npy") or "x" in rest) and not Path(text).exists():
            known = f"the model's inputs are {', '.join(named)}"
            unknown = "names need --random-inputs MODEL; give values in order"
            raise OnnxFaError(f"--input {text}: {known if named else unknown}")
        else:
            positional.append(parse_input(text))
    if named and positional:
        raise OnnxFaError("--input without a name cannot be mixed with --random-inputs")
    return [*named.values(), *positional]


def parse_input(text: str) -> npt.NDArray[np.generic]:
    """FILE.npy, or `2x3xf32`, `2x3xf32=1`, `2x2xi64=1 2 3 4`, `[..]` and commas allowed; no value means zeros."""
    import numpy as np

    if text.endswith(".npy"):
        try:
            array: npt.NDArray[np.generic] = np.load(text.removeprefix("@"), allow_pickle=False)
        except (OSError, ValueError, EOFError) as e:
            raise OnnxFaError(f"{text}: cannot be read as .npy: {e}") from e
        return array
    kind, _, values = text.partition("=")
    *dims, element = kind.split("x")
    if element not in _ELEMENTS or not all(d.isdigit() for d in dims):
        raise OnnxFaError(
            f"--input {text}: not a .npy file, nor SHAPExTYPE[=value] such as 1x16xi64=7; types: {', '.join(_ELEMENTS)}"
        )
    shape = tuple(map(int, dims))
    if element == "bf16":
        import ml_dtypes

        dtype = np.dtype(ml_dtypes.bfloat16)
    else:
        dtype = np.dtype(_ELEMENTS[element])
    words = values.translate(str.maketrans("[],", "   ")).split()
    try:
        read = np.array([float(w) if dtype.kind in "fV" else int(w) for w in words] or [0], dtype)
    except (ValueError, OverflowError) as e:
        raise OnnxFaError(f"--input {text}: {e}") from e
    count = int(np.prod(shape, dtype=np.int64))
    if read.size not in (1, count):
        raise OnnxFaError(f"--input {text}: {read.size} values for {count} elements; give one, or all")
    return np.broadcast_to(read[0], shape).copy() if read.size == 1 else read.reshape(shape)
