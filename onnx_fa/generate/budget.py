"""What a token must read, and how fast this machine reads: the bound of decoding, which multiplies each weight once."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from onnx_fa.generate.modules import Module
from onnx_fa.graph import io
from onnx_fa.graph.ops import CONTRIB, op_of
from onnx_fa.spec.dtypes import NUMPY

_LOOKED_UP = frozenset(["Gather", f"{CONTRIB}.GatherBlockQuantized"])
"""Ops that read a few rows of their first input."""
_BYTES = 1 << 28
_ROUNDS = 5


@dataclass(frozen=True)
class Budget:
    """Bytes that a token reads of weights and, behind so many tokens, of caches; `bandwidth` is what this machine reads in bytes a
    second with all its cores."""

    weights: int
    caches: int
    bandwidth: float

    @property
    def seconds(self) -> float:
        return (self.weights + self.caches) / self.bandwidth


def measure_budget(path: Path, module: Module, seen: int, threads: int) -> Budget:
    """Of the file that a token is computed with, behind `seen` tokens."""
    caches = 0
    for cache in module.caches:
        elements = 1
        for d in cache.shape:
            elements *= seen if d is None else d
        caches += elements * np.dtype(NUMPY[cache.dtype]).itemsize
    return Budget(read_bytes(io.load(path)), caches, read_bandwidth(threads))


def read_bytes(model: ir.Model) -> int:
    """Bytes of the weights that each token reads as a whole: all but tables of which rows are looked up."""
    total = 0
    for value in model.graph.initializers.values():
        tensor = value.const_value
        readers = {(op_of(node), index) for node, index in value.uses()}
        if tensor is None or (readers and all(op in _LOOKED_UP and index != 1 for op, index in readers)):
            continue
        total += tensor.nbytes
    return total


def read_bandwidth(threads: int) -> float:
    """Bytes a second that this machine reads: the best of a few sums over a quarter GiB, each thread a part."""
    whole = np.ones(_BYTES // 8, np.int64)
    parts = np.array_split(whole, threads)
    best = 0.0
    for _ in range(_ROUNDS):
        workers = [threading.Thread(target=np.max, args=(part,)) for part in parts]
        begin = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = max(best, whole.nbytes / (time.perf_counter() - begin))
    return best
