"""A decoder in IREE: two modules on one device, and caches that stay there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_fa.errors import RunError, one_line
from onnx_fa.generate.modules import Cache, Module
from onnx_fa.graph.roles import call_arrays
from onnx_fa.iree.device import Device
from onnx_fa.iree.run import bind_module
from onnx_fa.spec.dtypes import NUMPY

Array = npt.NDArray[np.generic]


class IreeDecoder:
    """Runs the modules of a decoder on one device. `capacity` is the most tokens that will be seen."""

    def __init__(self, prompt: Module, step: Module, device: str, capacity: int) -> None:
        self._modules, self._capacity, self.note = (prompt, step), capacity, ""
        self.device = Device(device)
        opened: dict[tuple[int, int], Any] = {}
        self._calls = [bind_module(Path(m.vmfb), device, opened=opened) for m in self._modules]
        self._buffers: dict[str, Any] = {}
        self._past: dict[str, Any] = {}
        self._seen = 0

    def start(self) -> None:
        """Forgets what was seen."""
        self._seen, self._past = 0, {}
        for cache in self._modules[1].caches:
            if cache.grown:
                if cache.past not in self._buffers:
                    self._buffers[cache.past] = self.device.allocate(self._shape(cache, self._capacity), cache.dtype)
            else:
                rows = self._capacity if cache.first_rows is None else cache.first_rows
                self._past[cache.past] = np.zeros(self._shape(cache, rows), NUMPY[cache.dtype])

    def run(self, tokens: Sequence[int]) -> Array:
        """The logits (vocabulary) of the last token. Raises RunError."""
        total = self._seen + len(tokens)
        if total > self._capacity:
            raise RunError(f"{total} tokens for caches of {self._capacity}")
        which = 1 if len(tokens) == 1 and self._seen else 0
        module = self._modules[which]
        has_room = any(c.first_rows is None and not c.grown for c in module.caches)
        arrays: dict[str, Any] = dict(
            call_arrays(
                module.inputs, np.asarray([tokens], np.int64), self._seen, self._capacity if has_room else total
            )
        )
        for cache in module.caches:
            arrays[cache.past] = self._rows(cache, total) if cache.grown else self._past[cache.past]
        try:
            made = self._calls[which](*(arrays[name] for name in module.arguments))
        except Exception as e:  # the bindings raise whatever their C++ throws
            raise RunError(f"{module.vmfb}: {one_line(e)}") from e
        results = dict(zip(module.results, made, strict=True))
        self._keep(module, results)
        self._seen = total
        logits = np.asarray(results[module.logits].to_host())
        last: Array = logits[(0,) * (logits.ndim - 2) + (-1,)].copy()
        return last

    def _shape(self, cache: Cache, rows: int) -> tuple[int, ...]:
        return tuple(rows if d is None else d for d in cache.shape)

    def _rows(self, cache: Cache, total: int) -> Any:
        """The first rows of the buffer."""
        return self.device.view(self._buffers[cache.past], self._shape(cache, total), cache.dtype)

    def _keep(self, module: Module, results: Mapping[str, Any]) -> None:
        """What the next call takes for its past."""
        here = {cache.past: cache.grown for cache in module.caches}
        for cache in self._modules[1].caches:
            if here.get(cache.past, False) and cache.grown:
                continue  # it was written in place
            made = results[cache.present]
            if not cache.grown and not here.get(cache.past, False):
                self._past[cache.past] = made
                continue
            rows = np.asarray(made.to_host())
            if cache.grown:  # the module for prompts had no past, or a copied one
                axis = next(i for i, d in enumerate(cache.shape) if d is None)
                first = np.moveaxis(rows, _rows_axis(rows.shape, cache), axis)
                whole = np.zeros(self._shape(cache, self._capacity), rows.dtype)
                whole[: len(first)] = first
                self._buffers[cache.past] = self.device.upload(whole)
            else:
                raise RunError(f"{cache.past}: grown in place for prompts, and copied for a token")


def _rows_axis(shape: Sequence[int], cache: Cache) -> int:
    """Which axis of a present (B, H, T, D) has the rows: the one that is none of the cache's other dims, in their order."""
    others = list(cache.shape[1:])
    for axis in range(len(shape)):
        if [*shape[:axis], *shape[axis + 1 :]] == others:
            return axis
    raise RunError(f"{cache.present}: of shape {list(shape)}, where rows of {others} were to come")
