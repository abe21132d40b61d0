"""A chain of operators on a tensor whose sizes only the run knows, and what its steps are made of."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from onnx import helper as h

RUNS = ({"a": 5, "b": 7, "c": 3}, {"a": 3, "b": 16, "c": 1}, {"a": 1, "b": 4, "c": 8})
"""What the free axes are, in turns."""
KINDS = {"f": TensorProto.FLOAT, "i": TensorProto.INT64, "w": TensorProto.INT32, "h": TensorProto.FLOAT16}
Sizes = tuple[int, ...]
"""A dim, in each of the runs."""


@dataclass(frozen=True)
class Value:
    """A tensor: its name, its type as KINDS has them, and its dims."""

    name: str
    kind: str
    dims: tuple[Sizes, ...]

    @property
    def rank(self) -> int:
        return len(self.dims)


def known(n: int) -> Sizes:
    return (n,) * len(RUNS)


class Chain:
    """What is drawn so far. Its steps give None where they do not fit a value."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, op: str, operands: Sequence[str], **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(h.make_node(op, operands, [name], name=f"{name}/{op}", **attributes))
        return name

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def size(self, x: Value, axis: int) -> str:
        """Of one element, by the run's own shape."""
        return self.add("Slice", [self.add("Shape", [x.name]), self.constant([axis]), self.constant([axis + 1])])

    def axis(self, x: Value) -> int:
        return self.draw.randrange(x.rank)

    def number(self, x: Value, value: float) -> str:
        dtype = {"f": np.float32, "i": np.int64, "w": np.int32, "h": np.float16}[x.kind]
        return self.constant(value, dtype)

    def cast(self, x: str, kind: str) -> str:
        return self.add("Cast", [x], to=KINDS[kind])


def resized(x: Value, name: str, axis: int | None = None, sizes: Sizes | None = None) -> Value:
    dims = x.dims if axis is None or sizes is None else (*x.dims[:axis], sizes, *x.dims[axis + 1 :])
    return Value(name, x.kind, dims)


def places(c: Chain, x: Value, axis: int) -> str:
    """0 to the size of an axis, less one."""
    top = c.add("Squeeze", [c.size(x, axis), c.constant([0])])
    return c.add("Range", [c.constant(0), top, c.constant(1)])


Step = Callable[[Chain, Value], Value | None]
"""Adds operators behind a value; None where they do not fit it."""
