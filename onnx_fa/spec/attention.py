"""AttentionSpec: what one attention computes, whatever its spelling. `reference.py` gives its meaning in float64.

Shapes use the field's letters: B (leading batch dims), Hq and Hkv heads, Sq and Skv lengths, D and Dv head dims.
A dim is an int, or a str symbol for a length that is known only at run time.

Canonical operand order, before a layout permutes it:

    q (*B, Hq, Sq, D)   k (*B, Hkv, Skv, D)   v (*B, Hkv, Skv, Dv)   out (*B, Hq, Sq, Dv)

Query head h reads key/value head h // (Hq // Hkv). A layout is a permutation as in `numpy.transpose`: the stored tensor is
`canonical.transpose(layout)`, so (0, 2, 1, 3) is BSHD and (0, 1, 3, 2) for k is K given transposed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from onnx_fa.spec.spec_json import fields_from_json, fields_to_json
from onnx_fa.spec.terms import (
    Dim,
    DType,
    Elementwise,
    Gathered,
    MaskTerm,
    Quantized,
    Rounding,
    ScoreMod,
    Softcap,
    TensorArg,
    TensorMask,
    Weighting,
    term_tensors,
    with_shapes,
)

EmptyRow = Literal["nan", "zero", "guarded", "mean"]
Stat = Literal["lse", "max", "sum"]
"""A further result, one number per query: the logarithm of the sum of the exponentials of its scores, the largest score, or the sum
of the exponentials of the scores less the largest (0 for a row without keys)."""
LOWEST_STAT = -1e37
"""Finite row statistics below this, which only masks make, are given as the lowest f32."""
_TERMS: dict[str, type] = {
    kind.__name__: kind for kind in (Softcap, *get_args(MaskTerm), TensorArg, Quantized, Gathered, Rounding, Weighting)
}
_EXPRESSIONS = ("expr", "weight", "total")
"""Fields of terms that are score expressions."""


@dataclass(frozen=True)
class AttentionSpec:
    """softmax(mask(mods(scale * q @ k^T))) @ v.

    Masks apply in order, after the score modifications. Operands are q, k, v, then the tensors of every mask term in order,
    the weights, the sink, then of k and of v, where they are integers, the scale and the zero point, then the index of gathered
    rows (which are not kept as integers). A `sink` is one more logit per row, of a shape that broadcasts to (*B, Hq, Sq, 1): it
    takes its part in the softmax and has no value (softmax(concat(scores, sink)) without its last column). `empty_row` is what a
    query with no key left (all its scores -inf) yields: "nan", as softmax does;
    "zero", as the ONNX Attention op; "guarded", where NaN probabilities are replaced by zero, whatever made them NaN. "mean" (of v)
    says that masked scores are finite, as with a finfo.min fill, so that no row is ever empty. Without any keys (Skv = 0) the
    output is zero whatever `empty_row` says, a product over an empty axis. `stats` are further outputs behind
    the first, each (*B, Hq, Sq) in f32 (f64 if the dtype is), over the masked scores and the sink: a row without keys has -inf,
    and finite ones below LOWEST_STAT become the lowest f32; a row without keys has the "sum" 0. `rounding` is done to the
    normalised probabilities, those of a sink's row too. `weights`, of a shape that broadcasts to the score's, multiply the
    normalised probabilities before those multiply v (true is 1, false is 0): a row's probabilities then need not add up to one.
    `renormalised` says that what the weights, which are then booleans, keep of a row is divided by its own sum; the row's
    maximum remains that of all keys, and `empty_row` is "guarded". `weighting` replaces the softmax: what multiplies v is its
    weight of the masked score (see Weighting), with `weights`, if there are any, times that; there is then no sink, no row
    statistic, no rounding.
    Raises ValueError when fields contradict each other.
    """

    dtype: DType
    Hq: Dim
    Hkv: Dim
    Sq: Dim
    Skv: Dim
    D: int
    Dv: int
    batch: tuple[Dim, ...] = ()
    scale: float = 1.0
    mods: tuple[ScoreMod, ...] = ()
    masks: tuple[MaskTerm, ...] = ()
    sink: TensorArg | None = None
    empty_row: EmptyRow = "nan"
    stats: tuple[Stat, ...] = ()
    q_layout: tuple[int, ...] = ()
    k_layout: tuple[int, ...] = ()
    v_layout: tuple[int, ...] = ()
    o_layout: tuple[int, ...] = ()
    k_quant: Quantized | None = None
    v_quant: Quantized | None = None
    gathered: Gathered | None = None
    rounding: Rounding | None = None
    weights: TensorArg | None = None
    renormalised: bool = False
    weighting: Weighting | None = None

    def __post_init__(self) -> None:
        if self.weights is not None and (self.rounding is not None or self.weights.kind == "int"):
            raise ValueError("weights of the probabilities are floats or booleans, and those are not rounded")
        if self.renormalised:
            if self.weights is None or self.weights.dtype != "bool" or self.empty_row != "guarded":
                raise ValueError(
                    "renormalised probabilities are kept by booleans, and rows of which none is left are guarded"
                )
            if self.sink is not None or self.stats:
                raise ValueError("renormalised probabilities have no sink and no row statistics")
        if self.weighting is not None and (self.sink is not None or self.stats or self.rounding or self.renormalised):
            raise ValueError("an attention without a softmax has no sink, no row statistics and no rounding")
        for name in ("q_layout", "k_layout", "v_layout", "o_layout"):
            layout = getattr(self, name) or tuple(range(self.rank))
            if sorted(layout) != list(range(self.rank)):
                raise ValueError(f"{name} {layout} is not a permutation of {self.rank} axes")
            object.__setattr__(self, name, tuple(layout))
        if isinstance(self.Hq, int) and isinstance(self.Hkv, int):
            if self.Hkv < 1 or self.Hq % self.Hkv:
                raise ValueError(f"Hq={self.Hq} is not a multiple of Hkv={self.Hkv}")
        elif self.Hq != self.Hkv:
            raise ValueError("symbolic head counts must be equal")
        if len(set(self.stats)) != len(self.stats) or not set(self.stats) <= set(get_args(Stat)):
            raise ValueError(f"row statistics {self.stats} are not some of {get_args(Stat)}")
        for mask in self.tensors:
            self._check_broadcast("mask", mask.shape, self.score_shape)
        if self.sink is not None:
            self._check_broadcast("sink", self.sink.shape, (*self.score_shape[:-1], 1))
        if self.gathered is not None and self.quantized:
            raise ValueError("gathered keys and values are not kept as integers")
        for what, quant, stored, layout in (
            ("scale of k", self.k_quant, self.operand_shapes[1], self.k_layout),
            ("scale of v", self.v_quant, self.operand_shapes[2], self.v_layout),
        ):
            if quant is not None:
                self._check_scale(what, quant.shape, stored, layout.index(self.rank - 1))

    def _check_scale(self, what: str, shape: tuple[Dim, ...], stored: tuple[Dim, ...], head_dim: int) -> None:
        """As `_check_broadcast`, but along the head dim a divisor of it will do."""
        padded = (1,) * (self.rank - len(shape)) + shape
        groups, width = padded[head_dim] if len(padded) == self.rank else 0, stored[head_dim]
        if isinstance(groups, int) and isinstance(width, int) and groups > 0 and width % groups == 0:
            stored = (*stored[:head_dim], groups, *stored[head_dim + 1 :])
        self._check_broadcast(what, shape, stored)

    def _check_broadcast(self, what: str, shape: tuple[Dim, ...], target: tuple[Dim, ...]) -> None:
        if len(shape) > self.rank:
            raise ValueError(f"{what} rank {len(shape)} exceeds the score's rank {self.rank}")
        if any(have not in (1, want) for have, want in zip(reversed(shape), reversed(target), strict=False)):
            raise ValueError(f"{what} shape {shape} does not broadcast to {target}")

    @property
    def rank(self) -> int:
        return len(self.batch) + 3

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.Hq // self.Hkv if isinstance(self.Hq, int) and isinstance(self.Hkv, int) else 1

    @property
    def score_shape(self) -> tuple[Dim, ...]:
        return (*self.batch, self.Hq, self.Sq, self.Skv)

    @property
    def tensors(self) -> tuple[TensorArg, ...]:
        """The tensors of all mask terms, in operand order, and behind them the weights (the sink is not among them)."""
        weights = (self.weights,) if self.weights is not None else ()
        return (*(t for m in self.masks for t in term_tensors(m)), *weights)

    @property
    def tensor_masks(self) -> tuple[TensorMask, ...]:
        return tuple(m for m in self.masks if isinstance(m, TensorMask))

    @property
    def symbols(self) -> tuple[str, ...]:
        dims = (*self.score_shape, self.Hkv, *([self.gathered.rows] if self.gathered is not None else []))
        return tuple(dict.fromkeys(d for d in dims if isinstance(d, str)))

    @property
    def flops(self) -> int:
        """Multiplications and additions of both products, masked or not, of a spec without symbols."""
        sizes = [d for d in (*self.batch, self.Hq, self.Sq, self.Skv) if isinstance(d, int)]
        return 2 * math.prod(sizes) * (self.D + self.Dv)

    @property
    def canonical_shapes(self) -> tuple[tuple[Dim, ...], tuple[Dim, ...], tuple[Dim, ...], tuple[Dim, ...]]:
        """Shapes of q, k, v and out before their layouts permute them."""
        b, kv = self.batch, (*self.batch, self.Hkv, self.Skv)
        if self.gathered is not None:
            kv = (*[1] * len(b), 1 if self.gathered.head_rows else self.Hkv, self.gathered.rows)
        return (
            (*b, self.Hq, self.Sq, self.D),
            (*kv, self.D),
            (*kv, self.Dv),
            (*b, self.Hq, self.Sq, self.Dv),
        )

    @property
    def operand_shapes(self) -> tuple[tuple[Dim, ...], ...]:
        """Shapes as stored, in the operands' order."""
        layouts = (self.q_layout, self.k_layout, self.v_layout)
        qkv = [tuple(s[a] for a in p) for s, p in zip(self.canonical_shapes, layouts, strict=False)]
        index = [(*self.batch, self.Skv)] if self.gathered is not None else []
        return (*qkv, *(t.shape for t in self._further), *(shape for shape, _ in self._scales), *index)

    @property
    def operand_dtypes(self) -> tuple[str, ...]:
        """Element types of the operands: "f32", ..., "bool" or an integer's."""
        kv = (self.dtype if x is None else x.dtype for x in (self.k_quant, self.v_quant))
        index = [self.gathered.dtype] if self.gathered is not None else []
        return (self.dtype, *kv, *(t.dtype for t in self._further), *(dtype for _, dtype in self._scales), *index)

    @property
    def quantized(self) -> tuple[Quantized, ...]:
        """How K and V are kept as integers: for none, one or both."""
        return tuple(x for x in (self.k_quant, self.v_quant) if x is not None)

    @property
    def plain(self) -> AttentionSpec:
        """The spec with K and V as they are, neither kept as integers nor gathered."""
        return dataclasses.replace(self, k_quant=None, v_quant=None, gathered=None)

    @property
    def _scales(self) -> tuple[tuple[tuple[Dim, ...], str], ...]:
        """Shape and element type of the scale and the zero point of k, then of v."""
        found: list[tuple[tuple[Dim, ...], str]] = []
        for quant in self.quantized:
            found.append((quant.shape, self.dtype))
            if quant.zero_point:
                found.append((quant.shape, f"{quant.dtype[0]}8"))
        return tuple(found)

    def operand_names(self, tensor: str) -> list[str]:
        """q, k, v, then `tensor` with 0, 1, ... for the tensors of mask terms, then sink, then the scales and zero points of k and
        v, then the rows that are gathered."""
        names = ["q", "k", "v", *(f"{tensor}{i}" for i in range(len(self.tensors)))]
        if self.sink is not None:
            names.append("sink")
        for letter, quant in (("k", self.k_quant), ("v", self.v_quant)):
            if quant is not None:
                names.append(f"{letter}_scale")
                if quant.zero_point:
                    names.append(f"{letter}_zero")
        if self.gathered is not None:
            names.append("rows")
        return names

    @property
    def scales_at(self) -> int:
        """Where among the operands the scales begin, or the index."""
        return 3 + len(self._further)

    @property
    def _further(self) -> tuple[TensorArg, ...]:
        return (*self.tensors, self.sink) if self.sink is not None else self.tensors

    @property
    def out_shape(self) -> tuple[Dim, ...]:
        return tuple(self.canonical_shapes[3][a] for a in self.o_layout)

    @property
    def results(self) -> tuple[tuple[tuple[Dim, ...], DType], ...]:
        """(shape, element type) of every output: the attention as stored, then its row statistics."""
        rows: tuple[Dim, ...] = (*self.batch, self.Hq, self.Sq)
        wide: DType = "f64" if self.dtype == "f64" else "f32"
        return ((self.out_shape, self.dtype), *[(rows, wide)] * len(self.stats))

    @property
    def variant(self) -> str:
        """A short name: heads, then what changes the score, e.g. "gqa4+causal+softcap"."""
        if self.group == 1:
            words = ["mha"]
        else:
            words = ["mqa" if self.Hkv == 1 else f"gqa{self.group}"]
        words += [
            t.label if isinstance(t, Elementwise) else type(t).__name__.lower() for t in (*self.mods, *self.masks)
        ]
        if self.sink is not None:
            words.append("sink")
        words += self.stats
        if self.gathered is not None:
            words.append("gathered")
        words += [f"{n}:{x.dtype}" for n, x in (("k", self.k_quant), ("v", self.v_quant)) if x is not None]
        if self.rounding is not None:
            words += [f"p:{r.dtype}" for r in self.rounding.chain]
        if self.weights is not None:
            words.append("renormalised" if self.renormalised else "weighted")
        if self.weighting is not None:
            words.append(self.weighting.label)
        return "+".join(words)

    def bind(self, dims: Mapping[str, int]) -> AttentionSpec:
        """The same spec with symbols replaced by sizes; symbols not in `dims` stay."""

        def sub(d: Any) -> Any:
            return dims.get(d, d) if isinstance(d, str) else d

        def size(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
            return tuple(map(sub, shape))

        masks = tuple(with_shapes(m, size) for m in self.masks)
        sink = self.sink and dataclasses.replace(self.sink, shape=size(self.sink.shape))
        weights = self.weights and dataclasses.replace(self.weights, shape=size(self.weights.shape))
        k_quant, v_quant = (x and dataclasses.replace(x, shape=size(x.shape)) for x in (self.k_quant, self.v_quant))
        gathered = self.gathered
        if gathered is not None:
            gathered = dataclasses.replace(gathered, rows=sub(gathered.rows))
        return dataclasses.replace(
            self,
            gathered=gathered,
            batch=tuple(map(sub, self.batch)),
            masks=masks,
            sink=sink,
            weights=weights,
            k_quant=k_quant,
            v_quant=v_quant,
            **{n: sub(getattr(self, n)) for n in ("Hq", "Hkv", "Sq", "Skv")},
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict; infinities are written as strings."""
        return fields_to_json(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AttentionSpec:
        """The inverse of `to_dict`. Raises ValueError on unknown terms and on what is no score expression."""
        return cls(**fields_from_json(data, _TERMS, _EXPRESSIONS))
