"""A site as several smaller ones: of ranges of its keys, of its heads, or of its queries. What is made of their results stands in
forms/split.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from onnx_fa.errors import UnsupportedError
from onnx_fa.forms.moved_masks import Number, Start, moved
from onnx_fa.graph.builder import OnnxBuilder
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.dtypes import ONNX
from onnx_fa.spec.expr import Axis, Int, Length, ScoreExpr, leaves, substitute
from onnx_fa.spec.terms import Dim, MaskTerm, Quantized, TensorArg, Weighting, term_tensors, with_shapes

Along = Literal["keys", "heads", "queries"]
_FROM_END: dict[Along, int] = {"heads": -3, "queries": -2, "keys": -1}
"""The axis of the scores that is cut."""


@dataclass(frozen=True)
class Part:
    """One part of a site: what it computes, and its operands in the spec's order."""

    spec: AttentionSpec
    operands: tuple[ir.Value, ...]
    some: ir.Value | None = None
    """Whether a run has keys for it, as a scalar; None: every run has. Without any it is given another part's key, or a zero,
    because onnxruntime's reductions of an empty axis are empty."""


@dataclass(frozen=True)
class _Range:
    """`size` elements of an axis, from `first` to `end`. `last`: they reach to its end. `some`: as in Part; `padding`: how many
    elements the axis lacks to have one."""

    first: Number
    end: Number
    size: Dim
    last: bool
    some: ir.Value | None = None
    padding: ir.Value | None = None

    def times(self, factor: int) -> _Range:
        """As many times the elements, of known numbers."""
        first, end = ((x.known or 0) * factor for x in (self.first, self.end))
        return _Range(Number(first), Number(end), end - first, self.last)


def cut(b: OnnxBuilder, spec: AttentionSpec, operands: Sequence[ir.Value], along: Along, count: int) -> list[Part]:
    """The site in `count` parts of as equal a size as can be, fewer where there are not as many keys, heads or queries.

    Parts of the keys have no sink: it counts once, where they are merged. Their rows without keys are zero, which merging does not
    see, and they have the maximum and the sum of every row as further results. Of heads and queries the results stand side by side.
    Raises UnsupportedError for a site that is no two parts, and for what no part can say.
    """
    if along == "heads":
        heads = spec.Hq if spec.Hkv == 1 else spec.Hkv
        if not isinstance(heads, int):
            raise UnsupportedError("the number of heads is known only at run time")
        if spec.gathered is not None and spec.gathered.head_rows:
            raise UnsupportedError("heads that read rows of one pool by their number are not parted")
        ranges = _ranges(b, heads, count, along, lambda: length(b, spec, operands, "q"))
    elif along == "queries":
        ranges = _ranges(b, spec.Sq, count, along, lambda: length(b, spec, operands, "q"))
    else:
        ranges = _ranges(b, spec.Skv, count, along, lambda: length(b, spec, operands, "k"))
    made: dict[tuple[ir.Value, int], ir.Value] = {}
    types = dict(zip(operands, spec.operand_dtypes, strict=True))
    return [_Cut(b, spec, along, r, types, made).part(operands) for r in ranges]


def _ranges(b: OnnxBuilder, dim: Dim, count: int, along: Along, measure: Callable[[], ir.Value]) -> list[_Range]:
    """`count` ranges of an axis; `measure` gives its length where only a run knows it."""
    if isinstance(dim, int):
        count = min(count, dim)
        if count < 2:
            raise UnsupportedError(f"there are no two parts of {dim} {along}")
        ends = [Number(i * dim // count) for i in range(count + 1)]
        sizes: list[Dim] = [(i + 1) * dim // count - i * dim // count for i in range(count)]
        return [_Range(ends[i], ends[i + 1], sizes[i], i == count - 1) for i in range(count)]
    whole = measure()
    starts = [b.const(np.asarray(0, np.int64))]
    pieces = b.const(np.asarray(count, np.int64))
    starts += [b.op("Div", b.op("Mul", whole, b.const(np.asarray(i, np.int64))), pieces) for i in range(1, count)]
    starts.append(whole)
    if along != "keys":
        return [
            _Range(Number(None if i else 0, starts[i]), Number(None, starts[i + 1]), f"{dim}_part{i}", i == count - 1)
            for i in range(count)
        ]
    lacking = _as_number(b, b.op("Equal", whole, starts[0]))
    ranges = []
    for i in range(count):
        none = _as_number(b, b.op("Equal", starts[i], starts[i + 1]))
        end, some = b.op("Add", starts[i + 1], none), b.op("Less", starts[i], starts[i + 1])
        first = Number(None if i else 0, starts[i])
        ranges.append(_Range(first, Number(None, end), f"{dim}_part{i}", i == count - 1, some, lacking))
    return ranges


def _as_number(b: OnnxBuilder, test: ir.Value) -> ir.Value:
    """1 for true, 0 for false."""
    return b.op("Cast", test, to=int(ir.DataType.INT64))


def length(b: OnnxBuilder, spec: AttentionSpec, operands: Sequence[ir.Value], axis: Axis) -> ir.Value:
    """The number of keys or queries, as a scalar."""
    if axis == "q":
        return b.dim(operands[0], spec.q_layout.index(spec.rank - 2))
    if spec.gathered is not None:
        return b.dim(operands[-1], -1)
    return b.dim(operands[1], spec.k_layout.index(spec.rank - 2))


@dataclass(frozen=True)
class _Cut:
    """One range of a site. `range` counts K's and V's heads where these are cut, and Q's where one head is all of theirs."""

    b: OnnxBuilder
    spec: AttentionSpec
    along: Along
    range: _Range
    types: dict[ir.Value, str]
    """Of the operands."""
    made: dict[tuple[ir.Value, int], ir.Value]
    """Operands with a zero more, where they have no keys; the parts share them."""

    @property
    def of_scores(self) -> _Range:
        """What is taken of the scores' axis."""
        return self.range.times(self.spec.group) if self.along == "heads" and self.spec.Hkv != 1 else self.range

    @property
    def cuts_keys(self) -> bool:
        """Whether K and V are cut."""
        return self.along == "keys" or (self.along == "heads" and self.spec.Hkv != 1)

    def part(self, operands: Sequence[ir.Value]) -> Part:
        spec, at = self.spec, self.spec.rank - (3 if self.along == "heads" else 2)
        q, k, v, *rest = operands
        if self.along != "keys":
            q = self.slice(q, spec.q_layout.index(at), self.of_scores)
        if self.cuts_keys and not (self.along == "keys" and spec.gathered is not None):
            k = self.slice(k, spec.k_layout.index(at), self.range)
            v = self.slice(v, spec.v_layout.index(at), self.range)
        further = iter(rest)
        masks, tensors = list[MaskTerm](), list[ir.Value]()
        for mask in spec.masks:
            tensors += [self.tensor(next(further), x) for x in term_tensors(mask)]
            changed, more = self.moved(with_shapes(mask, self.dims), operands)
            masks.append(changed)
            tensors += more
        fields: dict[str, Any] = {"masks": tuple(masks), "weighting": self.weighting()}
        for name in ("weights", "sink"):
            arg: TensorArg | None = getattr(spec, name)
            if arg is None:
                continue
            value = self.tensor(next(further), arg, of_rows=name == "sink")
            fields[name] = replace(arg, shape=self.dims(arg.shape, of_rows=name == "sink"))
            if name == "sink" and self.along == "keys":
                fields[name] = None
            else:
                tensors.append(value)
        for name, layout in (("k_quant", spec.k_layout), ("v_quant", spec.v_layout)):
            quant: Quantized | None = getattr(spec, name)
            if quant is None:
                continue
            axis = layout.index(at) - spec.rank
            cut = self.cuts_keys and len(quant.shape) >= -axis and quant.shape[axis] != 1
            for _ in range(1 + quant.zero_point):
                value = next(further)
                tensors.append(self.slice(value, axis, self.range) if cut else value)
            if cut:
                fields[name] = replace(quant, shape=_with(quant.shape, axis, self.range.size))
        for index in further:  # of gathered rows
            tensors.append(self.slice(index, -1, self.range) if self.along == "keys" else index)
        return Part(replace(spec, **fields, **self.sizes()), (q, k, v, *tensors), self.range.some)

    def sizes(self) -> dict[str, Any]:
        """The fields of the spec that say how large the part is, and what else is asked of it."""
        spec, size = self.spec, self.range.size
        if self.along == "heads":
            return {"Hq": self.of_scores.size, "Hkv": size if spec.Hkv != 1 else 1}
        if self.along == "queries":
            return {"Sq": size}
        if spec.weighting is not None:
            return {"Skv": size}
        return {"Skv": size, "empty_row": "zero", "stats": ("max", "sum")}

    def moved(self, mask: MaskTerm, operands: Sequence[ir.Value]) -> tuple[MaskTerm, list[ir.Value]]:
        """The mask term as this part counts positions, and the operands that it reads beyond those of the whole."""
        if self.along == "heads":
            return mask, []
        spec = self.spec

        def whole(axis: Axis) -> Number:
            dim = spec.Sq if axis == "q" else spec.Skv
            return Number(dim) if isinstance(dim, int) else Number(None, length(self.b, spec, operands, axis))

        first, zero = self.range.first, Number(0)
        query, key = (first, zero) if self.along == "queries" else (zero, first)
        return moved(self.b, mask, Start(query, key, whole, self.range.last))

    def weighting(self) -> Weighting | None:
        """Of the whole, whose lengths are those of the whole."""
        spec, weighting = self.spec, self.spec.weighting
        if weighting is None or self.along == "heads":
            return weighting
        axis: Axis = "k" if self.along == "keys" else "q"
        length = spec.Skv if axis == "k" else spec.Sq
        read = [x for e in (weighting.weight, weighting.total) if e is not None for x in leaves(e)]
        if Length(axis) not in read:
            return weighting
        if not isinstance(length, int):
            raise UnsupportedError(f"weights that read the number of {self.along}, which is known only at run time")

        def known(leaf: ScoreExpr) -> ScoreExpr:
            return Int(length) if leaf == Length(axis) else leaf

        total = weighting.total and substitute(weighting.total, known)
        return replace(weighting, weight=substitute(weighting.weight, known), total=total)

    def tensor(self, value: ir.Value, arg: TensorArg, *, of_rows: bool = False) -> ir.Value:
        """What the part reads of a tensor that broadcasts to the scores, or to a number of each row."""
        at = _FROM_END[self.along]
        if self.dims(arg.shape, of_rows=of_rows) == arg.shape:
            return value
        return self.slice(value, len(arg.shape) + at, self.of_scores)

    def dims(self, shape: tuple[Dim, ...], *, of_rows: bool = False) -> tuple[Dim, ...]:
        """The dims of such a tensor's part."""
        at = _FROM_END[self.along]
        if len(shape) < -at or shape[at] == 1 or (of_rows and self.along == "keys"):
            return shape
        return _with(shape, at, self.of_scores.size)

    def slice(self, x: ir.Value, axis: int, r: _Range) -> ir.Value:
        b = self.b
        x = x if r.padding is None else self.padded(x, axis, r.padding)
        first, end = (b.ints(n.known) if n.known is not None else b.unsqueeze(n.scalar(b), 0) for n in (r.first, r.end))
        return b.op("Slice", x, first, end, b.ints(axis))

    def padded(self, x: ir.Value, axis: int, lacking: ir.Value) -> ir.Value:
        """x with so many zeros more along an axis."""
        b = self.b
        if (x, axis) not in self.made:
            sizes = b.op("Shape", x)
            before = b.op("Slice", sizes, b.ints(0), b.ints(axis)) if axis else None
            behind = b.op("Slice", sizes, b.ints(axis + 1), b.ints(np.iinfo(np.int64).max)) if axis != -1 else None
            dims = [d for d in (before, b.unsqueeze(lacking, 0), behind) if d is not None]
            shape = b.op("Concat", *dims, axis=0)
            zero = b.op("Cast", b.const(np.asarray(0, np.int64)), to=int(ONNX[self.types[x]]))
            self.made[x, axis] = b.op("Concat", x, b.op("Expand", zero, shape), axis=axis)
        return self.made[x, axis]


def _with(shape: tuple[Dim, ...], axis: int, size: Dim) -> tuple[Dim, ...]:
    dims = list(shape)
    dims[axis] = size
    return tuple(dims)
