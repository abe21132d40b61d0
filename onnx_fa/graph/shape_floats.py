"""Numbers that are no dims among the elements that `shape_data` follows: timm's convolutions that pad as TensorFlow's do compute
their pads of sizes as floats, of which halves are rounded up and others cut off."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_fa.spec.terms import Dim

Element = Dim | float | None
"""A number that is whole is an int, whatever its type in the graph."""
_KINDS: dict[ir.DataType, Callable[[Any], Any]] = {ir.DataType.FLOAT: np.float32, ir.DataType.DOUBLE: np.float64}
_OPS: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Min": np.minimum,
    "Max": np.maximum,
    "Neg": np.negative,
    "Ceil": np.ceil,
    "Floor": np.floor,
    "Round": np.rint,
}


def is_computed(kind: str, dtype: ir.DataType | None) -> bool:
    """Whether `compute` knows the operator, and the type that it makes."""
    return dtype in _KINDS and kind in _OPS


def compute(kind: str, row: tuple[Element, ...], dtype: ir.DataType | None) -> Element:
    """What an operator that is computed makes of numbers in floats of this type, rounded as a run rounds it; None where that is no
    number."""
    if dtype is None:
        return None
    as_type = _KINDS[dtype]
    with np.errstate(all="ignore"):
        return settled_number(float(_OPS[kind](*(as_type(x) for x in row))))


def settled_number(number: float) -> int | float | None:
    """An int for a whole number; None for an infinity and NaN."""
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() else number


def numbers_in(array: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """The elements of integers, or of floats of 32 or 64 bits; None for another type."""
    if array.dtype.kind in "iu":
        return array.astype(object)
    if array.dtype not in (np.float32, np.float64):
        return None
    made: npt.NDArray[Any] = np.empty(array.size, object)
    made[:] = [settled_number(float(x)) for x in array.flat]
    return made.reshape(array.shape)


def cast_number(element: Element, dtype: ir.DataType | None) -> Element:
    """What a Cast to a float, or to an integer, which cuts a fraction off, makes of an element."""
    if not isinstance(element, float):
        return element
    as_type = None if dtype is None else _KINDS.get(dtype)
    return int(element) if as_type is None else settled_number(float(as_type(element)))


def are_numbers(row: tuple[Element, ...]) -> bool:
    return all(isinstance(x, int | float) for x in row)


def dim_or_none(element: Element) -> Dim | None:
    return None if isinstance(element, float) else element
