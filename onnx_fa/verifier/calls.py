"""The calls that a decoder with caches gets: a prompt, a single token behind it, and a chunk of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnx_fa.errors import ModelError
from onnx_fa.graph.caches import CachePair, find_cache_pairs, first_rows
from onnx_fa.graph.free_dims import graph_inputs
from onnx_fa.graph.roles import Input, call_arrays, read_roles, tokens_input
from onnx_fa.verifier.inputs import Array, random_inputs


@dataclass(frozen=True)
class Call:
    """`batch` rows of `new` tokens behind `past` that were seen."""

    name: str
    batch: int
    past: int
    new: int


CALLS = (Call("prompt", 2, 0, 23), Call("step", 2, 23, 1), Call("chunk", 1, 19, 5))
"""GroupQueryAttention takes several tokens behind a cache for one row only."""
_SPARE = 6
"""Rows that a cache of fixed room has behind the last token."""


def decoder_calls(
    model: ir.Model, sizes: Mapping[str, int], seed: int = 0
) -> tuple[dict[str, dict[str, Array]], list[str]]:
    """Arrays by input for each call that the model takes, by the call's name, and a line for each that it does not; neither where
    it has no caches. `sizes` are those of dims that have only one. Caches hold normal numbers, tokens are of the vocabulary."""
    pairs = find_cache_pairs(model)
    if not pairs:
        return {}, []
    try:
        inputs = read_roles(model, pairs)
    except ModelError as e:
        return {}, [f"prompt, step and chunk left out: {e}"]
    found: dict[str, dict[str, Array]] = {}
    notes: dict[str, None] = {}
    for number, call in enumerate(CALLS):
        try:
            call = _in_room(model, pairs, call, sizes)
            arrays = _arrays(model, pairs, inputs, call, sizes, np.random.default_rng([seed, number]))
            _check_shapes(model, arrays, sizes)
        except ModelError as e:
            notes[f"{call.name} left out: {e}"] = None
            continue
        found[call.name] = arrays
    return found, list(notes)


def _in_room(model: ir.Model, pairs: tuple[CachePair, ...], call: Call, sizes: Mapping[str, int]) -> Call:
    """The call behind fewer tokens where caches have room for fewer rows. Raises ModelError where its own tokens have none."""
    values = {str(v.name): v for v in graph_inputs(model)}
    for pair in pairs:
        value, axis = values[pair.past], pair.length_axis
        rows = None if axis is None or value.shape is None else _fixed(value, axis, sizes)
        if rows is None or first_rows(value, 1) != 1:
            continue  # free, or no cache that has all its rows from the beginning
        if rows < call.new + bool(call.past):
            raise ModelError(f"input {pair.past!r} has {rows} rows, and the call takes {call.new + bool(call.past)}")
        call = replace(call, past=min(call.past, rows - call.new))
    return call


def _arrays(
    model: ir.Model,
    pairs: tuple[CachePair, ...],
    inputs: tuple[Input, ...],
    call: Call,
    sizes: Mapping[str, int],
    rng: np.random.Generator,
) -> dict[str, Array]:
    room = call.past + call.new + _SPARE
    axes = {pair.past: pair.length_axis for pair in pairs}
    values = {str(v.name): v for v in graph_inputs(model)}
    known = random_inputs(model, seed=int(rng.integers(1 << 30)), dims=sizes)[tokens_input(inputs)]
    tokens = np.resize(known.ravel(), (call.batch, call.new)).astype(np.int64)
    made = call_arrays(inputs, tokens, call.past, room)
    for past, axis in axes.items():
        made[past] = _cache(values[past], axis, call, room, sizes, rng)
    return {name: made[name] for name in values}


def _cache(
    value: ir.Value, axis: int | None, call: Call, room: int, sizes: Mapping[str, int], rng: np.random.Generator
) -> Array:
    """Random rows. Raises ModelError for a cache without a shape or type."""
    if value.shape is None or value.dtype is None:
        raise ModelError(f"input {value.name!r} has no type or no shape")
    rows = first_rows(value, room) or call.past
    fixed = [_fixed(value, i, sizes) for i in range(len(value.shape))]
    free = [rows if i == axis or i else call.batch for i in range(len(fixed))]
    dims = [size if want is None else want for size, want in zip(free, fixed, strict=True)]
    kind = value.dtype.numpy()
    if value.dtype.is_floating_point():
        return rng.standard_normal(dims).astype(kind)
    bounds = ml_dtypes.iinfo(kind)  # type: ignore[no-untyped-call]
    return rng.integers(int(bounds.min), int(bounds.max) + 1, dims).astype(kind)


def _check_shapes(model: ir.Model, arrays: Mapping[str, Array], sizes: Mapping[str, int]) -> None:
    """Raises ModelError where an array has not the shape that the model, or a size that was given, fixes."""
    for value in graph_inputs(model):
        name, shape = str(value.name), arrays[str(value.name)].shape
        if value.shape is not None and len(value.shape) != len(shape):
            raise ModelError(f"input {name!r} has {len(value.shape)} dims, and the call's {len(shape)}")
        for axis, got in enumerate(shape):
            want = None if value.shape is None else _fixed(value, axis, sizes)
            if want is not None and want != got:
                raise ModelError(f"dim {axis} of input {name!r} is {want}, and the call's {got}")


def _fixed(value: ir.Value, axis: int, sizes: Mapping[str, int]) -> int | None:
    """The size of a dim where the model, or `sizes`, fixes it."""
    assert value.shape is not None
    dim = value.shape[axis]
    return dim if isinstance(dim, int) else sizes.get(str(dim.value) if dim.value else f"{value.name}.{axis}")
