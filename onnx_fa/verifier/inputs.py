"""Seeded random inputs for any model: by element type, by name, and by what the graph does with each input.

Integers that index a table stay inside it, masks keep at least one key, and a symbolic dim has one size in all inputs.
A `Variant` makes the same inputs adversarial: large scores, long padding, rows with no key at all, odd lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_fa.errors import ModelError
from onnx_fa.graph.free_dims import ODD_LENGTH, graph_inputs, input_shapes
from onnx_fa.graph.moves import LOOKS_UP, MOVES
from onnx_fa.graph.ops import op_of

Array = npt.NDArray[np.generic]
Variant = Literal["normal", "large", "padded", "empty"]
"""normal: unit normal floats, masks that pad a little. large: floats four times as big, so that scores are about 16
times as big. padded: masks that keep few keys. empty: as padded, and the first batch row keeps none."""

VARIANTS: tuple[Variant, ...] = get_args(Variant)

# Nodes that hand an integer on (reshaped or cast) on its way to a table look-up or a mask.
_PASSING = (MOVES - LOOKS_UP) | {"Cast", "Clip", "Concat", "Add", "Where", "Max", "Min"}
_INT_TYPES = {ir.DataType.INT64, ir.DataType.INT32, ir.DataType.INT16, ir.DataType.INT8, ir.DataType.UINT8}
_FLOAT_TYPES = {ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16}


def random_inputs(
    model: ir.Model,
    *,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    default: int = ODD_LENGTH,
    variant: Variant = "normal",
) -> dict[str, Array]:
    """One array per input of the model, in its order. Raises ModelError for shapes or types that cannot be made.

    Integers of no known use are 0 and 1 for even seeds; for odd ones they go up to the largest size, as lengths and ids do.
    """
    rng = np.random.default_rng(seed)
    shapes = input_shapes(model, dims, default)
    most = max((d for s in shapes.values() for d in s), default=1) if seed % 2 else 1
    return {str(v.name): _fill(v, shapes[str(v.name)], rng, variant, most) for v in graph_inputs(model)}


def has_float_input(model: ir.Model) -> bool:
    return any(v.dtype in _FLOAT_TYPES and not _is_mask(v) for v in graph_inputs(model))


def has_mask_input(model: ir.Model) -> bool:
    return any(_is_mask(v) for v in graph_inputs(model))


def _fill(value: ir.Value, shape: tuple[int, ...], rng: np.random.Generator, variant: Variant, most: int) -> Array:
    dtype = value.dtype
    if dtype == ir.DataType.BOOL:
        return _keep(shape, rng, variant) if _is_mask(value) else rng.random(shape) < 0.5
    if dtype in _INT_TYPES:
        kind = dtype.numpy()
        if (rows := _table_rows(value)) is not None:
            return rng.integers(0, max(rows, 1), shape).astype(kind)
        if _is_mask(value):
            return _keep(shape, rng, variant).astype(kind)
        if "pos" in str(value.name).lower() and shape:
            return np.broadcast_to(np.arange(shape[-1]), shape).astype(kind)
        if any(n.domain for n, _ in _reached(value)):  # runtimes trust the lengths that their own operators get
            most = 1
        return rng.integers(0, min(most, int(np.iinfo(kind).max)) + 1, shape).astype(kind)
    if dtype in _FLOAT_TYPES:
        kind = dtype.numpy()
        if _is_mask(value):
            keep = _keep(shape, rng, variant)
            # Added to scores: 0 and the type's minimum, as exporters do; anything else (1 - mask, mask * x): 1 and 0.
            least = float(ml_dtypes.finfo(kind).min)  # type: ignore[no-untyped-call]
            return np.where(keep, 0.0, least).astype(kind) if _is_added(value) else keep.astype(kind)
        return (rng.standard_normal(shape) * (4.0 if variant == "large" else 1.0)).astype(kind)
    raise ModelError(f"input {value.name!r} has element type {dtype}: give it with --input")


def _keep(shape: tuple[int, ...], rng: np.random.Generator, variant: Variant) -> npt.NDArray[np.bool_]:
    """A mask over the last axis, true keeps: a kept run of keys that starts at 0, and a few scattered ones dropped."""
    if not shape or 0 in shape:
        return np.ones(shape, bool)
    length, rows = shape[-1], shape[:-1]
    most, least = (max(length // 4, 1), 1) if variant in ("padded", "empty") else (length, max(length * 3 // 4, 1))
    lengths = rng.integers(least, most + 1, (*rows, 1))
    keep = np.arange(length) < lengths
    keep &= (rng.random(shape) < 0.9) | (np.arange(length) == 0)
    if variant == "empty":
        keep = keep.reshape(shape[0] if rows else 1, -1)
        keep[0] = False
        keep = keep.reshape(shape)
    return keep


def _reached(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    """Every use of the value, also through nodes that only hand it on: (node, index of the operand)."""
    seen: set[int] = set()
    queue = [value]
    while queue:
        current = queue.pop()
        for node, index in current.uses():
            yield node, index
            if op_of(node) in _PASSING and id(node) not in seen:
                seen.add(id(node))
                queue.extend(node.outputs)


def _table_rows(value: ir.Value) -> int | None:
    """The smallest size of a table that the integers index, or None when they index none."""
    rows: list[int] = []
    for node, index in _reached(value):
        if op_of(node) in ("Gather", "GatherElements") and index == 1:
            table = node.inputs[0]
            axis = node.attributes["axis"].as_int() if "axis" in node.attributes else 0
            size = table.shape[axis] if table is not None and table.shape is not None else None
            if isinstance(size, int) and ((table is not None and table.const_value is not None) or size > 1):
                rows.append(size)
    return min(rows) if rows else None


def _is_mask(value: ir.Value) -> bool:
    name = str(value.name).lower()
    if "mask" in name or "padding" in name:
        return True
    if value.dtype == ir.DataType.BOOL:
        return any(op_of(n) in ("Where", "Not", "And", "Or", "Attention") for n, _ in _reached(value))
    return False


def _is_added(value: ir.Value) -> bool:
    """Whether a float mask goes to the scores as it is (Add, or the mask operand of Attention)."""
    uses = {op_of(n) for n, _ in value.uses()} - {"Shape"}
    while uses and uses <= _PASSING - {"Add", "Where"}:
        nexts = [o for n, _ in value.uses() if op_of(n) != "Shape" for o in n.outputs]
        if not nexts:
            return False
        value = nexts[0]
        uses = {op_of(n) for n, _ in value.uses()} - {"Shape"}
    return bool(uses & {"Add", "Attention"})
