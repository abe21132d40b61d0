"""Inputs of a run, made from the names, types and symbols of a model's inputs: a prompt, a step of decoding, padding, a chunk."""

from __future__ import annotations

import ast
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import onnx

from corpus.case import Array

Padding = Literal["none", "left", "right"]
MOST_ID = 60
"""Token ids are smaller: every vocabulary of the corpus has more."""


@dataclass(frozen=True)
class Run:
    """Sizes of one run. `length`: new tokens; `past`: tokens in the cache; `source`: the encoder's length; `side`: of an image;
    `sizes`: of symbols by their name, before anything else is asked."""

    name: str
    batch: int = 2
    length: int = 7
    past: int = 0
    source: int = 6
    side: int = 32
    padding: Padding = "none"
    sizes: Mapping[str, int] = field(default_factory=dict)


PROMPT = Run("prompt")
ENCODER = (
    PROMPT,
    Run("right padding", padding="right"),
    Run("left padding", length=9, padding="left"),
    Run("one", batch=1),
)
DECODER = (
    PROMPT,
    Run("left padding", batch=3, padding="left"),
    Run("right padding", length=5, padding="right"),
)
STEPS = (
    Run("step", length=1, past=6),
    Run("step, left padding", batch=3, length=1, past=5, padding="left"),
    Run("chunk", length=4, past=5),
)
IMAGE = (Run("batch"), Run("one", batch=1))


def runs_of(model: onnx.ModelProto, runs: Iterable[Run]) -> dict[str, dict[str, Array]]:
    """Inputs of a model for each of the runs. Runs that differ in nothing that the model takes are left out."""
    result: dict[str, dict[str, Array]] = {}
    for run in runs:
        made = feeds_of(model, run)
        if not any(_equal(made, other) for other in result.values()):
            result[run.name] = made
    return result


def _equal(one: dict[str, Array], other: dict[str, Array]) -> bool:
    return all(one[name].shape == other[name].shape and np.array_equal(one[name], other[name]) for name in one)


def feeds_of(model: onnx.ModelProto, run: Run) -> dict[str, Array]:
    """One array for each input of the model that is no initializer."""
    given = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in given]
    return {value.name: _array(value, run) for value in inputs}


def shape_of(value: onnx.ValueInfoProto, run: Run) -> tuple[int, ...]:
    """The sizes of an input in this run. A dim of which nothing tells what it is is the batch if it comes first,
    else the length."""
    dims = value.type.tensor_type.shape.dim
    sizes = []
    for axis, dim in enumerate(dims):
        if dim.HasField("dim_value"):
            sizes.append(dim.dim_value)
        elif dim.dim_param:
            sizes.append(size_of_symbol(dim.dim_param, run, unknown=run.length if axis else run.batch))
        else:
            sizes.append(run.length if axis else run.batch)
    return tuple(sizes)


def size_of_symbol(symbol: str, run: Run, unknown: int) -> int:
    """The size of a symbol, or of a sum or product of symbols and numbers; `unknown` for a name that tells nothing."""
    if symbol in run.sizes:
        return run.sizes[symbol]
    try:
        parsed = ast.parse(symbol.strip(), mode="eval").body
    except SyntaxError:
        return _size_of_word(symbol, run, unknown)
    return _evaluate(parsed, run, unknown)


def _evaluate(node: ast.expr, run: Run, unknown: int) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=word):
            return _size_of_word(word, run, unknown)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _evaluate(left, run, unknown) + _evaluate(right, run, unknown)
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _evaluate(left, run, unknown) - _evaluate(right, run, unknown)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _evaluate(left, run, unknown) * _evaluate(right, run, unknown)
    raise ValueError(f"no size known for {ast.unparse(node)!r}")


def _size_of_word(symbol: str, run: Run, unknown: int) -> int:
    """The size that a symbol's name tells, else `unknown`."""
    if symbol in run.sizes:
        return run.sizes[symbol]
    word = symbol.lower()
    rules: tuple[tuple[str, int], ...] = (
        (r"batch|^b$|^n$", run.batch),
        (r"past_decoder|decoder_past", run.past),
        (r"decoder", run.length),
        (r"encoder|source", run.source),
        (r"total|kv_seq|all_len", run.past + run.length),
        (r"past|cache", run.past),
        (r"channels", 3),
        (r"height|width|side", run.side),
        (r"seq|len|token|^s$|^t$", run.length),
    )
    for pattern, size in rules:
        if re.search(pattern, word):
            return size
    return unknown


def _array(value: onnx.ValueInfoProto, run: Run) -> Array:
    shape = shape_of(value, run)
    kind: np.dtype[Any] = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    rng = np.random.default_rng(zlib.crc32(f"{value.name} {run.name}".encode()))
    name = value.name.lower()
    if "use_cache" in name:
        return np.full(shape, run.past > 0, kind)
    if "mask" in name and not name.startswith("past"):
        return _mask(shape, run, "encoder" in name and "decoder" not in name, kind)
    if "position" in name and kind.kind in "iu":
        return _positions(shape, run).astype(kind)
    if kind.kind in "iu":
        most = 2 if "type" in name or "segment" in name else MOST_ID
        return rng.integers(0, most, shape).astype(kind)
    if kind.kind == "b":
        return (rng.random(shape) < 0.8).astype(kind)
    return (0.5 * rng.standard_normal(shape)).astype(kind)


def kept(batch: int, length: int, padding: Padding) -> Array:
    """Which of the tokens are there: later rows of the batch are padded more, the first not at all."""
    place = np.arange(length)[None, :]
    padded = np.minimum(np.arange(batch)[:, None] * 2, length - 1)
    if padding == "left":
        return place >= padded
    if padding == "right":
        return place < length - padded
    return np.ones((batch, length), bool)


def _mask(shape: tuple[int, ...], run: Run, encoder: bool, kind: np.dtype[Any]) -> Array:
    if len(shape) != 2:
        return np.ones(shape, kind)
    padding = "right" if encoder and run.padding != "none" else run.padding
    return kept(shape[0], shape[1], padding).astype(kind)


def _positions(shape: tuple[int, ...], run: Run) -> Array:
    """Positions of the new tokens: padding on the left does not count."""
    if len(shape) < 2:
        return np.broadcast_to(run.past + np.arange(shape[-1] if shape else 1), shape)
    counted = np.cumsum(kept(shape[-2], run.past + shape[-1], run.padding), axis=-1) - 1
    return np.broadcast_to(np.maximum(counted, 0)[:, run.past :], shape)
