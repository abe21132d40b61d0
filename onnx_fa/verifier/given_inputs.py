"""Inputs that a user gives for a model: arrays by name, from .npz files, held against what the model declares."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_fa.errors import OnnxFaError
from onnx_fa.graph.free_dims import graph_inputs

Array = npt.NDArray[np.generic]


def read_arrays(path: Path) -> dict[str, Array]:
    """The arrays of an .npz by name. Raises OnnxFaError for what is none."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise OnnxFaError(f"{path}: one array without a name; save it by the input's name, with numpy.savez")
        with loaded as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, BadZipFile) as e:
        raise OnnxFaError(f"{path}: cannot be read as .npz: {e}") from e


def arrange(model: ir.Model, arrays: Mapping[str, Array], source: str) -> dict[str, Array]:
    """The arrays in the order of the model's inputs. Raises OnnxFaError, which names `source`, for one that is missing, that no
    input takes, or that does not fit."""
    declared = {str(value.name): value for value in graph_inputs(model)}
    if unknown := [name for name in arrays if name not in declared]:
        raise OnnxFaError(f"{source}: {unknown[0]} is no input of the model, whose inputs are {', '.join(declared)}")
    if missing := [name for name in declared if name not in arrays]:
        raise OnnxFaError(f"{source}: the model's input {missing[0]} is missing")
    arranged = {name: _of_type(arrays[name], value) for name, value in declared.items()}
    for name, array in arranged.items():
        check_fits(array, declared[name], f"{source}: {name}")
    return arranged


def _of_type(array: Array, declared: ir.Value) -> Array:
    """NumPy's files keep bfloat16 and other types that are not its own as bytes without a type."""
    wanted = declared.dtype.numpy() if declared.dtype is not None else None
    if array.dtype.kind == "V" and wanted is not None and wanted.itemsize == array.dtype.itemsize:
        return array.view(wanted)
    return array


def check_fits(array: Array, declared: ir.Value, what: str) -> None:
    """Raises OnnxFaError, beginning with `what`, for an array of another type, rank or fixed size than the model's input."""
    dims = list(declared.shape or ())
    fits = declared.shape is None or (
        len(dims) == array.ndim
        and all(size == dim for size, dim in zip(array.shape, dims, strict=True) if isinstance(dim, int))
    )
    if not fits or (declared.dtype is not None and declared.dtype.numpy() != array.dtype):
        given = "x".join(map(str, (*array.shape, array.dtype)))
        wanted = "x".join(map(str, (*dims, declared.dtype.numpy() if declared.dtype is not None else "?")))
        raise OnnxFaError(f"{what}: {given} does not fit the model's input, which is {wanted}")
