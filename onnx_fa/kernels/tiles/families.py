"""Families of sites: what decides which tiles are fast, and how far two of them are from each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import SCORE
from onnx_fa.spec.linear import LinearSpec
from onnx_fa.spec.terms import AddMask, BoolMask, Causal, Dim, Elementwise, MaskTerm, SlidingWindow

MASKS = ("none", "causal", "window", "tensor", "computed")
"""What a mask costs a kernel, lightest first; an attention with several counts as the last of them."""
QUERIES = ("one", "few", "many", "dynamic")
"""Sq: 1, up to 63, from 64 on, known only at run time."""
KEYS = ("short", "medium", "long", "dynamic")
"""Skv: below 1024, below 8192, from there on, known only at run time."""
ROWS = ("one", "few", "some", "many", "dynamic")
"""Rows of a product: 1, up to 4, up to 63, from 64 on, known only at run time."""
WIDTHS = ("narrow", "medium", "wide")
"""K and N of a weight: below 512, below 2048, from there on."""


@dataclass(frozen=True)
class Family:
    """Of attentions. `body` is the kernel's (see kernels/choose.py), `group` the query heads per K/V head. Raises ValueError for
    classes that are none."""

    body: str
    dtype: str
    D: int
    Dv: int
    Sq: str
    Skv: str
    mask: str
    group: int

    def __post_init__(self) -> None:
        _check((self.Sq, QUERIES), (self.Skv, KEYS), (self.mask, MASKS))
        if min(self.D, self.Dv, self.group) < 1:
            raise ValueError("D, Dv and group must be positive")

    @property
    def has_integers(self) -> bool:
        """Whether K or V are kept as integers."""
        return " " in self.dtype

    def __str__(self) -> str:
        heads = f" group {self.group}" if self.group > 1 else ""
        dims = f"D{self.D}" if self.Dv == self.D else f"D{self.D} Dv{self.Dv}"
        return f"{self.body} {self.dtype} {dims} {self.Sq} queries, {self.Skv} keys, mask {self.mask}{heads}"

    def distance(self, have: Family) -> float:
        """An element type weighs as much as five steps in the number of keys, a doubled head dim as four, one in the number of
        queries as three, integers for K or V as one."""
        dims = abs(math.log2(self.D / have.D)) + abs(math.log2(self.Dv / have.Dv))
        return (
            4 * (self.dtype.split()[0] != have.dtype.split()[0])
            + (self.dtype != have.dtype)
            + 2 * dims
            + 3 * _steps(self.Sq, have.Sq, QUERIES)
            + _steps(self.Skv, have.Skv, KEYS)
            + 0.5 * abs(MASKS.index(self.mask) - MASKS.index(have.mask))
            + 0.5 * abs(math.log2(self.group / have.group))
        )


@dataclass(frozen=True)
class LinearFamily:
    """Of products with a weight. `body` is the kernel's, `dtype` the type of x, `weight` that of the weight's numbers, `follows`
    whether anything is done to the sums. Raises ValueError for classes that are none."""

    body: str
    dtype: str
    weight: str
    rows: str
    K: str
    N: str
    follows: bool

    def __post_init__(self) -> None:
        _check((self.rows, ROWS), (self.K, WIDTHS), (self.N, WIDTHS))

    def __str__(self) -> str:
        types = self.dtype if self.weight == self.dtype else f"{self.dtype} by {self.weight}"
        then = " and what follows" if self.follows else ""
        return f"{self.body} {types} {self.rows} rows, {self.K} K, {self.N} N{then}"

    def distance(self, have: LinearFamily) -> float:
        """A step in the number of rows weighs as much as three in K or N. Infinite between element types: who is faster at one says
        nothing of another."""
        if (self.dtype, self.weight) != (have.dtype, have.weight):
            return math.inf
        return (
            3 * _steps(self.rows, have.rows, ROWS)
            + abs(WIDTHS.index(self.K) - WIDTHS.index(have.K))
            + abs(WIDTHS.index(self.N) - WIDTHS.index(have.N))
            + 0.5 * (self.follows != have.follows)
        )


SiteFamily = Family | LinearFamily


def family(spec: AttentionSpec | LinearSpec, body: str) -> SiteFamily:
    """The family that the spec of a site belongs to."""
    return _MAKERS[type(spec)](spec, body)


def family_from(data: Mapping[str, Any]) -> SiteFamily:
    """The family with these fields. Raises ValueError where they are those of no kind of site."""
    for kind in (Family, LinearFamily):
        if {f.name for f in fields(kind)} == set(data):
            return kind(**data)
    raise ValueError(f"family {dict(data)} has the fields of no kind of site")


def distance(want: Any, have: Any) -> float:
    """How far the family of an entry is from what is asked. Infinite between kinds of sites, and between bodies."""
    if type(want) is not type(have) or want.body != have.body:
        return math.inf
    return float(want.distance(have))


def _of_attention(spec: AttentionSpec, body: str) -> Family:
    sq, skv = spec.Sq, spec.Skv
    queries = _range_of(sq, {1: "one", 63: "few"}, "many")
    keys = _range_of(skv, {1023: "short", 8191: "medium"}, "long")
    mask = max((_mask_kind(m) for m in spec.masks), key=MASKS.index, default="none")
    kept = "".join(f" {n}:{x.dtype}" for n, x in (("k", spec.k_quant), ("v", spec.v_quant)) if x is not None)
    return Family(body, spec.dtype + kept, spec.D, spec.Dv, queries, keys, mask, spec.group)


def _of_product(spec: LinearSpec, body: str) -> LinearFamily:
    rows = _range_of("rows" if spec.rows is None else spec.rows, {1: "one", 4: "few", 63: "some"}, "many")
    k, n = (_range_of(size, {511: "narrow", 2047: "medium"}, "wide") for size in (spec.K, spec.N))
    weight = spec.operand_dtypes[1] if spec.bits is None else f"{spec.bits.bits} bits"
    return LinearFamily(body, spec.dtype, weight, rows, k, n, spec.then != SCORE)


_MAKERS: dict[type, Callable[[Any, str], SiteFamily]] = {AttentionSpec: _of_attention, LinearSpec: _of_product}


def _check(*classes: tuple[str, tuple[str, ...]]) -> None:
    for value, known in classes:
        if value not in known:
            raise ValueError(f"{value!r} is not one of {', '.join(known)}")


def _range_of(length: Dim, most: Mapping[int, str], beyond: str) -> str:
    """The name of the range that a length falls in: the first whose largest length it does not exceed, or `beyond`."""
    if isinstance(length, str):
        return "dynamic"
    return next((name for limit, name in most.items() if length <= limit), beyond)


def _mask_kind(term: MaskTerm) -> str:
    match term:
        case Causal():
            return "causal"
        case SlidingWindow():
            return "window"
        case BoolMask() | AddMask():
            return "tensor"
        case Elementwise():
            return "computed"


def _steps(a: str, b: str, scale: tuple[str, ...]) -> float:
    """Steps between two classes; half a step between a known and a dynamic length, which is most often a large one."""
    if "dynamic" in (a, b):
        known = a if b == "dynamic" else b
        return 0.0 if a == b else 0.5 + (len(scale) - 2 - scale.index(known))
    return abs(scale.index(a) - scale.index(b))
