"""What each input of a decoder stands for, and the arrays for a call: so many tokens behind so many that were seen.

Rows of a batch are equally long, so that all that describes their lengths follows from two numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnx_fa.errors import ModelError
from onnx_fa.graph.caches import CachePair, first_rows
from onnx_fa.graph.free_dims import graph_inputs

Array = npt.NDArray[np.generic]
Role = Literal["tokens", "mask", "positions", "past length", "total length", "last key", "lengths", "cache used"]
"""tokens (B, S). mask (B, P + S), or (B, 1, S, P + S): which keys a query sees. positions (S) or (.., B, S) of the tokens. past
length: P. total length: P + S. last key (B): P + S - 1. lengths (B): P + S. cache used: whether there is a past, which optimum's
merged decoders ask."""

_NAMES: Mapping[Role, tuple[str, ...]] = {
    "tokens": ("input_ids", "tokens", "token_ids", "decoder_input_ids", "ids"),
    "mask": ("attention_mask", "attn_mask", "mask", "decoder_attention_mask", "attention_bias"),
    "positions": ("position_ids", "positions", "cache_position", "pos_ids", "decoder_position_ids"),
    "past length": (
        "past_length",
        "past_seq_len",
        "past_sequence_length",
        "write_indices",
        "cache_length",
        "past_lengths",
        "start_pos",
    ),
    "total length": ("total_sequence_length", "total_seq_len", "total_length"),
    "last key": ("seqlens_k", "last_key"),
    "lengths": ("nonpad_kv_seqlen", "seqlens", "kv_seqlens", "lengths", "context_lens", "total_lengths"),
    "cache used": ("use_cache_branch",),
}
"""What exporters call them."""


@dataclass(frozen=True)
class Input:
    """An input other than a cache. `shape` has a number for each dim that the file fixes, else None."""

    name: str
    role: Role
    shape: tuple[int | None, ...]
    dtype: ir.DataType
    over_room: bool = False
    """Of a mask: it has a column for every row that a cache has room for, there or not."""


def read_roles(
    model: ir.Model, pairs: Sequence[CachePair], names: Mapping[str, Role] | None = None
) -> tuple[Input, ...]:
    """The inputs of a decoder beside its caches, in its order. `names` says what inputs are that have unusual names.

    Raises ModelError for an input of which nothing tells what it is, and where no input takes tokens.
    """
    known = {name: role for role in get_args(Role) for name in _NAMES[role]} | dict(names or {})
    caches = {pair.past for pair in pairs}
    rooms = {
        _name(v, pair.length_axis)
        for v in graph_inputs(model)
        for pair in pairs
        if v.name == pair.past and pair.length_axis is not None and first_rows(v, 1) == 1
    } - {None}
    found: list[Input] = []
    for value in graph_inputs(model):
        name = str(value.name)
        if name in caches:
            continue
        if name not in known:
            raise ModelError(
                f"input {name!r}: nothing tells what a decoder takes there; known are {', '.join(n[0] for n in _NAMES.values())} "
                "and the like, and caches that come back as an output with rows appended, or of the same name"
            )
        if value.dtype is None or value.shape is None:
            raise ModelError(f"input {name!r} has no type or no shape")
        shape = tuple(d if isinstance(d, int) else None for d in value.shape)
        over_room = known[name] == "mask" and bool(shape) and _name(value, len(shape) - 1) in rooms
        found.append(Input(name, known[name], shape, value.dtype, over_room))
    if sum(i.role == "tokens" for i in found) != 1:
        raise ModelError(f"no input takes tokens: one of them would be called {', '.join(_NAMES['tokens'])}")
    return tuple(found)


def _name(value: ir.Value, axis: int) -> int | str | None:
    dim = None if value.shape is None or not -len(value.shape) <= axis < len(value.shape) else value.shape[axis]
    return dim.value if isinstance(dim, ir.SymbolicDim) else dim


def tokens_input(inputs: Sequence[Input]) -> str:
    return next(i.name for i in inputs if i.role == "tokens")


def call_arrays(inputs: Sequence[Input], tokens: npt.NDArray[np.int64], past: int, room: int) -> dict[str, Array]:
    """The arrays of one call by name. tokens: (B, S), behind `past` tokens that were seen; caches that have room from the beginning
    have `room` rows. Raises ModelError for an input whose shape its role does not have."""
    return {i.name: _array(i, tokens, past, room) for i in inputs}


def _array(given: Input, tokens: npt.NDArray[np.int64], past: int, room: int) -> Array:
    batch, new = tokens.shape
    total, kind, rank = past + new, given.dtype.numpy(), len(given.shape)
    row = past + np.arange(new)
    if given.role == "tokens":
        return tokens.astype(kind)
    if given.role == "cache used":
        return np.full(tuple(1 if d is None else d for d in given.shape), past > 0, kind)
    if given.role == "mask":
        return _mask(given, batch, row, (given.shape[-1] or room) if given.over_room else total, kind)
    if given.role == "positions":
        if rank == 1:
            return row.astype(kind)
        lead = tuple(1 if d is None else d for d in given.shape[:-2])
        return np.broadcast_to(row, (*lead, batch, new)).astype(kind)
    number = {"past length": past, "total length": total, "last key": total - 1, "lengths": total}[given.role]
    return np.full([batch] * rank if rank < 2 else [batch, *[1] * (rank - 1)], number, kind)


def _mask(given: Input, batch: int, row: npt.NDArray[Any], columns: int, kind: Any) -> Array:
    """All tokens so far are there; where the mask has queries, each sees those up to its own."""
    rank = len(given.shape)
    if rank == 2:
        return np.broadcast_to(np.arange(columns) <= row[-1], (batch, columns)).astype(kind)
    if rank != 4:
        raise ModelError(f"input {given.name!r}: a mask of {rank} dims, where 2 and 4 are known")
    keep = np.broadcast_to(np.arange(columns) <= row[:, None], (batch, 1, len(row), columns))
    if given.dtype.is_floating_point():
        return np.where(keep, 0.0, float(ml_dtypes.finfo(kind).min)).astype(kind)  # type: ignore[no-untyped-call]
    return keep.astype(kind)
