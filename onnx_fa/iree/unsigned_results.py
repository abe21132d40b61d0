"""Which results of a function are unsigned integers: IREE's types have no sign, and its runtime gives signed ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

UNSIGNED = "onnx_fa.unsigned"
"""The fact of a compiled function that names the places of its unsigned results, with blanks between."""
_TYPES = (TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64)


def unsigned_fact(model: onnx.ModelProto) -> str:
    """The fact of a function that the model becomes, as MLIR; empty where no result is unsigned."""
    places = [str(i) for i, value in enumerate(model.graph.output) if value.type.tensor_type.elem_type in _TYPES]
    return f'{UNSIGNED} = "{" ".join(places)}"' if places else ""


def unsigned_places(reflection: Mapping[str, str]) -> frozenset[int]:
    """The places of unsigned results, by the facts of a loaded function."""
    return frozenset(map(int, reflection.get(UNSIGNED, "").split()))


def as_unsigned(result: NDArray[Any]) -> NDArray[Any]:
    """The same bytes as unsigned integers."""
    return result.view(np.dtype(f"u{result.dtype.itemsize}")) if result.dtype.kind == "i" else result
