"""Masks in the spellings of models and exporters: graphs of one attention each, whose mask ends up as the terms named beside it.

MATCHED maps a name to (builder, predicate words): the words must all occur in what `describe` says of the spec's masks.
REFUSED maps a name to (builder, part of the reason). WIDE are those whose mask stays a tensor with a query and a key axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h

from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.expr import words
from onnx_fa.spec.terms import Elementwise, term_tensors
from tests.support.spellings import Graph

B, H, S, L, D = 2, 3, 7, 9, 4
"""Batch, heads, queries, keys, head dim: all different, so that mixed up axes show."""
MIN = float(np.finfo(np.float32).min)
INF = float("inf")

Dims = list[int | str]
MaskBuilder = Callable[["Mask", str], str]


class Mask(Graph):
    """A graph of q (B, H, S, D), k and v (B, H, L, D); `mask` builders add to the score."""

    def __init__(self, dims: tuple[int | str, int | str, int | str] = (B, S, L), opset: int = 18) -> None:
        super().__init__(opset)
        self.b, self.s, self.t = dims
        self.q = self.input("q", [self.b, H, self.s, D])
        self.k = self.input("k", [self.b, H, self.t, D])
        self.v = self.input("v", [self.b, H, self.t, D])

    def finish(self, score: str) -> onnx.ModelProto:
        p = self.op("Softmax", score, axis=-1)
        self.nodes.append(h.make_node("MatMul", [p, self.v], ["o"], name="pv"))
        return self.model({"o": ([self.b, H, self.s, D], T.FLOAT)})

    def score(self) -> str:
        return self.op("Mul", self.op("MatMul", self.q, self.op("Transpose", self.k, perm=[0, 1, 3, 2])), self.f(0.5))

    def f(self, x: Any) -> str:
        return self.const(x, np.float32)

    def i(self, x: Any) -> str:
        return self.const(x, np.int64)

    def size(self, value: str, axis: int) -> str:
        return self.op("Gather", self.op("Shape", value), self.i(axis), axis=0)

    def arange(self, value: str, axis: int) -> str:
        return self.op("Range", self.i(0), self.size(value, axis), self.i(1))

    def rows(self) -> str:
        """Query positions (S, 1)."""
        return self.op("Unsqueeze", self.arange(self.q, 2), self.i([1]))

    def columns(self) -> str:
        """Key positions (1, L)."""
        return self.op("Unsqueeze", self.arange(self.k, 2), self.i([0]))

    def where(self, keep: str, score: str, fill: float = -INF) -> str:
        return self.op("Where", keep, score, self.f(fill))

    def bias(self, keep: str, fill: float = -INF) -> str:
        return self.op("Where", keep, self.f(0.0), self.f(fill))

    def cast(self, x: str, to: int = T.FLOAT) -> str:
        return self.op("Cast", x, to=to)

    def padding(self, name: str = "mask") -> str:
        """A boolean input (B, L)."""
        return self.input(name, [self.b, self.t], T.BOOL)

    def up(self, x: str, *axes: int) -> str:
        return self.op("Unsqueeze", x, self.i(list(axes)))

    def cmp(self, op: str, a: str, b: str) -> str:
        return self.op(op, a, b)


_SIZES = {"b": B, "s": S, "t": L, "c": B, "d": B, "u": S}
_TYPES = {T.FLOAT: np.float32, T.INT64: np.int64, T.INT32: np.int32, T.UINT8: np.uint8}


def feeds(
    model: onnx.ModelProto, seed: int = 0, *, large: bool = False, empty_rows: bool = False, dense: bool = False
) -> dict[str, np.ndarray]:
    """Inputs: scores in the hundreds if `large`, rows without keys if `empty_rows`, no boolean mask masks if `dense`."""
    rng = np.random.default_rng(seed)
    result: dict[str, np.ndarray] = {}
    for i in model.graph.input:
        shape = [d.dim_value or _SIZES[d.dim_param] for d in i.type.tensor_type.shape.dim]
        element = i.type.tensor_type.elem_type
        if element == T.BOOL:
            x = rng.random(shape) < (1.0 if dense else 0.6)
            if empty_rows:
                x[0] = rng.random(shape[1:]) < 0.2
                x[(0, ..., slice(2)) if x.ndim > 1 else slice(2)] = False
            else:
                x[..., 0] = True
        elif element == T.FLOAT:
            x = rng.standard_normal(shape).astype(np.float32)
            if i.name.startswith("mask"):
                x = np.where(rng.random(shape) < 0.3, -np.inf if empty_rows else -3e38, x).astype(np.float32)
                x[..., 0] = 0
            elif large and i.name in "qk":
                x *= 20
        else:
            x = rng.integers(0, 4, shape).astype(_TYPES[element])
        result[i.name] = x
    return result


def describe(spec: AttentionSpec) -> str:
    """The masks of a spec in words."""
    said = []
    for m in spec.masks:
        if isinstance(m, Elementwise):
            said.append(f"{m.label}[{words(m.expr)}]{[t.shape for t in m.tensors]}")
        else:
            said.append(str(m))
    return "; ".join(said)


def is_wide(spec: AttentionSpec) -> bool:
    """Whether some mask tensor has both a query and a key axis."""
    return any(len(t.shape) > 1 and t.shape[-1] != 1 and t.shape[-2] != 1 for m in spec.masks for t in term_tensors(m))


MATCHED: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {}
WIDE: set[str] = set()
REFUSED: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {}


def matched(
    said: str, *, wide: bool = False, dims: tuple[int | str, int | str, int | str] = (B, S, L), opset: int = 18
) -> Callable[[MaskBuilder], MaskBuilder]:
    def register(build: MaskBuilder) -> MaskBuilder:
        name = build.__name__

        def whole() -> onnx.ModelProto:
            g = Mask(dims, opset)
            return g.finish(build(g, g.score()))

        MATCHED[name] = (whole, said)
        if wide:
            WIDE.add(name)
        return build

    return register


def refused(
    reason: str, *, dims: tuple[int | str, int | str, int | str] = (B, S, L)
) -> Callable[[MaskBuilder], MaskBuilder]:
    def register(build: MaskBuilder) -> MaskBuilder:
        def whole() -> onnx.ModelProto:
            g = Mask(dims)
            return g.finish(build(g, g.score()))

        REFUSED[build.__name__] = (whole, reason)
        return build

    return register


# How a mask reaches the score


@matched("AddMask(shape=(3, 7, 9)", wide=True)
def chained_adds(g: Mask, s: str) -> str:
    """Relative position, ALiBi and padding, added one after the other, in either order."""
    s = g.op("Add", g.input("mask", [H, S, L]), s)
    s = g.op("Add", s, g.f(-np.array([[[0.5]], [[0.25]], [[0.125]]]) * np.abs(np.arange(L) - np.arange(S)[:, None])))
    return g.op("Sub", s, g.input("mask2", [B, 1, 1, L]))


@matched("alibi")
def alibi_constant(g: Mask, s: str) -> str:
    slopes = np.array([0.5, 0.25, 0.125], np.float32)[:, None, None]
    return g.op("Add", s, g.f(slopes * (np.arange(L) - np.arange(S)[:, None]).astype(np.float32)))


@matched("alibi")
def alibi_constant_causal(g: Mask, s: str) -> str:
    rel = np.arange(L) - np.arange(S)[:, None]
    slopes = np.array([0.5, 0.3, 0.11], np.float32)[:, None, None]
    return g.op("Add", s, g.f(np.where(rel > 0, -INF, slopes * np.minimum(rel, 0).astype(np.float32))))


@matched("abs")
def alibi_symmetric(g: Mask, s: str) -> str:
    slopes = -np.array([0.5, 0.3, 0.11], np.float32)[:, None, None]
    return g.op("Add", s, g.f(slopes * np.abs(np.arange(L) - np.arange(S)[:, None]).astype(np.float32)))


@matched("alibi[(score + (tofloat((k - q)) * t0))][(3, 1, 1)]")
def alibi_computed(g: Mask, s: str) -> str:
    rel = g.cast(g.op("Sub", g.columns(), g.rows()))
    return g.op("Add", s, g.op("Mul", rel, g.f([[[0.5]], [[0.25]], [[0.125]]])))


@matched("alibi")
def alibi_float_ranges(g: Mask, s: str) -> str:
    q = g.up(g.op("Range", g.f(0), g.f(S), g.f(1)), 1)
    k = g.op("Range", g.f(0), g.f(L), g.f(1))
    return g.op("Add", g.op("Mul", g.op("Neg", g.op("Abs", g.op("Sub", q, k))), g.f(0.25)), s)


@matched("AddMask", wide=True)
def relative_table(g: Mask, s: str) -> str:
    """T5: a table looked up with the bucket of k - q."""
    rel = g.op("Clip", g.op("Sub", g.columns(), g.rows()), g.i(-3), g.i(3))
    bias = g.op("Gather", g.f(np.random.default_rng(0).standard_normal((7, H))), g.op("Add", rel, g.i(3)), axis=0)
    return g.op("Add", s, g.op("Transpose", bias, perm=[2, 0, 1]))


@matched("Causal(offset=1, fill=-inf); SlidingWindow(left=2")
def where_either_arm(g: Mask, s: str) -> str:
    rel = g.op("Sub", g.columns(), g.rows())
    s = g.op("Where", g.op("Greater", rel, g.i(1)), g.f(-INF), s)
    return g.where(g.op("GreaterOrEqual", rel, g.i(-2)), s)


@matched("fill=-3.40")
def fill_computed(g: Mask, s: str) -> str:
    fill = g.op("Expand", g.op("Mul", g.f(MIN), g.f(1.0)), g.op("Shape", s))
    return g.op("Where", g.up(g.padding(), 1, 2), s, fill)


@matched("BoolMask(shape=(2, 1, 1, 9)")
def one_minus_mask_bool(g: Mask, s: str) -> str:
    m = g.cast(g.up(g.padding(), 1, 2))
    return g.op("Add", s, g.op("Mul", g.op("Sub", g.f(1), m), g.f(MIN)))


@matched("AddMask(shape=(2, 1, 1, 9)")
def one_minus_mask_int(g: Mask, s: str) -> str:
    """Whole numbers that nobody promised to be 0 and 1."""
    m = g.cast(g.up(g.input("ids", [B, L], T.INT64), 1, 2))
    return g.op("Add", s, g.op("Mul", g.op("Sub", g.f(1), m), g.f(-1e4)))


@matched("BoolMask(shape=(2, 1, 1, 9)")
def bool_where_add(g: Mask, s: str) -> str:
    return g.op("Add", g.bias(g.up(g.padding(), 1, 2)), s)


@matched("BoolMask(shape=(2, 1, 1, 9)")
def bool_cast_mul_add(g: Mask, s: str) -> str:
    drop = g.op("Not", g.up(g.padding(), 1, 2))
    return g.op("Add", s, g.op("Mul", g.cast(drop), g.f(MIN)))


@matched("(score + where((k <= q), 0, -10000))")
def causal_added_small_fill(g: Mask, s: str) -> str:
    return g.op("Add", s, g.bias(g.op("LessOrEqual", g.columns(), g.rows()), -1e4))


@matched("where((k <= q), score, -10000)")
def causal_where_small_fill(g: Mask, s: str) -> str:
    """GPT-2 before it used the lowest float."""
    return g.where(g.op("LessOrEqual", g.columns(), g.rows()), s, -1e4)


@matched("where(t0, score, -5)")
def fill_of_a_scores_size(g: Mask, s: str) -> str:
    return g.where(g.up(g.padding(), 1, 2), s, -5.0)


@matched("where(t0, 0, score)")
def fill_zero(g: Mask, s: str) -> str:
    return g.op("Where", g.op("Not", g.up(g.padding(), 1, 2)), g.f(0), s)


@matched("(score + where(", wide=False)
def two_finite_fills_added(g: Mask, s: str) -> str:
    """Both masked is -inf, one masked the lowest float: a difference in rows without keys."""
    s = g.op("Add", s, g.bias(g.op("LessOrEqual", g.columns(), g.rows()), MIN))
    return g.op("Add", s, g.bias(g.op("And", g.up(g.padding(), 1, 2), g.op("Less", g.rows(), g.columns())), MIN))


@matched("AddMask(shape=(2, 1, 1, 9)")
def finite_fill_behind_a_users_mask(g: Mask, s: str) -> str:
    s = g.op("Add", s, g.input("mask", [B, 1, 1, L]))
    return g.op("Add", s, g.bias(g.up(g.padding("mask2"), 1, 2), MIN))


@matched("AddMask(shape=(2, 1, 1, 9)")
def where_then_added_lowest(g: Mask, s: str) -> str:
    """GPT-2 and GPT-Neo: the causal mask is chosen, the padding added."""
    s = g.where(g.op("LessOrEqual", g.columns(), g.rows()), s, MIN)
    return g.op("Add", s, g.bias(g.up(g.padding(), 1, 2), MIN))


@matched("Causal(offset=0, fill=-inf); BoolMask(shape=(2, 1, 1, 9)")
def sum_of_two_masks(g: Mask, s: str) -> str:
    both = g.op("Add", g.bias(g.op("LessOrEqual", g.columns(), g.rows())), g.bias(g.up(g.padding(), 1, 2)))
    return g.op("Add", s, both)


# Shapes and types of masks


@matched("AddMask(shape=(9,)")
def rank_1(g: Mask, s: str) -> str:
    return g.op("Add", s, g.input("mask", [L]))


@matched("AddMask(shape=(7, 1)")
def rank_2_rows(g: Mask, s: str) -> str:
    return g.op("Add", s, g.input("bias", [S, 1]))


@matched("AddMask(shape=(3, 1, 9)")
def rank_3(g: Mask, s: str) -> str:
    return g.op("Sub", s, g.input("mask", [H, 1, L]))


@matched("AddMask(shape=(2, 1, 1, 9)")
def longer_mask_sliced(g: Mask, s: str) -> str:
    return g.op("Add", s, g.op("Slice", g.input("mask", [B, 1, 1, L + 5]), g.i([0]), g.i([L]), g.i([3]), g.i([1])))


@matched("Causal(offset=2, fill=-inf)")
def longer_constant_sliced(g: Mask, s: str) -> str:
    """GPT-2: a lower triangle for the longest length, cut to the rows and columns in use."""
    tri = g.const(np.tri(16, dtype=bool)[None, None], bool)
    keep = g.op("Slice", tri, g.i([L - S, 0]), g.i([L, L]), g.i([2, 3]), g.i([1, 1]))
    return g.where(keep, s)


@matched("BoolMask(shape=(2, 1, 1, 9)")
def expanded_to_the_score(g: Mask, s: str) -> str:
    full = g.op("Expand", g.up(g.padding(), 1, 2), g.i([B, 1, S, L]))
    return g.where(g.op("Expand", full, g.i([B, H, S, L])), s)


@matched("BoolMask(shape=(2, 1, 1, 9)")
def tiled_to_the_score(g: Mask, s: str) -> str:
    return g.where(g.op("Tile", g.up(g.padding(), 1, 2), g.i([1, H, S, 1])), s)


@matched("BoolMask(shape=(2, 1, 1, 9)")
def transposed_and_reshaped(g: Mask, s: str) -> str:
    m = g.op("Transpose", g.input("mask", [L, B], T.BOOL), perm=[1, 0])
    m = g.op("Reshape", m, g.i([B, 1, 1, L]))
    return g.where(g.op("And", m, g.op("Expand", g.const(True, bool), g.i([1, 1, S, 1]))), s)


@matched("BoolMask(shape=(2, 1, 1, 9)")
def gathered_rows(g: Mask, s: str) -> str:
    """Padding looked up with (batch, key) pairs, as vmap's exports do."""
    b = g.op("Expand", g.op("Reshape", g.arange(g.q, 0), g.i([B, 1, 1, 1, 1])), g.i([B, 1, 1, L, 1]))
    k = g.op("Expand", g.op("Reshape", g.arange(g.k, 2), g.i([1, 1, 1, L, 1])), g.i([B, 1, 1, L, 1]))
    m = g.op("GatherND", g.padding(), g.op("Concat", b, k, axis=-1))
    return g.where(g.op("And", m, g.op("LessOrEqual", g.columns(), g.rows())), s)


@matched("BoolMask(shape=(2, 1, 1, 9)")
def flattened_and_gathered(g: Mask, s: str) -> str:
    """As above in the older exporter's words: one index into the flattened padding."""
    flat = g.op("Reshape", g.padding(), g.i([-1]))
    at = g.op("Add", g.op("Mul", g.op("Reshape", g.arange(g.q, 0), g.i([B, 1, 1, 1])), g.i(L)), g.arange(g.k, 2))
    m = g.op("Gather", flat, at, axis=0)
    return g.where(g.op("And", m, g.op("LessOrEqual", g.columns(), g.rows())), s)


@matched("BoolMask(shape=(2, 1, 1, 9)")
def integers_compared(g: Mask, s: str) -> str:
    ids = g.up(g.input("ids", [B, L], T.INT32), 1, 2)
    return g.where(g.op("And", g.op("Greater", ids, g.const(0, np.int32)), g.op("Greater", g.rows(), g.i(-1))), s)


@matched("BoolMask(shape=(2, 1, 1, 9)")
def float_mask_compared(g: Mask, s: str) -> str:
    return g.where(g.op("GreaterOrEqual", g.input("weights", [B, 1, 1, L]), g.f(0.0)), s)


@matched("BoolMask(shape=(2, 1, 1, 9)")
def uint8_to_bool(g: Mask, s: str) -> str:
    ids = g.up(g.input("ids", [B, L], T.UINT8), 1, 2)
    return g.where(g.cast(ids, T.BOOL), s)


@matched("BoolMask(shape=(2, 1, 7, 9)", wide=True)
def a_users_whole_mask(g: Mask, s: str) -> str:
    return g.where(g.input("mask", [B, 1, S, L], T.BOOL), s)


@matched("Causal(offset=0, fill=-inf); BoolMask(shape=(2, 1, 7, 9)", wide=True)
def a_users_whole_mask_and_causal(g: Mask, s: str) -> str:
    causal = g.op("Expand", g.up(g.op("LessOrEqual", g.columns(), g.rows()), 0, 1), g.i([B, 1, S, L]))
    return g.where(g.op("And", causal, g.input("mask", [B, 1, S, L], T.BOOL)), s)


@matched("BoolMask(shape=(2, 1, 7, 9)", wide=True)
def a_users_whole_mask_or_causal(g: Mask, s: str) -> str:
    causal = g.op("LessOrEqual", g.columns(), g.rows())
    return g.where(g.op("Or", causal, g.input("mask", [B, 1, S, L], T.BOOL)), s)


# Logic


@matched("BoolMask(shape=(2, 1, 1, 9), fill=-inf); Causal(offset=0")
def not_or(g: Mask, s: str) -> str:
    drop = g.op("Or", g.op("Not", g.up(g.padding(), 1, 2)), g.op("Greater", g.columns(), g.rows()))
    return g.where(g.op("Not", drop), s)


@matched("Causal(offset=0")
def product_of_masks(g: Mask, s: str) -> str:
    a = g.cast(g.op("LessOrEqual", g.columns(), g.rows()))
    both = g.op("Mul", a, g.cast(g.up(g.padding(), 1, 2)))
    return g.where(g.cast(both, T.BOOL), s)


@matched("Causal(offset=0")
def minimum_of_masks(g: Mask, s: str) -> str:
    a = g.bias(g.op("LessOrEqual", g.columns(), g.rows()))
    return g.op("Add", s, g.op("Min", a, g.bias(g.up(g.padding(), 1, 2))))


@matched("xor")
def exclusive_or(g: Mask, s: str) -> str:
    m = g.up(g.padding(), 1, 2)
    return g.where(g.op("Xor", m, g.op("Greater", g.columns(), g.rows())), s)


@matched("BoolMask(shape=(2, 1, 1, 9), fill=-inf); Causal(offset=0")
def inverted_floats(g: Mask, s: str) -> str:
    """BART: 1 - mask, and where that is true the lowest float, then compared again."""
    inverted = g.op("Sub", g.f(1), g.cast(g.up(g.padding(), 1, 2)))
    filled = g.op("Where", g.cast(inverted, T.BOOL), g.f(MIN), inverted)
    s = g.where(g.op("GreaterOrEqual", filled, g.f(-1.0)), s)
    return g.where(g.op("Not", g.op("Less", g.rows(), g.columns())), s)


# Masks made of positions


@matched("Causal(offset=0, fill=-inf)")
def trilu_of_ones(g: Mask, s: str) -> str:
    ones = g.op(
        "ConstantOfShape", g.op("Concat", g.up(g.size(g.q, 2), 0), g.up(g.size(g.k, 2), 0), axis=0), value=_one()
    )
    return g.where(g.cast(g.op("Trilu", ones, upper=0), T.BOOL), s)


@matched("Causal(offset=0, fill=-inf)")
def trilu_of_lowest(g: Mask, s: str) -> str:
    """The upper triangle of a matrix of -inf, added."""
    full = g.op("Expand", g.f(-INF), g.i([S, L]))
    return g.op("Add", s, g.op("Trilu", full, g.i(1), upper=1))


@matched("Causal(offset=2, fill=-inf)")
def causal_with_past(g: Mask, s: str) -> str:
    rows = g.op("Add", g.rows(), g.op("Sub", g.size(g.k, 2), g.size(g.q, 2)))
    return g.where(g.op("GreaterOrEqual", rows, g.columns()), s)


@matched("Causal(offset='end', fill=-inf)", dims=("b", "s", "t"))
def causal_with_past_symbolic(g: Mask, s: str) -> str:
    rows = g.op("Add", g.rows(), g.op("Sub", g.size(g.k, 2), g.size(g.q, 2)))
    return g.where(g.op("GreaterOrEqual", rows, g.columns()), s)


@matched("SlidingWindow(left=3, right=0, offset='end'", dims=("b", "s", "t"))
def window_with_past_symbolic(g: Mask, s: str) -> str:
    rows = g.op("Add", g.rows(), g.op("Sub", g.size(g.k, 2), g.size(g.q, 2)))
    near = g.op("Less", g.op("Sub", rows, g.columns()), g.i(4))
    return g.where(g.op("And", g.op("LessOrEqual", g.columns(), rows), near), s)


@matched("Causal(offset=0", dims=("b", "s", "s"))
def packed_positions(g: Mask, s: str) -> str:
    """Position ids that are their own range: every jump between them is 1, so there is one sequence."""
    ids = g.op("Expand", g.up(g.arange(g.q, 2), 0), g.op("Concat", g.up(g.size(g.q, 0), 0), g.i([1]), axis=0))
    first = g.op("Sub", g.op("Slice", ids, g.i([0]), g.i([1]), g.i([1]), g.i([1])), g.i(1))
    longer = g.op("Concat", first, ids, axis=-1)
    left = g.op("Slice", longer, g.i([0]), g.i([-1]), g.i([1]), g.i([1]))
    right = g.op("Slice", longer, g.i([1]), g.i([1 << 40]), g.i([1]), g.i([1]))
    jump = g.op("Not", g.op("Equal", g.op("Sub", right, left), g.i(1)))
    document = g.op("CumSum", g.cast(jump, T.INT64), g.i(-1))
    same = g.op("Equal", g.up(document, 1, 3), g.up(document, 1, 2))
    return g.where(g.op("And", same, g.op("LessOrEqual", g.columns(), g.rows())), s)


@matched("document", dims=(B, S, S))
def packed_ids(g: Mask, s: str) -> str:
    document = g.op("CumSum", g.input("ids", [B, S], T.INT64), g.i(-1))
    same = g.op("Equal", g.up(document, 1, 3), g.up(document, 1, 2))
    return g.where(g.op("And", same, g.op("LessOrEqual", g.columns(), g.rows())), s)


@matched("document[where((t0 == t1)")
def documents_constant(g: Mask, s: str) -> str:
    ids = np.array([0, 0, 0, 1, 2, 2, 2])
    keep = np.zeros((S, L), bool)
    keep[:, :S] = ids[:, None] == ids
    return g.where(g.op("Equal", g.i(ids[:, None]), g.i([*ids, 7, 7])), s)


@matched("Causal(offset=0", dims=(B, S, S))
def documents_constant_causal(g: Mask, s: str) -> str:
    ids = np.array([0, 0, 0, 1, 2, 2, 2])
    return g.where(g.const((ids[:, None] == ids) & np.tri(S, dtype=bool), bool), s)


@matched("chunked[where(((k / 3) == (q / 3))")
def chunked(g: Mask, s: str) -> str:
    """Llama 4: attention within chunks."""
    three = g.i(3)
    return g.where(g.op("Equal", g.op("Div", g.rows(), three), g.op("Div", g.columns(), three)), s)


@matched("chunked", dims=(B, S, S))
def chunked_constant(g: Mask, s: str) -> str:
    c = np.arange(S) // 3
    return g.where(g.const((c[:, None] == c) & np.tri(S, dtype=bool), bool), s)


@matched("dilated")
def dilated(g: Mask, s: str) -> str:
    apart = g.op("Mod", g.op("Sub", g.rows(), g.columns()), g.i(2))
    return g.where(g.op("And", g.op("Equal", apart, g.i(0)), g.op("LessOrEqual", g.columns(), g.rows())), s)


@matched("dilated")
def dilated_constant(g: Mask, s: str) -> str:
    rel = np.arange(L) - np.arange(S)[:, None]
    return g.where(g.const((rel % 2 == 0) & (rel <= 0), bool), s)


@matched("prefix[where(((k <= 2) or (k <= q))")
def prefix(g: Mask, s: str) -> str:
    early = g.op("Less", g.columns(), g.i(3))
    return g.where(g.op("Or", early, g.op("LessOrEqual", g.columns(), g.rows())), s)


@matched("prefix")
def prefix_constant(g: Mask, s: str) -> str:
    return g.where(g.const(np.tri(S, L, 1, dtype=bool) | (np.arange(L) < 4), bool), s)


@matched("prefix[where((t0 or (k <= q)), score, -inf)][(2, 1, 1, 9)]")
def prefix_per_row(g: Mask, s: str) -> str:
    lengths = g.up(g.input("ids", [B], T.INT64), 1, 2, 3)
    early = g.op("Less", g.up(g.columns(), 0, 1), lengths)
    return g.where(g.op("Or", early, g.op("LessOrEqual", g.columns(), g.rows())), s)


@matched("BoolMask(shape=(2, 1, 1, 9)")
def lengths_per_row(g: Mask, s: str) -> str:
    lengths = g.up(g.input("ids", [B], T.INT64), 1, 2, 3)
    return g.where(g.op("Less", g.up(g.columns(), 0, 1), lengths), s)


@matched("SlidingWindow(left=3, right=3")
def distance(g: Mask, s: str) -> str:
    near = g.op("LessOrEqual", g.op("Abs", g.op("Sub", g.rows(), g.columns())), g.i(3))
    return g.op("Add", s, g.bias(near))


@matched("SlidingWindow(left=2, right=2")
def distance_constant(g: Mask, s: str) -> str:
    """ModernBERT: the distances are a constant, compared with half the window."""
    apart = g.i(np.abs(np.arange(S)[:, None] - np.arange(L)))
    return g.where(g.op("LessOrEqual", apart, g.i(2)), s)


@matched("SlidingWindow(left=2, right=0")
def float_positions(g: Mask, s: str) -> str:
    rel = g.op("Sub", g.cast(g.rows()), g.cast(g.columns()))
    return g.where(g.op("And", g.op("GreaterOrEqual", rel, g.f(0)), g.op("Less", rel, g.f(2.5))), s)


@matched("SlidingWindow(left=-1, right=1")
def eye(g: Mask, s: str) -> str:
    zeros = g.op("ConstantOfShape", g.i([S, L]))
    return g.where(g.cast(g.op("EyeLike", zeros, k=1), T.BOOL), s)


@matched("Causal(offset=0")
def counted_by_cumsum(g: Mask, s: str) -> str:
    """Positions made by summing ones."""

    def positions(size: int) -> str:
        ones = g.op("ConstantOfShape", g.i([size]), value=h.make_tensor("one", T.INT64, [1], [1]))
        return g.op("Sub", g.op("CumSum", ones, g.i(0)), g.i(1))

    return g.where(g.op("LessOrEqual", g.up(positions(L), 0), g.up(positions(S), 1)), s)


@matched("Causal(offset=4, fill=-inf)")
def range_with_start(g: Mask, s: str) -> str:
    """Rows counted from 4 on."""
    rows = g.op("Range", g.i(4), g.i(4 + S), g.i(1))
    return g.where(g.op("LessOrEqual", g.columns(), g.up(rows, 1)), s)


@matched("(k <= (q * 2))")
def range_with_step(g: Mask, s: str) -> str:
    """Rows counted by two are no query positions."""
    rows = g.op("Range", g.i(0), g.i(2 * S), g.i(2))
    return g.where(g.op("LessOrEqual", g.columns(), g.up(rows, 1)), s)


@matched("((k + q) <= 8)")
def swapped_sign(g: Mask, s: str) -> str:
    """Mirrored: not causal, however alike it looks."""
    return g.where(g.op("LessOrEqual", g.op("Add", g.columns(), g.rows()), g.i(8)), s)


@matched("SlidingWindow(left=0, right=None")
def k_and_q_swapped(g: Mask, s: str) -> str:
    return g.where(g.op("LessOrEqual", g.rows(), g.columns()), s)


@matched("Causal(offset=0, fill=-inf); SlidingWindow(left=3, right=None, offset=0, fill=-3.4")
def window_with_another_fill(g: Mask, s: str) -> str:
    s = g.where(g.op("LessOrEqual", g.columns(), g.rows()), s)
    return g.where(g.op("Less", g.op("Sub", g.rows(), g.columns()), g.i(4)), s, MIN)


@matched("AddMask(shape=(7, 9)", wide=True)
def trilu_of_another_tensor(g: Mask, s: str) -> str:
    return g.op("Add", s, g.op("Trilu", g.input("bias", [S, L]), upper=0))


@matched("BoolMask(shape=(2, 1, 7, 1)")
def rows_masked(g: Mask, s: str) -> str:
    keep = g.up(g.input("mask", [B, S], T.BOOL), 1, 3)
    return g.where(g.op("And", keep, g.op("LessOrEqual", g.columns(), g.rows())), s, MIN)


@matched("BoolMask")
def outer_product_of_padding(g: Mask, s: str) -> str:
    """DeBERTa and Longformer: a key and a query must both be there."""
    rows, columns = g.up(g.input("mask", [B, S], T.BOOL), 1, 3), g.up(g.padding("mask2"), 1, 2)
    both = g.op("Mul", g.cast(rows), g.cast(columns))
    return g.where(g.cast(both, T.BOOL), s, MIN)


@matched("AddMask(shape=(1, 1, 7, 9)", wide=True, dims=(B, S, L))
def noise_constant(g: Mask, s: str) -> str:
    return g.op("Add", s, g.f(np.random.default_rng(1).standard_normal((1, 1, S, L))))


@matched("BoolMask(shape=(7, 9)", wide=True)
def random_constant(g: Mask, s: str) -> str:
    keep = np.random.default_rng(1).random((S, L)) < 0.6
    keep[:, 0] = True
    return g.where(g.const(keep, bool), s)


@matched("AddMask(shape=('broadcast(b, c)', 1, 1, 't')", dims=("b", "s", "t"))
def symbolic_of_another_name(g: Mask, s: str) -> str:
    return g.op("Add", s, g.input("mask", ["c", 1, 1, "t"]))


@matched("AddMask(shape=(1, 'broadcast(s, u)', 't')", wide=True, dims=(B, "s", "t"))
def rows_of_another_name(g: Mask, s: str) -> str:
    return g.op("Add", s, g.input("mask", [1, "u", "t"]))


@matched("AddMask(shape=('broadcast(b, c, d)', 1, 1, 't')", dims=("b", "s", "t"))
def two_batches_of_other_names(g: Mask, s: str) -> str:
    """Either of them may be one, or repeat the scores."""
    return g.op("Add", g.op("Add", s, g.input("mask", ["c", 1, 1, "t"])), g.input("mask2", ["d", 1, 1, "t"]))


# Left alone


@refused("broadcast", dims=(1, S, L))
def more_rows_than_the_score(g: Mask, s: str) -> str:
    return g.op("Add", s, g.input("mask", [B, 1, S, L]))


@refused("broadcast", dims=("b", "s", "t"))
def along_the_wrong_axis(g: Mask, s: str) -> str:
    return g.op("Add", s, g.up(g.input("mask", ["b", L]), 1, 3))


def _one() -> onnx.TensorProto:
    return h.make_tensor("one", T.FLOAT, [1], [1.0])
