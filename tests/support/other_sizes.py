"""Inputs of other sizes for a model whose sizes have names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx

_TRIED = (0, 1, 5)


def sizes_of(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> dict[str, int]:
    """The names of sizes, and how long they are in `inputs`."""
    found: dict[str, int] = {}
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, np.shape(inputs[value.name]), strict=True):
            if dim.dim_param:
                found[dim.dim_param] = size
    return found


def draw_sizes(given: Mapping[str, int], seed: int = 0) -> Iterator[dict[str, int]]:
    """Each name alone of another size, then all of them."""
    for name, size in given.items():
        for other in _TRIED:
            if other != size:
                yield {**given, name: other}
    if len(given) > 1:
        rng = np.random.default_rng(seed)
        yield dict.fromkeys(given, 1)
        for _ in range(3):
            yield {name: int(rng.integers(1, 9)) for name in given}


def resized(
    model: onnx.ModelProto, inputs: Mapping[str, Any], sizes: Mapping[str, int], seed: int = 0
) -> dict[str, Any]:
    """Inputs of these sizes, made of numbers that `inputs` have: places and lengths among them stay such."""
    rng = np.random.default_rng(seed)
    made = {}
    for value in model.graph.input:
        old = np.asarray(inputs[value.name])
        shape = tuple(
            sizes[dim.dim_param] if dim.dim_param else size
            for dim, size in zip(value.type.tensor_type.shape.dim, old.shape, strict=True)
        )
        if shape == old.shape:
            made[value.name] = old
        else:
            pool = old.ravel() if old.size else np.zeros(1, old.dtype)
            made[value.name] = pool[rng.integers(0, len(pool), shape)]
    return made
