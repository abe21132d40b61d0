"""Random attention specs for the property tests: every kind of term, type, layout and size that a spec can have."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from onnx_fa.spec.attention import AttentionSpec, Stat
from onnx_fa.spec.cases import FLOAT_MIN, alibi
from onnx_fa.spec.expr import SCORE, SKV, SQ, Apply, Float, Int, K, Q, ScoreExpr, Tensor, substitute, tensors_of
from onnx_fa.spec.terms import (
    GRIDS,
    NEG_INF,
    AddMask,
    BoolMask,
    Causal,
    Dim,
    Elementwise,
    Gathered,
    IntegerType,
    Quantized,
    Rounding,
    SlidingWindow,
    Softcap,
    TensorArg,
    Weighting,
    with_shapes,
)

LARGE_HEADS = (80, 96, 128, 160, 192, 256, 320, 512)
MOST_SCORES = 1 << 19
"""Larger attentions are drawn without a batch, with one head, or shorter: the reference holds the scores in float64."""


@dataclass(frozen=True)
class Drawn:
    """A spec with symbols in some of its dims, and the sizes to try it at: the first are those that were drawn."""

    spec: AttentionSpec
    sizes: tuple[tuple[tuple[str, int], ...], ...]

    def bound(self) -> list[AttentionSpec]:
        return [self.spec.bind(dict(s)) for s in self.sizes]


def _bool(r: Random, tensors: Sequence[TensorArg], depth: int) -> ScoreExpr:
    own = [Tensor(i) for i, t in enumerate(tensors) if t.kind == "bool"]
    kinds = ["compare"] * 4 + ["leaf"] * bool(own) + ["And", "Or", "Xor", "Not", "Equal", "ToBool"] * (depth > 0)
    match r.choice(kinds):
        case "leaf":
            return r.choice(own)
        case "compare":
            op = r.choice(("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "LessOrEqual", "Equal"))
            return Apply(op, _int(r, tensors, depth - 1), _int(r, tensors, depth - 1))
        case "Not":
            return Apply("Not", _bool(r, tensors, depth - 1))
        case "ToBool":
            return Apply("ToBool", _int(r, tensors, depth - 1))
        case op:
            return Apply(op, _bool(r, tensors, depth - 1), _bool(r, tensors, depth - 1))


def _int(r: Random, tensors: Sequence[TensorArg], depth: int) -> ScoreExpr:
    own: list[ScoreExpr] = [Tensor(i) for i, t in enumerate(tensors) if t.kind == "int"]
    kinds = ["leaf"] * 2 + ["Add", "Sub", "Min", "Max", "unary", "Mul", "Div", "Mod", "Where", "ToInt"] * (depth > 0)
    constant: ScoreExpr = Int(r.randint(-3, 70))
    match r.choice(kinds):
        case "leaf":
            named: list[ScoreExpr] = [Q, K, Q, K, SKV, SQ, *own, *own]
            return r.choice([*named, constant])
        case "unary":
            return Apply(r.choice(("Neg", "Abs", "Sign", "Relu")), _int(r, tensors, depth - 1))
        case "Mul" | "Div" | "Mod" as op:
            by = r.choice([constant, *own[:1]])
            return Apply(op, _int(r, tensors, depth - 1), by)
        case "ToInt":
            return Apply("ToInt", _bool(r, tensors, depth - 1))
        case "Where":
            condition = _bool(r, tensors, depth - 1)
            return Apply("Where", condition, _int(r, tensors, depth - 1), _int(r, tensors, depth - 1))
        case op:
            return Apply(op, _int(r, tensors, depth - 1), _int(r, tensors, depth - 1))


def _float(r: Random, tensors: Sequence[TensorArg], depth: int) -> ScoreExpr:
    """A small number: what is rounded in f32 must not be large, or the reference would be far away by right."""
    own: list[ScoreExpr] = [Tensor(i) for i, t in enumerate(tensors) if t.kind == "float"]
    kinds = (
        ["position"] * 2
        + ["constant"]
        + ["leaf"] * 3 * bool(own)
        + ["Add", "Sub", "Max", "unary", "Where"] * (depth > 0)
    )
    match r.choice(kinds):
        case "leaf":
            return r.choice(own)
        case "constant":
            return Float(r.choice((0.5, -1.0, 2.0)))
        case "position":
            place: ScoreExpr = Apply("ToFloat", Apply("Mod", _int(r, tensors, 1), Int(64)))
            return Apply("Mul", Float(r.choice((0.05, -0.1))), place)
        case "unary":
            x = _float(r, tensors, depth - 1)
            op = r.choice(("Tanh", "Sigmoid", "Sin", "Cos", "Erf", "Softplus", "Exp", "Log", "Neg", "Abs", "Pow"))
            safe: dict[str, ScoreExpr] = {
                "Exp": Apply("Neg", Apply("Abs", x)),
                "Log": Apply("Add", Apply("Abs", x), Float(0.1)),
            }
            if op == "Pow":
                return Apply("Pow", Apply("Add", Apply("Abs", x), Float(0.1)), Float(r.choice((0.5, 1.5, -0.3))))
            return Apply(op, safe.get(op, x))
        case "Where":
            a, b = _float(r, tensors, depth - 1), _float(r, tensors, depth - 1)
            return Apply("Where", _bool(r, tensors, depth - 1), a, b)
        case op:
            return Apply(op, _float(r, tensors, depth - 1), _float(r, tensors, depth - 1))


def _function(r: Random, tensors: Sequence[TensorArg]) -> ScoreExpr:
    """More than a mask or a bias."""
    bounded: ScoreExpr = Apply("Sigmoid", _float(r, tensors, 1))
    cap: ScoreExpr = Float(r.choice((3.0, 20.0)))
    choices: list[ScoreExpr] = [
        Apply("Mul", cap, Apply("Tanh", Apply("Div", SCORE, cap))),
        Apply("Softplus", SCORE),
        Apply("Mul", SCORE, bounded),
        Apply("Max", SCORE, _float(r, tensors, 1)),
        Apply("Sub", _float(r, tensors, 1), SCORE),
        Apply("Where", Apply("Greater", SCORE, Float(-1e30)), Apply("Erf", SCORE), SCORE),
    ]
    return r.choice(choices)


# Masks and biases that models have, in their usual spellings as expressions.


def _and(*conditions: ScoreExpr) -> ScoreExpr:
    first, *rest = conditions
    for c in rest:
        first = Apply("And", first, c)
    return first


def _near(r: Random, skv: int) -> ScoreExpr:
    """Neighbourhood attention (NATTEN): windows of one size that stop at the ends, in one dim, or in the two of an image."""
    reach = r.randint(1, 6)
    if r.random() < 0.5:
        first: ScoreExpr = Apply("Max", Apply("Min", Apply("Sub", Q, Int(reach)), Int(skv - 2 * reach - 1)), Int(0))
        return _and(Apply("GreaterOrEqual", K, first), Apply("Less", K, Apply("Add", first, Int(2 * reach + 1))))
    width: ScoreExpr = Int(r.randint(2, 12))
    rows: ScoreExpr = Apply("Abs", Apply("Sub", Apply("Div", Q, width), Apply("Div", K, width)))
    columns: ScoreExpr = Apply("Abs", Apply("Sub", Apply("Mod", Q, width), Apply("Mod", K, width)))
    return _and(Apply("LessOrEqual", rows, Int(reach)), Apply("LessOrEqual", columns, Int(reach)))


KEEPS = ("chunked", "dilated", "near", "prefix", "document", "global", "lengths", "cache", "ring", "strided")


def _keep(r: Random, kind: str, score: tuple[int, ...]) -> tuple[ScoreExpr, list[TensorArg]]:
    """(which keys a query sees, the tensors of that)."""
    lead = (*score[:-3], 1) if r.random() < 0.5 else (*[1] * (len(score) - 3), 1)
    sq, skv = score[-2:]
    ints: Any = r.choice(("i32", "i64"))
    causal: ScoreExpr = Apply("LessOrEqual", K, Q)
    size: ScoreExpr = Int(r.randint(1, 40))
    row, t0, t1 = TensorArg((*lead, 1, 1), ints), Tensor(0), Tensor(1)
    match kind:
        case "chunked":
            return _and(causal, Apply("Equal", Apply("Div", Q, size), Apply("Div", K, size))), []
        case "dilated":
            step = Apply("Equal", Apply("Mod", Apply("Sub", Q, K), Int(r.randint(1, 5))), Int(0))
            return _and(Apply("LessOrEqual", Apply("Abs", Apply("Sub", Q, K)), size), step), []
        case "near":
            return _near(r, skv), []
        case "prefix":
            return Apply("Or", causal, Apply("Less", K, size)), []
        case "document":
            ids = [TensorArg((*lead, sq, 1), ints), TensorArg((*lead, 1, skv), ints)]
            same: ScoreExpr = Apply("Equal", t0, t1)
            return (_and(causal, same) if r.random() < 0.5 else same), ids
        case "global":  # a window, and some keys and queries that see and are seen by all (Longformer, BigBird)
            window: ScoreExpr = Apply("LessOrEqual", Apply("Abs", Apply("Sub", Q, K)), size)
            return Apply("Or", window, Apply("Or", Apply("Less", K, Int(2)), Apply("Less", Q, Int(1)))), []
        case "lengths":
            return Apply("Less", K, t0), [row]
        case "cache":  # the last query stands at the last valid key of its batch row
            last: ScoreExpr = Apply("Add", Q, Apply("Sub", t0, SQ))
            return _and(Apply("Less", K, t0), Apply("LessOrEqual", K, last)), [row]
        case "ring":  # slot k holds the newest position that is k modulo the size of the ring
            age: ScoreExpr = Apply("Mod", Apply("Sub", Apply("Add", Apply("Sub", t0, K), SKV), Int(1)), SKV)
            return _and(Apply("Less", age, t0), Apply("Less", age, size)), [row]
    return Apply("Less", Apply("Mod", K, size), Int(r.randint(1, 9))), []


def _used(expr: ScoreExpr, tensors: Sequence[TensorArg]) -> Elementwise:
    """The term, without the tensors that its expression turned out not to read."""
    read = sorted(tensors_of(expr))
    renumbered = substitute(expr, lambda leaf: Tensor(read.index(leaf.index)) if isinstance(leaf, Tensor) else leaf)
    return Elementwise(renumbered, tuple(tensors[i] for i in read))


@dataclass(frozen=True)
class _Integers:
    """How K or V is kept: `along` says for every canonical axis but the last whether the scale varies, `groups` into how many it
    parts the head dim; the scale has no axes before its first that varies, if `short`."""

    dtype: IntegerType
    along: tuple[bool, ...]
    groups: int
    zero_point: bool
    short: bool

    def of(self, canonical: tuple[Dim, ...], layout: tuple[int, ...]) -> Quantized:
        """The term for an operand of such dims."""
        dims = (*(d if keep else 1 for d, keep in zip(canonical, self.along, strict=False)), self.groups)
        shape = tuple(dims[a] for a in layout)
        while self.short and shape and shape[0] == 1:
            shape = shape[1:]
        return Quantized(self.dtype, shape, self.zero_point)


def _integers(r: Random, rank: int, width: int, layout: tuple[int, ...]) -> _Integers:
    """Per tensor, token, channel or group, or anything between; 4 bits only where a byte holds two neighbours of a row."""
    pairs = width % 2 == 0 and (not layout or layout[-1] == rank - 1)
    dtype: IntegerType = r.choice(("i8", "i8", "u8", *("i4", "u4") * pairs))
    lead = [r.random() < 0.5 for _ in range(rank - 3)]
    along = {"tensor": (False, False), "token": (True, True), "channel": (True, False)}
    kind = r.choice(("tensor", "token", "token", "channel", "groups", "any"))
    head, length = along.get(kind, (r.random() < 0.5, r.random() < 0.5))
    groups = 1
    if kind in ("channel", "groups", "any"):
        parts = [g for g in range(2, width) if width % g == 0] or [1]
        groups = {"channel": width, "groups": r.choice(parts)}.get(kind, r.choice((1, width, *parts)))
    keep = (*(x and kind != "tensor" for x in lead), head, length)
    return _Integers(dtype, keep, groups, r.random() < 0.4, r.random() < 0.5)


def _kept(spec: AttentionSpec, k: _Integers | None, v: _Integers | None) -> AttentionSpec:
    """The spec with K and V as integers."""
    _, k_dims, v_dims, _ = spec.canonical_shapes
    return dataclasses.replace(
        spec,
        k_quant=k and k.of(k_dims, spec.k_layout),
        v_quant=v and v.of(v_dims, spec.v_layout),
    )


def _rounding(r: Random, most: int = 3) -> Rounding:
    """Of probabilities: steps from coarse to fine, some of which saturate; `most` of them one after the other."""
    dtype = r.choice(("u8", "u8", "i8", "i8", "u16", "i16"))
    low, high = GRIDS[dtype]
    scale = r.choice((1 / 255, 1 / 127, 1 / 256, 0.002, 0.0003))
    zero = r.choice((low, 0, r.randint(low, high // 2)))
    return Rounding(scale, zero, dtype, _rounding(r, most - 1) if most > 1 and r.random() < 0.2 else None)


def _length(r: Random) -> int:
    return r.choice((1, 3, 129, 300)) if r.random() < 0.2 else r.randint(1, 70)


def random_spec(r: Random) -> Drawn:
    """One in six has a few queries, one in a hundred no keys, one in ten no softmax; what has unknown dims is often tried
    without any."""
    drawn = _random_softmax(r)
    return Drawn(_weighed(r, drawn.spec), drawn.sizes) if r.random() < 0.1 else drawn


def _weighed(r: Random, spec: AttentionSpec) -> AttentionSpec:
    """The spec without a softmax. Masks are infinite, and what may be large is not squared, which f32 could not hold."""
    relu: ScoreExpr = Apply("Relu", SCORE)
    bounded, plain = Apply("Sigmoid", SCORE), not any(isinstance(m, Elementwise) for m in spec.masks)
    weight = r.choice((bounded, bounded, relu, Apply("Softplus", SCORE), Apply("Mul", relu, relu) if plain else relu))
    fill = NEG_INF
    if r.random() < 0.3 and all(isinstance(m, Causal | SlidingWindow | BoolMask) for m in spec.masks):
        # A score of -inf would weigh something; one of 0 does not.
        weight, fill = r.choice((Apply("Mul", SCORE, bounded), Apply("Abs", SCORE))), 0.0
    halves = spec.dtype in ("f16", "bf16")
    summed = r.random() < 0.5 or (halves and weight != bounded)
    plus, least = r.choice(((0.0, NEG_INF), (1e-6, NEG_INF), (0.0, 1e-3), (1.0, 2.0))) if summed else (0.0, NEG_INF)
    weighting = Weighting(weight, weight if summed else None, plus, least)
    masks = tuple(m if isinstance(m, AddMask | Elementwise) else dataclasses.replace(m, fill=fill) for m in spec.masks)
    changed = {"sink": None, "stats": (), "rounding": None, "masks": masks, "empty_row": "nan"}
    return dataclasses.replace(spec, weighting=weighting, **changed)


def _random_softmax(r: Random) -> Drawn:
    """A spec with a softmax."""
    sq, skv = _length(r), _length(r)
    nothing = r.random() < 0.01
    few = r.randint(1, 4) if r.random() < 0.17 else 0
    sq = few or sq
    if not few and r.randint(0, 5) == 0:
        skv = sq
    hkv, group = r.randint(1, 4), r.choice((1, 1, 2, 3, 8))
    batch = r.choice(((), (1,), (2,), (3,), (2, 2), (1, 3), (3, 1), (2, 1, 2)))
    while math.prod((*batch, hkv, group, sq, skv)) > MOST_SCORES:
        batch, hkv, group = batch[1:], 1, min(group, 2)
    dtype: Any = r.choice(("f32", "f32", "f32", "f16", "bf16"))
    rank = len(batch) + 3
    score = (*batch, hkv * group, sq, skv)

    def offset() -> Any:
        return r.choice(("end", r.randint(-5, 40)))

    empty_row: Any = r.choice(("nan", "zero", "guarded", "mean"))
    fills = (FLOAT_MIN,) if empty_row == "mean" else (NEG_INF, NEG_INF, -3e38)

    def tensor(shape: tuple[int, ...] = score) -> tuple[int, ...]:
        chosen = tuple(1 if r.random() < 0.5 and a < rank - 1 else n for a, n in enumerate(shape))
        return chosen[r.randint(0, rank - 1) :]

    def tensors() -> list[TensorArg]:
        types = ("bool", "i32", "i64", "i64", "f32", "f32", "f16", "bf16")
        shapes = (score, (*score[:-1], 1), (*score[:-2], 1, 1), (*score[:-2], 1, skv))
        count = r.randint(0, 2)
        return [TensorArg(tensor(r.choice(shapes)), r.choice(types)) for _ in range(count)]

    masks: list[Any] = []
    if r.randint(0, 3) == 0:
        given_tensors = tensors()
        masks.append(_used(_function(r, given_tensors), given_tensors))
    kinds = ("c", "w", "b", "a", "h", "r", "keep", "keep", "keep", "alibi", "pair")
    for kind in r.choices(kinds, k=r.choice((0, 1, 1, 2, 2, 3))):
        fill = r.choice(fills)
        given_tensors = tensors() if kind in "hr" else []
        match kind:
            case "c":
                masks.append(Causal(offset(), fill))
            case "w":
                left, right = r.choice((None, r.randint(0, 20))), r.choice((None, r.randint(0, 9)))
                masks.append(SlidingWindow(left, right, offset(), fill))
            case "b":
                masks.append(BoolMask(tensor(), fill))
            case "h":
                expr: ScoreExpr = Apply("Where", _bool(r, given_tensors, 3), SCORE, Float(fill))
                masks.append(_used(expr, given_tensors))
            case "r":
                masks.append(_used(Apply("Add", SCORE, _float(r, given_tensors, 3)), given_tensors))
            case "keep":
                name = r.choice(KEEPS)
                keep, read = _keep(r, name, score)
                masks.append(Elementwise(Apply("Where", keep, SCORE, Float(fill)), tuple(read), name))
            case "alibi":
                masks.append(alibi(hkv * group))
            case "pair":  # Evoformer: a bias of each pair, and a mask of the keys
                axes = (*(1 if i else n for i, n in enumerate(batch)), hkv * group, sq, skv)
                masks += [AddMask(axes), AddMask((*batch, 1, 1, skv))]
            case _:
                mask_type: Any = r.choice(("f32", "f32", "f16", "bf16"))
                shape, factor = tensor(), r.choice((1.0, 0.5))
                # Lowest numbers of two sizes would both be raised to the least that kernels know.
                masks.append(AddMask(shape, mask_type, factor=1.0 if empty_row == "mean" else factor))
    swap = (*range(rank - 3), rank - 2, rank - 3, rank - 1)
    turned = (*range(rank - 2), rank - 1, rank - 2)
    rowwise = few > 0 and r.random() < 0.7  # as the body for few queries wants them
    known = ((), swap) if rowwise else ((), swap, turned)

    def layout() -> tuple[int, ...]:
        return tuple(r.sample(range(rank), rank)) if not rowwise and r.random() < 0.25 else r.choice(known)

    def head_dim() -> int:
        return r.choice(LARGE_HEADS) if r.random() < 0.08 else r.randint(1, 70)

    layouts = {n: layout() for n in ("q_layout", "k_layout", "v_layout", "o_layout")}
    sink = None
    if r.randint(0, 3) == 0:
        sink = TensorArg((*tensor((*score[:-1], 1))[:-1], 1), r.choice(("f32", "f16")))
    stats: tuple[Stat, ...] = ()
    if r.randint(0, 3) == 0:
        stats = r.choice((("lse",), ("max",), ("lse", "max"), ("max", "lse")))
    capped = r.randint(0, 2) == 0
    if r.random() < 0.06:  # what extreme masks make of row statistics
        masks, capped, stats = [AddMask(tensor())], False, stats or ("lse", "max")
    spec = AttentionSpec(
        dtype,
        hkv * group,
        hkv,
        sq,
        skv,
        head_dim(),
        head_dim(),
        batch,
        scale=r.choice((1.0, 0.125, -0.3)),
        mods=(Softcap(3.0),) if capped else (),
        masks=tuple(masks),
        sink=sink,
        empty_row=empty_row,
        stats=stats,
        **layouts,
    )
    if r.random() < 0.12:
        spec = dataclasses.replace(spec, rounding=_rounding(r))
    if nothing:
        return Drawn(_without_keys(spec), ((),))
    drawn = _dynamic(r, spec, few > 0) if r.random() < 0.4 else Drawn(spec, ((),))
    kept = r.random()
    if 0.2 < kept <= 0.9:
        return drawn
    spec = drawn.spec
    if kept > 0.9:
        rows, integer, step = r.randint(1, 90), r.choice(("i32", "i64")), 0
        if isinstance(spec.Hkv, int) and r.random() < 0.4:
            step = r.randint(1, 9)
            rows += step * (spec.Hkv - 1)
        return Drawn(dataclasses.replace(spec, gathered=Gathered(rows, integer, step)), drawn.sizes)
    if r.random() < 0.5:  # whole vectors, as the body for few queries wants them
        spec = dataclasses.replace(spec, D=16 * r.randint(1, 5), Dv=16 * r.randint(1, 5))
    k = _integers(r, rank, spec.D, spec.k_layout) if r.random() < 0.85 else None
    v = _integers(r, rank, spec.Dv, spec.v_layout) if k is None or r.random() < 0.85 else None
    return Drawn(_kept(spec, k, v), drawn.sizes)


def _without_keys(spec: AttentionSpec) -> AttentionSpec:
    """The spec with no keys: its tensors that have a number for each have none."""

    def shape(old: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return (*old[:-1], 0) if old[-1:] == (spec.Skv,) and spec.Skv != 1 else old

    masks = tuple(with_shapes(m, shape) for m in spec.masks)
    return dataclasses.replace(spec, Skv=0, masks=masks)


def _dynamic(r: Random, spec: AttentionSpec, few: bool) -> Drawn:
    """The spec with some of its dims unknown (not Sq, if they are `few`), at the sizes drawn and at others."""
    names: list[Dim] = [f"b{i}" for i in range(len(spec.batch))]
    names += ["h" if spec.group == 1 else spec.Hq, "s", "s" if spec.Sq == spec.Skv and r.random() < 0.5 else "t"]
    score = [name if r.randint(0, 3) else size for name, size in zip(names, spec.score_shape, strict=True)]

    def shape(old: tuple[Dim, ...]) -> tuple[Dim, ...]:
        tail = zip(old, score[len(score) - len(old) :], strict=True)
        return tuple(1 if size == 1 else name for size, name in tail)

    if few:
        score[-2] = spec.Sq
    masks = tuple(with_shapes(m, shape) for m in spec.masks)
    sink = spec.sink and dataclasses.replace(spec.sink, shape=shape(spec.sink.shape))
    *batch, heads, sq, skv = score
    hkv = heads if spec.group == 1 else spec.Hkv
    form = dataclasses.replace(spec, batch=tuple(batch), Hq=heads, Hkv=hkv, Sq=sq, Skv=skv, masks=masks, sink=sink)
    drawn = {name: size for name, size in zip(score, spec.score_shape, strict=True) if isinstance(name, str)}
    sizes = [drawn]
    for _ in range(3):
        sizes.append({n: _length(r) if n in ("s", "t") else r.randint(1, 3) for n in drawn})
        if math.prod(map(int, form.bind(sizes[-1]).score_shape)) > MOST_SCORES:
            sizes.pop()
    if isinstance(skv, str) and r.random() < 0.5:
        sizes.insert(1, sizes[-1] | {skv: 0})
    if others := [n for n in drawn if n != "h"]:
        sizes += [sizes[-1] | {r.choice(others): 0}] if r.random() < 0.1 else []
    return Drawn(form, tuple(dict.fromkeys(tuple((n, int(x)) for n, x in d.items()) for d in sizes)))


def draw_specs(count: int, *, start: int = 0) -> list[Drawn]:
    """So many specs, the same for the same `start`; each has a seed of its own."""
    return list(dict.fromkeys(random_spec(Random(f"{start} {i}")) for i in range(count)))
