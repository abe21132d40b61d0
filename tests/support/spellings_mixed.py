"""Scores and softmax in f32, V in f16 or bf16: where the casts may stand, and what is another attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T

from tests.support.spellings import Graph

B, H, SQ, SKV, D, DV = 2, 4, 5, 7, 8, 6
SCALE = D**-0.5
_NUMPY = {T.FLOAT: np.float32, T.FLOAT16: np.float16}


class Mixed(Graph):
    """Q, K and V of a narrow type, `kind`."""

    def __init__(self, kind: int = T.FLOAT16, *, heads: int = H, opset: int = 18) -> None:
        super().__init__(opset)
        self.kind = kind
        self.q = self.input("q", [B, H, SQ, D], kind)
        self.k = self.input("k", [B, heads, SKV, D], kind)
        self.v = self.input("v", [B, heads, SKV, DV], kind)

    def up(self, x: str) -> str:
        return self.op("Cast", x, to=T.FLOAT)

    def down(self, x: str) -> str:
        return self.op("Cast", x, to=self.kind)

    def turned(self, x: str) -> str:
        return self.op("Transpose", x, perm=[0, 1, 3, 2])

    def score(self, q: str = "", k: str = "", scale: float = SCALE) -> str:
        """Q K^T in f32, scaled there."""
        product = self.op("MatMul", q or self.up(self.q), k or self.turned(self.up(self.k)))
        return self.op("Mul", product, self.const(scale))

    def masked(self, s: str, kind: int = T.FLOAT) -> str:
        return self.op("Add", s, self.input("mask", [B, 1, SQ, SKV], kind))

    def softmax(self, s: str) -> str:
        return self.op("Softmax", s, axis=-1)

    def times_v(self, p: str, v: str = "") -> str:
        return self.op("MatMul", p, v or self.v)

    def done(self, out: str, kind: int | None = None) -> onnx.ModelProto:
        return self.model({out: ([B, H, SQ, DV], self.kind if kind is None else kind)})


MATCH_MIXED: dict[str, Callable[[], onnx.ModelProto]] = {}
WIDE_MIXED: dict[str, Callable[[], onnx.ModelProto]] = {}
"""Those whose site is of f32, since not both Q and K are cast up from V's type."""
NARROW_MIXED: dict[str, Callable[[], onnx.ModelProto]] = {}
"""Those of which the product of Q and K is narrow and cast up, and V f32: sites of f32."""
NOT_MIXED: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {}
Maker = Callable[[], onnx.ModelProto]


def _match(name: str, table: dict[str, Maker] = MATCH_MIXED) -> Callable[[Maker], Maker]:
    def add(make: Maker) -> Maker:
        table[name] = make
        return make

    return add


def _wide(name: str) -> Callable[[Maker], Maker]:
    return _match(name, WIDE_MIXED)


def _refuse(name: str, reason: str) -> Callable[[Maker], Maker]:
    def add(make: Maker) -> Maker:
        NOT_MIXED[name] = (make, reason)
        return make

    return add


@_match("cast before the products")
def _() -> onnx.ModelProto:
    g = Mixed()
    return g.done(g.times_v(g.down(g.softmax(g.score()))))


def bf16() -> onnx.ModelProto:
    """Which onnxruntime has no products for."""
    g = Mixed(T.BFLOAT16)
    return g.done(g.times_v(g.down(g.softmax(g.masked(g.score())))))


@_match("K cast behind its transpose")
def _() -> onnx.ModelProto:
    g = Mixed()
    return g.done(g.times_v(g.down(g.softmax(g.score(k=g.up(g.turned(g.k)))))))


@_match("scale on Q before the cast")
def _() -> onnx.ModelProto:
    g = Mixed()
    q = g.up(g.op("Mul", g.q, g.const(SCALE, np.float16)))
    return g.done(g.times_v(g.down(g.softmax(g.score(q, scale=1.0)))))


@_match("scale on Q after the cast")
def _() -> onnx.ModelProto:
    g = Mixed()
    q = g.op("Div", g.up(g.q), g.const(1 / SCALE))
    return g.done(g.times_v(g.down(g.softmax(g.op("MatMul", q, g.turned(g.up(g.k)))))))


@_match("a mask of f32, finite fills")
def _() -> onnx.ModelProto:
    g = Mixed()
    kept = g.op("Where", g.input("keep", [B, 1, SQ, SKV], T.BOOL), g.score(), g.const(np.finfo(np.float32).min))
    return g.done(g.times_v(g.down(g.softmax(kept))))


@_match("a mask of f16 that is cast up")
def _() -> onnx.ModelProto:
    g = Mixed()
    mask = g.up(g.input("mask", [B, 1, SQ, SKV], T.FLOAT16))
    return g.done(g.times_v(g.down(g.softmax(g.op("Add", g.score(), mask)))))


@_match("a mask of -65504, scores beyond it")
def _() -> onnx.ModelProto:
    g = Mixed()
    kept = g.op("Where", g.input("keep", [B, 1, SQ, SKV], T.BOOL), g.score(scale=1.0), g.const(-65504.0))
    return g.done(g.times_v(g.down(g.softmax(kept))))


@_match("dropout behind the cast")
def _() -> onnx.ModelProto:
    g = Mixed()
    return g.done(g.times_v(g.op("Dropout", g.down(g.softmax(g.score())))))


@_match("dropout before the cast")
def _() -> onnx.ModelProto:
    g = Mixed()
    return g.done(g.times_v(g.down(g.op("Dropout", g.softmax(g.score())))))


@_match("NaN to zero before the cast")
def _() -> onnx.ModelProto:
    g = Mixed()
    p = g.softmax(g.masked(g.score()))
    return g.done(g.times_v(g.down(g.op("Where", g.op("IsNaN", p), g.const(0.0), p))))


@_match("V scaled")
def _() -> onnx.ModelProto:
    g = Mixed()
    v = g.op("Mul", g.v, g.const(0.5, np.float16))
    return g.done(g.times_v(g.down(g.softmax(g.score())), v))


def _repeated(g: Mixed, x: str, width: int) -> str:
    wide = g.op("Expand", g.op("Unsqueeze", x, g.const([2], np.int64)), g.const([B, 2, 2, SKV, width], np.int64))
    return g.op("Reshape", wide, g.const([B, H, SKV, width], np.int64))


@_match("heads repeated before the cast")
def _() -> onnx.ModelProto:
    g = Mixed(heads=2)
    k = g.turned(g.up(_repeated(g, g.k, D)))
    return g.done(g.times_v(g.down(g.softmax(g.score(k=k))), _repeated(g, g.v, DV)))


@_match("heads repeated after the cast")
def _() -> onnx.ModelProto:
    g = Mixed(heads=2)
    k = g.turned(_repeated(g, g.up(g.k), D))
    return g.done(g.times_v(g.down(g.softmax(g.score(k=k))), _repeated(g, g.v, DV)))


@_match("a cache in front of the casts")
def _() -> onnx.ModelProto:
    g = Mixed()
    past = [g.input(f"past_{n}", [B, H, "past", w], T.FLOAT16) for n, w in (("k", D), ("v", DV))]
    k, v = (g.op("Concat", p, x, axis=2) for p, x in zip(past, (g.k, g.v), strict=True))
    return g.done(g.times_v(g.down(g.softmax(g.score(k=g.turned(g.up(k))))), v))


@_match("zeros added to the scores, as baddbmm is exported")
def zeros_added() -> onnx.ModelProto:
    g = Mixed()
    zeros = g.op("Expand", g.const(0.0), g.op("Shape", g.input("like", [B, H, SQ, SKV])))
    s = g.op("Add", g.score(), g.op("Mul", zeros, g.const(0.0)))
    return g.done(g.times_v(g.down(g.softmax(s))))


@_wide("only K is cast up")
def _() -> onnx.ModelProto:
    g = Mixed()
    q = g.input("wide_q", [B, H, SQ, D])
    return g.done(g.times_v(g.down(g.softmax(g.score(q)))))


@_wide("only Q is cast up")
def _() -> onnx.ModelProto:
    g = Mixed()
    k = g.input("wide_k", [B, H, SKV, D])
    return g.done(g.times_v(g.down(g.softmax(g.score(k=g.turned(k))))))


@_wide("neither is cast up, heads of the result joined, V scaled")
def _() -> onnx.ModelProto:
    g = Mixed()
    q, k = g.input("wide_q", [B, H, SQ, D]), g.input("wide_k", [B, H, SKV, D])
    v = g.op("Mul", g.v, g.const(0.5, np.float16))
    out = g.times_v(g.down(g.softmax(g.masked(g.score(q, g.turned(k))))), v)
    joined = g.op("Reshape", g.op("Transpose", out, perm=[0, 2, 1, 3]), g.const([B, SQ, H * DV], np.int64))
    return g.model({joined: ([B, SQ, H * DV], T.FLOAT16)})


@_wide("V is cast up, and the result down")
def _() -> onnx.ModelProto:
    g = Mixed()
    return g.done(g.down(g.times_v(g.softmax(g.score()), g.up(g.v))))


@_wide("V is cast down")
def _() -> onnx.ModelProto:
    g = Mixed()
    q, k, v = (g.input(f"wide_{n}", [B, H, s, w]) for n, s, w in (("q", SQ, D), ("k", SKV, D), ("v", SKV, DV)))
    return g.done(g.times_v(g.down(g.softmax(g.score(q, g.turned(k)))), g.down(v)))


def _narrow_score(g: Mixed) -> str:
    """Q K^T in the narrow type, which PyTorch's exporter scales in front of the product."""
    q, k = (g.op("Mul", x, g.const(SCALE**0.5, np.float16)) for x in (g.q, g.turned(g.k)))
    return g.op("MatMul", q, k)


@_match("the product is cast up, V too", NARROW_MIXED)
def _() -> onnx.ModelProto:
    g = Mixed()
    return g.done(g.times_v(g.softmax(g.masked(g.up(_narrow_score(g)))), g.up(g.v)), T.FLOAT)


@_match("the product is cast up, as a mask is f32", NARROW_MIXED)
def _() -> onnx.ModelProto:
    g = Mixed()
    keep = g.input("keep", [B, 1, SQ, SKV], T.BOOL)
    mask = g.op("Where", keep, g.const(0.0), g.const(-np.inf))
    p = g.softmax(g.op("Add", g.up(_narrow_score(g)), mask))
    p = g.op("Where", g.op("IsNaN", p), g.const(0.0), p)
    return g.done(g.times_v(p, g.up(g.v)), T.FLOAT)


@_match("the product is cast up, V is f32, heads are repeated", NARROW_MIXED)
def _() -> onnx.ModelProto:
    g = Mixed(heads=2)
    product = g.op("MatMul", g.q, g.turned(_repeated(g, g.k, D)))
    s = g.op("Mul", g.up(product), g.const(SCALE))
    return g.done(g.times_v(g.softmax(s), g.input("wide_v", [B, H, SKV, DV])), T.FLOAT)


@_refuse("a mask of f16 is added to scores of f16, which are cast up", "different element types")
def _() -> onnx.ModelProto:
    g = Mixed()
    s = g.up(g.masked(_narrow_score(g), T.FLOAT16))
    return g.done(g.times_v(g.softmax(s), g.up(g.v)), T.FLOAT)


@_refuse("scores of f16 are cast up, and are an output", "different element types")
def _() -> onnx.ModelProto:
    g = Mixed()
    s = _narrow_score(g)
    out = g.times_v(g.softmax(g.up(s)), g.up(g.v))
    more = g.op("Relu", s)
    return g.model({out: ([B, H, SQ, DV], T.FLOAT), more: ([B, H, SQ, SKV], T.FLOAT16)})


@_refuse("probabilities cast to f16 and up again", "widened again")
def _() -> onnx.ModelProto:
    g = Mixed()
    p = g.up(g.down(g.softmax(g.score())))
    return g.done(g.times_v(p, g.up(g.v)), T.FLOAT)


@_refuse("probabilities cast to bf16 before f16", "rounded to BFLOAT16")
def _() -> onnx.ModelProto:
    g = Mixed()
    p = g.op("Cast", g.softmax(g.score()), to=T.BFLOAT16)
    return g.done(g.times_v(g.down(p)))


@_refuse("scores in f16 of operands that are viewed, V in f32", "different element types")
def _() -> onnx.ModelProto:
    g = Mixed()
    q = g.op("Reshape", g.q, g.const([B * H, SQ, D], np.int64))
    k = g.op("Reshape", g.turned(g.k), g.const([B * H, D, SKV], np.int64))
    s = g.op("Reshape", g.op("MatMul", q, k), g.const([B, H, SQ, SKV], np.int64))
    return g.done(g.times_v(g.softmax(g.up(s)), g.input("wide_v", [B, H, SKV, DV])), T.FLOAT)


@_refuse("scores cast down before the softmax", "Cast")
def _() -> onnx.ModelProto:
    g = Mixed()
    return g.done(g.times_v(g.softmax(g.down(g.score()))))


@_refuse("division behind the product with V", "is divided by")
def _() -> onnx.ModelProto:
    g = Mixed()
    s = g.score()
    axes = g.const([-1], np.int64)
    e = g.op("Exp", g.op("Sub", s, g.op("ReduceMax", s, axes)))
    total = g.down(g.op("ReduceSum", e, axes))
    return g.done(g.op("Div", g.times_v(g.down(e)), total))


@_refuse("a factor before the cast", "multiplied by a factor")
def _() -> onnx.ModelProto:
    g = Mixed()
    gate = g.input("gate", [H, 1, 1])
    return g.done(g.times_v(g.down(g.op("Mul", g.softmax(g.score()), gate))))


@_refuse("the weight is a square of ReLU", "overflow")
def _() -> onnx.ModelProto:
    g = Mixed()
    r = g.op("Relu", g.score())
    return g.done(g.times_v(g.down(g.op("Mul", r, r))))


@_refuse("probabilities are an output", "are an output")
def _() -> onnx.ModelProto:
    g = Mixed()
    p = g.softmax(g.score())
    out = g.times_v(g.down(p))
    return g.model({out: ([B, H, SQ, DV], T.FLOAT16), p: ([B, H, SQ, SKV], T.FLOAT)})


def feeds(
    model: onnx.ModelProto, seed: int = 0, *, large: bool = False, empty_rows: bool = False, size: float = 1.0
) -> dict[str, Any]:
    """Ordinary numbers times `size` for Q and K, `large`: times 30; `empty_rows`: a mask leaves the first query no key."""
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for value in model.graph.input:
        shape = [d.dim_value or 3 for d in value.type.tensor_type.shape.dim]
        kind = value.type.tensor_type.elem_type
        if kind == T.BOOL:
            found[value.name] = rng.random(shape) < 0.7
            found[value.name][..., 0, :] &= not empty_rows
            continue
        numbers = rng.standard_normal(shape)
        if value.name == "mask":
            numbers = np.where(rng.random(shape) < 0.3, -np.inf, numbers)
            numbers[..., 0] = 0.0
            if empty_rows:
                numbers[..., 0, :] = -np.inf
        elif value.name[-1] in "qk":
            numbers = numbers * (30.0 if large else size)
        found[value.name] = numbers.astype(_NUMPY.get(kind, np.float32))
    return found
