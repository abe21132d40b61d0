"""A graph under construction, with the dice that decide what it becomes."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
from onnx import TensorProto as T
from onnx import helper as h

from tests.support.spellings import Graph

LOWEST = float(np.finfo(np.float32).min)
FILLS = (float("-inf"), LOWEST, -1e38, -1e9, -1e4, -30.0)
NARROW = (T.FLOAT16, T.BFLOAT16)
KINDS = (
    "plain",
    "products",
    "masks",
    "wraps",
    "behind",
    "foreign",
    "empty",
    "deep",
    "cuts",
    "caches",
    "quantised",
    "floats",
    "mixed",
    "readers",
    "table",
    "positions",
)
"""What a graph has most of; every area occurs in every kind now and then."""


class Sketch(Graph):
    """A graph of B batch rows, H heads (Hkv of K and V), lengths S and L, head dims D and E, and floats of type `float_type`.

    `rank` is that of the scores: 4 with batch and heads, 3 with heads alone, 2 with neither. `quantise` says whether the values
    that pass through `edge` may go through QuantizeLinear and DequantizeLinear. `mixed`: the operands are of the type `own`, f16 or
    bf16, and the scores of f32 (`areas_types`); `float_type` is then that of the part that is being drawn.
    """

    def __init__(self, r: Random, kind: str) -> None:
        super().__init__(r.choice((13, 17, 18, 21, 23, 23, 24, 24)))
        self.r, self.kind, self.base = r, kind, kind
        self.B, self.H = r.choice((1, 2, 2)), r.choice((1, 2, 2, 3))
        self.Hkv = self.H if r.random() < 0.8 else 1
        self.S, self.L = r.choice((1, 2, 3, 4, 5)), r.choice((1, 2, 3, 4, 6, 7))
        if r.random() < 0.25:
            self.L = self.S
        self.D, self.E = r.choice((1, 2, 3, 4)), r.choice((1, 2, 3, 4))
        self.rank = r.choice((4, 4, 4, 4, 3, 2))
        if self.likes("empty", 0.8, 0.02):
            for dim in r.choice((("L",), ("L",), ("S",), ("B",), ("L", "S"))):
                setattr(self, dim, 0)
        self.float_type = T.FLOAT
        if self.likes("floats", 0.9, 0.02):
            self.float_type = r.choice((T.FLOAT16, T.FLOAT16, T.BFLOAT16, T.DOUBLE))
        if kind == "mixed":
            self.float_type = r.choice((T.FLOAT16, T.FLOAT16, T.FLOAT16, T.BFLOAT16))
        self.own = self.float_type
        self.mixed = self.own in NARROW and self.likes("mixed", 1.0, 0.25)
        self.quantise = self.likes("quantised", 1.0, 0.03) and self.float_type == T.FLOAT
        if self.quantise:
            self.opset = max(self.opset, r.choice((18, 21)))
        self.extra: dict[str, tuple[str, int]] = {}
        """Values to show as outputs beside the result, with what they are and their types."""
        self.kept: list[str] = []
        """Conditions by which scores have been masked."""

    def likes(self, area: str, often: float = 0.7, seldom: float = 0.06) -> bool:
        """Whether to draw something of an area: often in a graph of that kind, seldom elsewhere."""
        return self.r.random() < (often if self.kind == area else seldom)

    @property
    def lead(self) -> list[int]:
        return {4: [self.B, self.H], 3: [self.H], 2: []}[self.rank]

    @property
    def kv_lead(self) -> list[int]:
        return {4: [self.B, self.Hkv], 3: [self.Hkv], 2: []}[self.rank]

    @property
    def score_shape(self) -> list[int]:
        return [*self.lead, self.S, self.L]

    @property
    def numpy_float(self) -> Any:
        return h.tensor_dtype_to_np_dtype(self.float_type)

    def floats(self, value: Any) -> str:
        """A constant of the graph's float type."""
        with np.errstate(over="ignore"):
            return self.const(np.asarray(value, np.float64), self.numpy_float)

    def ints(self, value: Any) -> str:
        return self.const(value, np.int64)

    def given(self, name: str, shape: list[int], dtype: int | None = None, hint: str = "") -> str:
        """A new input; `hint` tells `inputs` what values it takes."""
        name = f"{name}_{len(self.inputs)}" if any(i.name == name for i in self.inputs) else name
        self.input(name, list(shape), self.float_type if dtype is None else dtype)
        self.inputs[-1].doc_string = hint
        return name

    def given_to_scores(self, name: str, shape: list[int], hint: str = "") -> str:
        """A new input that goes into the scores: of their type, or now and then of the operands' and cast."""
        if not self.mixed or self.r.random() < 0.6:
            return self.given(name, shape, hint=hint)
        return self.op("Cast", self.given(name, shape, self.own, hint), to=self.float_type)

    def show(self, x: str, what: str) -> None:
        """A value of the float type at this place becomes an output."""
        self.extra[x] = what, self.float_type

    def swapped(self, x: str, rank: int | None = None) -> str:
        """The last two axes change places."""
        n = self.rank if rank is None else rank
        return self.op("Transpose", x, perm=[*range(n - 2), n - 1, n - 2])

    def reduced(self, kind: str, x: str, axis: int = -1, keep: bool = True) -> str:
        by_input = self.opset >= 18 or (kind == "ReduceSum" and self.opset >= 13)
        attrs: dict[str, Any] = {} if by_input else {"axes": [axis]}
        return self.op(kind, x, *([self.ints([axis])] if by_input else []), keepdims=int(keep), **attrs)

    def broadcast_shape(self) -> list[int]:
        """A shape that broadcasts to the scores."""
        shape = [n if self.r.random() < 0.6 else 1 for n in self.score_shape]
        return shape[self.r.choice((0, 0, self.r.randrange(len(shape)))) :]

    def edge(self, x: str, name: str) -> str:
        """A value on its way: now and then through a quantiser, a cast there and back, or a node that does nothing."""
        r = self.r
        if self.quantise and r.random() < 0.55:
            x = self.rounded(x, name)
        if self.likes("floats", 0.2, 0.02):
            narrow = r.choice((T.FLOAT16, T.DOUBLE, T.FLOAT, T.BFLOAT16))
            x = self.op("Cast", self.op("Cast", x, to=narrow), to=self.float_type)
        if r.random() < 0.03:
            x = self.op(r.choice(("Identity", "Dropout")), x)
        if self.likes("foreign", 0.1, 0.0):
            x = self.op(r.choice(("Identity", "Neg", "Relu")), x)
        return x

    def rounded(self, x: str, name: str) -> str:
        """QuantizeLinear and DequantizeLinear with one scale."""
        r = self.r
        kinds = [np.uint8, np.int8]
        wide: tuple[Any, ...] = (np.uint16, np.int16) if self.opset >= 21 else ()
        dtype = r.choice((*kinds, *kinds, *wide))
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        if name == "p":
            scale, zero = r.choice((1 / 255, 1 / 256, 1 / 127, 1 / (high - low))), r.choice((low, 0))
        else:
            scale = r.choice((8, 6, 4)) / (high - low) * (2 if name == "s" else 1)
            zero = r.choice((0, (low + high + 1) // 2, low + 3))
        zero = max(low, min(high, zero))
        pair = (
            self.const(scale),
            *([self.const(zero, dtype)] if zero or dtype is not np.uint8 or r.random() < 0.7 else []),
        )
        return self.op("DequantizeLinear", self.op("QuantizeLinear", x, *pair), *pair)
