"""A linear site: a product of rows of the run with a weight of the network, and what is done to each number of it.

y[m, n] = then(sum over k of x[m, k] w[k, n], t0[n] or t0[m, n], ...)
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from onnx_fa.spec.expr import (
    SCORE,
    SKV,
    SQ,
    Apply,
    K,
    Q,
    ScoreExpr,
    Tensor,
    compose,
    evaluate,
    kind_of,
    leaves,
    substitute,
)
from onnx_fa.spec.spec_json import fields_from_json, fields_to_json
from onnx_fa.spec.terms import Dim, DType, TensorArg

POSITIONS = (Q, K, SQ, SKV)
"""Leaves of score expressions that a linear site has not."""
Zeros = Literal["", "packed", "f32", "f16", "bf16"]
ByteType = Literal["u8", "i8"]
BYTES: tuple[ByteType, ...] = get_args(ByteType)


@dataclass(frozen=True)
class Bits:
    """A weight of so many `bits`, N rows of K numbers in blocks: (number - zero point) * scale. A byte holds 8 / bits numbers,
    the lowest bits first. `scales` is the element type of the scales (N, blocks); `zeros` that of the zero points, "packed" where
    they stand in bytes like the weight, "" where all are half of 2^bits."""

    bits: int
    block: int
    scales: DType
    zeros: Zeros = ""

    @property
    def places(self) -> int:
        """Numbers in a byte."""
        return 8 // self.bits

    @property
    def middle(self) -> int:
        """The zero point where none is an operand."""
        return 1 << (self.bits - 1)


@dataclass(frozen=True)
class LinearSpec:
    """`lead` are the dims of x (*lead, K) before the last, symbols for those that are known at run time only. The weight is (K,
    N), or (N, K) if `transposed`, of the type of x, or of a few `bits`; with a `panel` it comes as (panels, K, panel), of so many
    columns each, the last of them the last columns of the weight; of bf16 as (panels, K / 2, 2 panel), where the two numbers of
    neighbouring rows lie beside each other, and of bytes as (panels, K / 4, 4 panel).

    Of bytes (x "u8" or "i8", the weight i8) the sums are whole numbers of 32 bits, of which `then` makes f32. With `zero`, x less a
    zero point, an i32, is multiplied; with a panel, the sums of the weight's columns are an operand behind it.

    `then` is what becomes of a sum, the score of the expression, with `tensors`, of shapes (N,) or (*lead, N), or () of bytes: a
    bias, an activation, a residual, a gate, a scale.

    `stored` is the type of the weight's numbers where that is a shorter one than x's: they are exact in x's.

    With `parts`, numbers of columns, the results are so many, side by side: queries, keys and values of one product. A panel has
    columns of one of them: those of a part are as those of a weight of its own.

    Raises ValueError for parts that are not all columns, blocks that do not divide K, bits that are not 2, 4 or 8, panels wider
    than the weight or a part of it, pairs of an odd K, fours of a K that 4 does not divide, weights stored in no shorter type, and
    for what an expression of these tensors cannot be."""

    lead: tuple[Dim, ...]
    K: int
    N: int
    dtype: DType | ByteType
    transposed: bool = False
    bits: Bits | None = None
    then: ScoreExpr = SCORE
    tensors: tuple[TensorArg, ...] = ()
    panel: int = 0
    parts: tuple[int, ...] = ()
    zero: bool = False
    stored: DType | Literal[""] = ""

    def __post_init__(self) -> None:
        if self.stored and (self.dtype != "f32" or self.stored not in ("f16", "bf16") or self.bits is not None):
            raise ValueError(f"a weight of {self.stored} for an x of {self.dtype}")
        if self.parts and (sum(self.parts) != self.N or min(self.parts) < 1 or len(self.parts) < 2):
            raise ValueError(f"parts {self.parts} of {self.N} columns")
        if self.bits is not None:
            if self.bits.bits not in (2, 4, 8) or self.bits.block % self.bits.places or self.K % self.bits.block:
                raise ValueError(f"a weight of {self.bits} of {self.K} numbers a row")
            if not self.transposed:
                raise ValueError("a weight of a few bits is stored by rows of N")
        if min(self.K, self.N) < 1:
            raise ValueError(f"a weight of {self.K} x {self.N} numbers")
        if self.panel and (self.panel > min(self.widths) or self.transposed or self.bits is not None):
            columns = min(self.widths)
            raise ValueError(
                f"panels of {self.panel} columns of a weight of {columns}, which is (K, N) and no integers"
            )
        if self.K % self.packed:
            raise ValueError(f"{'pairs' if self.packed == 2 else 'fours'} of {self.K} rows of a weight")
        if self.zero and not self.is_of_bytes:
            raise ValueError(f"a zero point of {self.dtype}")
        check_epilogue(self.then, self.tensors, [(self.N,), (*self.lead, self.N), *[()] * self.is_of_bytes])

    @property
    def rows(self) -> int | None:
        """The rows of x; None where they are known at run time only."""
        known = [d for d in self.lead if isinstance(d, int)]
        return math.prod(known) if len(known) == len(self.lead) else None

    @property
    def rows_of_one(self) -> int:
        """Of the rows those that are known: all, or those of one element of a free batch, as the places of an image; 1 where none
        are."""
        return math.prod(d for d in self.lead if isinstance(d, int))

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(d for d in self.lead if isinstance(d, str)))

    @property
    def flops(self) -> int:
        """Multiplications and additions of the product, of a spec without symbols."""
        assert self.rows is not None
        return 2 * self.rows * self.K * self.N

    def bind(self, dims: Mapping[str, int]) -> LinearSpec:
        """The same spec with symbols replaced by sizes; symbols not in `dims` stay."""

        def size(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
            return tuple(dims.get(d, d) if isinstance(d, str) else d for d in shape)

        tensors = tuple(replace(t, shape=size(t.shape)) for t in self.tensors)
        return replace(self, lead=size(self.lead), tensors=tensors)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict."""
        return fields_to_json(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LinearSpec:
        """The inverse of `to_dict`. Raises ValueError on what is no score expression, and as the class does."""
        return cls(**fields_from_json(data, {"Bits": Bits, "TensorArg": TensorArg}, ("then",)))

    @property
    def blocks(self) -> int:
        """Blocks of a row of the weight."""
        assert self.bits is not None
        return self.K // self.bits.block

    @property
    def widths(self) -> tuple[int, ...]:
        """The columns of each result."""
        return self.parts or (self.N,)

    @property
    def panels(self) -> int:
        return sum(-(-n // self.panel) for n in self.widths)

    @property
    def is_of_bytes(self) -> bool:
        """Whether whole numbers of 8 bits are multiplied."""
        return self.dtype in BYTES

    @property
    def weight_dtype(self) -> DType | Literal["i8"]:
        """Of a weight that is not of a few bits."""
        return self.stored or ("i8" if self.dtype == "u8" or self.dtype == "i8" else self.dtype)

    @property
    def result_dtype(self) -> DType:
        return "f32" if self.dtype == "u8" or self.dtype == "i8" else self.dtype

    @property
    def packed(self) -> int:
        """The rows of the weight that lie in one of a panel."""
        return in_a_word(self.dtype) if self.panel else 1

    @property
    def weight_shape(self) -> tuple[int, ...]:
        if self.panel:
            return (self.panels, self.K // self.packed, self.packed * self.panel)
        if self.bits is not None:
            return (self.N, self.K // self.bits.places)
        return (self.N, self.K) if self.transposed else (self.K, self.N)

    @property
    def operand_shapes(self) -> tuple[tuple[Dim, ...], ...]:
        """x, the weight (its bytes, scales and zero points), the tensors."""
        found: list[tuple[Dim, ...]] = [(*self.lead, self.K), self.weight_shape]
        if self.bits is not None:
            found.append((self.N, self.blocks))
            if self.bits.zeros:
                packed = self.bits.zeros == "packed"
                found.append((self.N, -(-self.blocks // self.bits.places) if packed else self.blocks))
        if self.zero:
            found += [(), *[(self.N,)] * bool(self.panel)]
        return (*found, *(t.shape for t in self.tensors))

    @property
    def operand_dtypes(self) -> tuple[str, ...]:
        found: list[str] = [self.dtype]
        if self.zero:
            found += ["i8", "i32", *["i32"] * bool(self.panel)]
        elif self.bits is None:
            found.append(self.weight_dtype)
        else:
            found += ["u8", self.bits.scales]
            if self.bits.zeros:
                found.append("u8" if self.bits.zeros == "packed" else self.bits.zeros)
        return (*found, *(t.dtype for t in self.tensors))

    def operand_names(self, tensor: str = "t") -> list[str]:
        names = ["x", "w"]
        if self.bits is not None:
            names += ["scale", *["zero"] * bool(self.bits.zeros)]
        if self.zero:
            names += ["zero", *["sums"] * bool(self.panel)]
        return [*names, *(f"{tensor}{i}" for i in range(len(self.tensors)))]

    @property
    def results(self) -> tuple[tuple[tuple[Dim, ...], DType], ...]:
        return tuple(((*self.lead, columns), self.result_dtype) for columns in self.widths)


def in_a_word(dtype: DType | ByteType) -> int:
    """How many neighbours along K are multiplied as one number of 32 bits."""
    if dtype in BYTES:
        return 4
    return 2 if dtype == "bf16" else 1


def linear_name(spec: LinearSpec) -> str:
    """The name of a site's function: equal for equal specs."""
    return f"linear_{hashlib.sha256(repr(spec).encode()).hexdigest()[:10]}"


def panel_starts(widths: Sequence[int], panel: int) -> list[int]:
    """The first column of each panel of a weight whose results have so many columns, of which each has at least a panel's. The last
    panel of a result has its last columns."""
    ends = list(accumulate(widths))
    return [min(i, end - panel) for n, end in zip(widths, ends, strict=True) for i in range(end - n, end, panel)]


def check_epilogue(then: ScoreExpr, tensors: Sequence[TensorArg], shapes: Collection[tuple[Dim, ...]]) -> None:
    """Raises ValueError where an expression is no float that follows from a sum and all of the tensors, or one of these has none of
    the shapes."""
    if kind_of(then, [t.kind for t in tensors]) != "float" or not set(leaves(then)).isdisjoint(POSITIONS):
        raise ValueError(f"{then} is no function of a sum and {len(tensors)} tensors")
    if strange := [t for t in tensors if t.shape not in shapes]:
        raise ValueError(f"{strange[0]} is neither of the columns nor of all numbers")


def biased(spec: LinearSpec) -> LinearSpec:
    """The site with one more tensor of the columns, which is added to what it was before."""
    return followed(spec, Apply("Add", SCORE, Tensor(0)), (TensorArg((spec.N,), spec.result_dtype),))


def followed(spec: LinearSpec, then: ScoreExpr, tensors: tuple[TensorArg, ...]) -> LinearSpec:
    """The site with what becomes of its results, with more tensors."""
    moved = len(spec.tensors)
    behind = substitute(then, lambda e: Tensor(e.index + moved) if isinstance(e, Tensor) else e)
    return replace(spec, then=compose(behind, spec.then), tensors=(*spec.tensors, *tensors))


def weight_of(spec: LinearSpec, operands: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
    """The weight (K, N) as numbers."""
    w = operands[1]
    if spec.panel:
        panels = np.asarray(w, np.float64)
        if (n := spec.packed) > 1:
            words = panels.reshape(spec.panels, spec.K // n, spec.panel, n)
            panels = words.transpose(0, 1, 3, 2).reshape(spec.panels, spec.K, spec.panel)
        found = np.empty((spec.K, spec.N))
        for start, columns in zip(panel_starts(spec.widths, spec.panel), panels, strict=True):
            found[:, start : start + spec.panel] = columns
        return found
    if spec.bits is None:
        return np.asarray(w, np.float64).T if spec.transposed else np.asarray(w, np.float64)
    bits, scales = spec.bits, np.asarray(operands[2], np.float64)
    zero: npt.NDArray[np.float64] = np.full(scales.shape, float(bits.middle))
    if bits.zeros:
        zero = (
            unpacked(operands[3], bits)[:, : spec.blocks]
            if bits.zeros == "packed"
            else np.asarray(operands[3], np.float64)
        )
    numbers = unpacked(w, bits).reshape(spec.N, spec.blocks, bits.block)
    return ((numbers - zero[..., None]) * scales[..., None]).reshape(spec.N, spec.K).T


def unpacked(data: npt.NDArray[Any], bits: Bits) -> npt.NDArray[np.float64]:
    """The numbers in rows of bytes, as they stand there."""
    shifts = bits.bits * np.arange(bits.places)
    numbers = (data.astype(np.int64)[..., None] & 255) >> shifts & ((1 << bits.bits) - 1)
    return numbers.reshape(data.shape[0], -1).astype(np.float64)


def multiply(spec: LinearSpec, operands: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.float64]:
    """The meaning of a spec in float64: y (*lead, N), of which `parts` are columns side by side."""
    zero = np.asarray(operands[2], np.float64) if spec.zero else 0.0
    y = (np.asarray(operands[0], np.float64) - zero) @ weight_of(spec, operands)
    return np.asarray(evaluate(spec.then, y, operands[len(operands) - len(spec.tensors) :]), np.float64)
