"""Which results of a function are unsigned integers: IREE's types have no sign, and its runtime gives signed ones, or those of an
input whose memory a result has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

UNSIGNED = "onnx_fa.unsigned"
"""The fact of a compiled function that names the places of its unsigned results, with blanks between; its others are signed."""
_TYPES = (TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64)


def unsigned_fact(model: onnx.ModelProto) -> str:
    """The fact of a function that the model becomes, as MLIR; empty where neither an input nor a result is unsigned."""
    inputs, results = (
        [i for i, value in enumerate(values) if value.type.tensor_type.elem_type in _TYPES]
        for values in (model.graph.input, model.graph.output)
    )
    return f'{UNSIGNED} = "{" ".join(map(str, results))}"' if inputs or results else ""


def unsigned_places(reflection: Mapping[str, str]) -> frozenset[int] | None:
    """The places of unsigned results, by the facts of a loaded function; None where these do not tell."""
    return frozenset(map(int, reflection[UNSIGNED].split())) if UNSIGNED in reflection else None


def as_told(result: NDArray[Any], *, unsigned: bool) -> NDArray[Any]:
    """The same numbers, if they are integers, as ones with a sign or without."""
    dtype = np.dtype(f"{'u' if unsigned else 'i'}{result.dtype.itemsize}")
    return of_type(result, dtype) if result.dtype.kind in "iu" else result


def of_type(result: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """A result of IREE's runtime whose bytes are of another type of as many. A copy of them: the runtime lets go of the memory with
    the array that it gave, though others view it."""
    return result if result.dtype == dtype else result.copy().view(dtype)
