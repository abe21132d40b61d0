"""Attention graphs around the score, the softmax and the probabilities that fit no axis of spellings.py.

Inputs are q, k, v and whatever else a builder names; the output is o. MATCH maps a name to a builder of a graph that is one or
more attentions, REFUSE to a builder of one that must be left alone, with a reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h

from tests.support.spellings import Graph

B, H, SQ, SKV, D, DV = 2, 3, 5, 7, 8, 6
FULL = [B, H, SQ, SKV]
Builder = Callable[[], onnx.ModelProto]
MATCH: dict[str, Builder] = {}
more_robust: dict[str, Builder] = {}
"""Graphs to match that turn some finite or NaN inputs into what is better not kept: exponentials without the maximum overflow,
sums of masked probabilities vanish, NaN becomes an integer. They are not held to equality on such inputs."""
SITES: dict[str, int] = {}
"""How many sites a graph of MATCH has, where that is not one."""
REFUSE: dict[str, Builder] = {}
REASONS: dict[str, str] = {}
"""A part of the reason that must be given for a graph of REFUSE."""


class Site(Graph):
    """A graph under construction, with q, k, v and their score."""

    def __init__(self, opset: int = 18) -> None:
        super().__init__(opset)
        self.q = self.input("q", [B, H, SQ, D])
        self.k = self.input("k", [B, H, SKV, D])
        self.v = self.input("v", [B, H, SKV, DV])

    def score(self) -> str:
        kt = self.op("Transpose", self.k, perm=[0, 1, 3, 2])
        return self.op("Mul", self.op("MatMul", self.q, kt), self.const(D**-0.5))

    def reduce(self, kind: str, x: str, *, keep: bool = True, axis: int = -1) -> str:
        """A reduction in the spelling of the opset; with `keep` false the axis is put back by Unsqueeze."""
        by_input = self.opset >= 18 or (kind == "ReduceSum" and self.opset >= 13)
        axes = [self.const([axis], np.int64)] if by_input else []
        attrs: dict[str, Any] = {} if by_input else {"axes": [axis]}
        y = self.op(kind, x, *axes, keepdims=int(keep), **attrs)
        return y if keep else self.unsqueeze(y)

    def reduce_away(self, kind: str, x: str) -> str:
        """A reduction over the last axis, which goes."""
        axes = [self.const([-1], np.int64)] if self.opset >= 18 else []
        return self.op(kind, x, *axes, keepdims=0, **({} if axes else {"axes": [-1]}))

    def unsqueeze(self, x: str, axis: int = -1) -> str:
        if self.opset < 13:
            return self.op("Unsqueeze", x, axes=[axis if axis >= 0 else 3])
        return self.op("Unsqueeze", x, self.const([axis], np.int64))

    def softmax(self, x: str) -> str:
        return self.op("Softmax", x, axis=-1)

    def exp(self, x: str) -> tuple[str, str]:
        """(exp(x - max(x)), max(x))"""
        top = self.reduce("ReduceMax", x)
        return self.op("Exp", self.op("Sub", x, top)), top

    def times_v(self, p: str) -> str:
        return self.op("MatMul", p, self.v)

    def keep(self, *shape: int) -> str:
        return self.input("keep", list(shape), T.BOOL)

    def masked(self, keep: str, fill: float = float("-inf")) -> str:
        return self.op("Where", keep, self.score(), self.const(fill))

    def done(self, out: str, shape: list[int | str] | None = None) -> onnx.ModelProto:
        self.nodes.append(h.make_node("Identity", [out], ["o"], name="out"))
        return self.model({"o": (shape or [B, H, SQ, DV], T.FLOAT)})


def match(name: str, sites: int = 1, table: dict[str, Builder] = MATCH) -> Callable[[Builder], Builder]:
    def register(build: Builder) -> Builder:
        table[name] = build
        SITES[name] = sites
        return build

    return register


def refuse(name: str, reason: str) -> Callable[[Builder], Builder]:
    def register(build: Builder) -> Builder:
        REFUSE[name], REASONS[name] = build, reason
        return build

    return register


_SYMBOLS = {"b": 2, "s": SQ, "t": SKV}


def feeds(model: onnx.ModelProto, seed: int = 0, *, large: bool = False, empty_rows: bool = False) -> dict[str, Any]:
    """Normal floats (scores of +-1000 if `large`), boolean masks that keep most keys, and in some rows none."""
    rng = np.random.default_rng(seed)
    result: dict[str, Any] = {}
    for i in model.graph.input:
        shape = [d.dim_value or _SYMBOLS[d.dim_param] for d in i.type.tensor_type.shape.dim]
        if i.type.tensor_type.elem_type == T.BOOL:
            mask = rng.random(shape) < 0.7
            mask[..., 0] = True
            if empty_rows and mask.ndim == 4:
                mask[0, :, :2] = False
            result[i.name] = mask
        else:
            x = np.asarray(rng.standard_normal(shape), np.float32)
            result[i.name] = np.asarray(x * 30 if large and i.name in "qk" else x, np.float32)
    return result


def on_score(change: Callable[[Site, str], str], opset: int = 18) -> Builder:
    def build() -> onnx.ModelProto:
        g = Site(opset)
        return g.done(g.times_v(g.softmax(change(g, g.score()))))

    return build


def in_place_of_softmax(change: Callable[[Site, str], str], opset: int = 18) -> Builder:
    def build() -> onnx.ModelProto:
        g = Site(opset)
        return g.done(g.times_v(change(g, g.score())))

    return build


def on_probabilities(change: Callable[[Site, str, str], str], masked: bool = True, fill: float = -np.inf) -> Builder:
    """`change` gets the probabilities and the masked score; the mask has a row without keys in the test's inputs."""

    def build() -> onnx.ModelProto:
        g = Site()
        score = g.masked(g.keep(B, 1, SQ, SKV), fill) if masked else g.score()
        return g.done(g.times_v(change(g, g.softmax(score), score)))

    return build


# Scale


@match("scale/runtime scalar")
def _() -> onnx.ModelProto:
    g = Site()
    return g.done(g.times_v(g.softmax(g.op("Mul", g.input("factor", []), g.score()))))


@match("scale/division by a runtime scalar of rank 1, GQA and BSHD q")
def _() -> onnx.ModelProto:
    g = Graph(18)
    q, k, v = g.input("q", [B, SQ, 4, D]), g.input("k", [B, 4, SKV, D]), g.input("v", [B, 4, SKV, DV])
    score = g.op("MatMul", g.op("Transpose", q, perm=[0, 2, 1, 3]), g.op("Transpose", k, perm=[0, 1, 3, 2]))
    score = g.op("Div", score, g.op("Add", g.op("Abs", g.input("factor", [1])), g.const([1.0])))
    g.nodes.append(h.make_node("MatMul", [g.op("Softmax", score, axis=-1), v], ["o"]))
    return g.model({"o": ([B, 4, SQ, DV], T.FLOAT)})


@match("scale/per head, BSHD q")
def _() -> onnx.ModelProto:
    g = Graph(18)
    q, k, v = g.input("q", [B, SQ, H, D]), g.input("k", [B, H, SKV, D]), g.input("v", [B, H, SKV, DV])
    score = g.op("MatMul", g.op("Transpose", q, perm=[0, 2, 1, 3]), g.op("Transpose", k, perm=[0, 1, 3, 2]))
    score = g.op("Mul", score, g.input("factor", [H, 1, 1]))
    g.nodes.append(h.make_node("MatMul", [g.op("Softmax", score, axis=-1), v], ["o"]))
    return g.model({"o": ([B, H, SQ, DV], T.FLOAT)})


for _shape in ([H, 1, 1], [B, H, SQ, 1], [1, 1, SQ, 1], [SKV], [B, 1, 1, SKV]):
    MATCH[f"scale/tensor {_shape}"] = on_score(lambda g, s, shape=_shape: g.op("Mul", s, g.input("factor", shape)))
MATCH["scale/constant per head"] = on_score(lambda g, s: g.op("Mul", s, g.const([[[1.0]], [[2.0]], [[0.5]]])))
MATCH["scale/negated"] = on_score(lambda g, s: g.op("Neg", s))
MATCH["scale/zero"] = on_score(lambda g, s: g.op("Mul", s, g.const(0.0)))


@match("scale/per head after the mask")
def _() -> onnx.ModelProto:
    g = Site()
    score = g.op("Add", g.score(), g.input("bias", [H, SQ, SKV]))
    return g.done(g.times_v(g.softmax(g.op("Mul", score, g.input("factor", [H, 1, 1])))))


@match("scale/on v and on the output")
def _() -> onnx.ModelProto:
    g = Site()
    v = g.op("Mul", g.v, g.const(0.5))
    return g.done(g.op("Mul", g.op("MatMul", g.softmax(g.score()), v), g.input("factor", [H, 1, 1])))


def _from_shape(opset: int, last: str) -> Builder:
    def build() -> onnx.ModelProto:
        g = Graph(opset)
        q, k, v = g.input("q", ["b", H, "s", D]), g.input("k", ["b", H, "t", D]), g.input("v", ["b", H, "t", DV])
        size = g.op("Gather", g.op("Shape", q), g.const(3, np.int64), axis=0)
        root = g.op("Sqrt", g.op("Cast", size, to=T.FLOAT))
        score = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2]))
        if last == "reciprocal":
            score = g.op("Mul", score, g.op("Reciprocal", root))
        elif last == "one over":
            score = g.op("Mul", score, g.op("Div", g.const(1.0), root))
        elif last == "power":
            score = g.op("Mul", score, g.op("Pow", g.op("Cast", size, to=T.FLOAT), g.const(-0.5)))
        else:
            score = g.op("Div", score, root)
        g.nodes.append(h.make_node("MatMul", [g.op("Softmax", score, axis=-1), v], ["o"]))
        return g.model({"o": (["b", H, "s", DV], T.FLOAT)})

    return build


for _last in ("reciprocal", "one over", "power", "division"):
    MATCH[f"scale/from the shape, {_last}"] = _from_shape(18, _last)


@match("scale/small, after a moderate fill")
def _() -> onnx.ModelProto:
    g = Site()
    causal = g.const(np.tril(np.ones((SQ, SKV))), bool)
    return g.done(g.times_v(g.softmax(g.op("Mul", g.masked(causal, -1e4), g.const(1e-4)))))


# Softmax


def _explicit(keep: bool, divide: str, opset: int = 18) -> Builder:
    def change(g: Site, s: str) -> str:
        e = g.op("Exp", g.op("Sub", s, g.reduce("ReduceMax", s, keep=keep)))
        total = g.reduce("ReduceSum", e, keep=keep)
        match divide:
            case "mul":
                return g.op("Mul", e, g.op("Reciprocal", total))
            case "left":
                return g.op("Mul", g.op("Div", g.const(1.0), total), e)
            case "power":
                return g.op("Mul", e, g.op("Pow", total, g.const(-1.0)))
            case "expand":
                return g.op("Div", e, g.op("Expand", total, g.const(FULL, np.int64)))
            case "floor":
                return g.op("Div", e, g.op("Max", total, g.const(1e-12)))
            case "epsilon":
                return g.op("Div", e, g.op("Add", total, g.const(1e-9)))
        return g.op("Div", e, total)

    return in_place_of_softmax(change, opset)


for _keep in (True, False):
    for _divide in ("div", "mul", "left", "power", "expand", "floor", "epsilon"):
        MATCH[f"softmax/{_divide}, keepdims={_keep}"] = _explicit(_keep, _divide)
MATCH["softmax/explicit, opset 11"] = _explicit(False, "div", 11)
MATCH["softmax/flattened, opset 11"] = on_score(lambda g, s: s, 11)


@match("softmax/reshaped sum")
def _() -> onnx.ModelProto:
    g = Site()
    e, _ = g.exp(g.score())
    total = g.op("ReduceSum", e, g.const([-1], np.int64), keepdims=0)
    total = g.op("Reshape", total, g.const([B, H, SQ, 1], np.int64))
    return g.done(g.times_v(g.op("Div", e, total)))


@match("softmax/flattened axis before unit dims")
def _() -> onnx.ModelProto:
    g = Graph(11)
    q, k, v = g.input("q", [B, H, 1, D]), g.input("k", [B, H, D, SKV]), g.input("v", [B, H, SKV, DV])
    g.nodes.append(h.make_node("MatMul", [g.op("Softmax", g.op("MatMul", q, k), axis=2), v], ["o"]))
    return g.model({"o": ([B, H, 1, DV], T.FLOAT)})


@match("softmax/turned and turned back")
def _() -> onnx.ModelProto:
    g = Site()
    p = g.op("Softmax", g.op("Transpose", g.score(), perm=[0, 1, 3, 2]), axis=2)
    return g.done(g.times_v(g.op("Transpose", p, perm=[0, 1, 3, 2])))


def _plain_exp(g: Site, s: str) -> str:
    e = g.op("Exp", s)
    return g.op("Div", e, g.reduce("ReduceSum", e))


more_robust["softmax/without the maximum"] = in_place_of_softmax(_plain_exp)
MATCH["softmax/exp of log softmax"] = in_place_of_softmax(lambda g, s: g.op("Exp", g.op("LogSoftmax", s, axis=-1)))
MATCH["softmax/log-sum-exp"] = in_place_of_softmax(
    lambda g, s: g.op("Exp", g.op("Sub", s, g.reduce("ReduceLogSumExp", s)))
)
MATCH["softmax/log-sum-exp without keepdims"] = in_place_of_softmax(
    lambda g, s: g.op("Exp", g.op("Sub", s, g.reduce("ReduceLogSumExp", s, keep=False)))
)


def _spelled_lse(g: Site, s: str) -> str:
    e, top = g.exp(s)
    return g.op("Add", g.op("Log", g.reduce("ReduceSum", e)), top)


MATCH["softmax/log-sum-exp spelled out"] = in_place_of_softmax(
    lambda g, s: g.op("Exp", g.op("Sub", s, _spelled_lse(g, s)))
)


def _shifted_log(g: Site, s: str) -> str:
    shifted = g.op("Sub", s, g.reduce("ReduceMax", s))
    return g.op("Exp", g.op("Sub", shifted, g.op("Log", g.reduce("ReduceSum", g.op("Exp", shifted)))))


MATCH["softmax/log of the sum, maximum out"] = in_place_of_softmax(_shifted_log)
MATCH["softmax/maximum taken out twice"] = on_score(lambda g, s: g.op("Sub", s, g.reduce("ReduceMax", s)))
MATCH["softmax/maximum taken out by adding its negative"] = on_score(
    lambda g, s: g.op("Add", g.op("Neg", g.reduce("ReduceMax", s)), s)
)


@match("softmax/division after the matmul, by the reciprocal")
def _() -> onnx.ModelProto:
    g = Site()
    e, _ = g.exp(g.score())
    return g.done(g.op("Mul", g.op("Reciprocal", g.reduce("ReduceSum", e, keep=False)), g.times_v(e)))


@match("softmax/division after the matmul, without the maximum", table=more_robust)
def _() -> onnx.ModelProto:
    g = Site()
    e = g.op("Exp", g.score())
    return g.done(g.op("Div", g.times_v(e), g.reduce("ReduceSum", e)))


# Sinks


def _plus_one(g: Site, s: str) -> str:
    e, top = g.exp(s)
    return g.op("Div", e, g.op("Add", g.op("Exp", g.op("Neg", top)), g.reduce("ReduceSum", e)))


def _plus_one_clamped(g: Site, s: str) -> str:
    top = g.op("Max", g.reduce("ReduceMax", s), g.const(0.0))
    e = g.op("Exp", g.op("Sub", s, top))
    return g.op("Div", e, g.op("Add", g.reduce("ReduceSum", e), g.op("Exp", g.op("Neg", top))))


def _plus_one_plain(g: Site, s: str) -> str:
    e = g.op("Exp", s)
    return g.op("Div", e, g.op("Add", g.reduce("ReduceSum", e), g.const(1.0)))


def _plus_sink(g: Site, s: str) -> str:
    sink = g.input("sink", [H, 1, 1])
    top = g.op("Max", g.reduce("ReduceMax", s), sink)
    e = g.op("Exp", g.op("Sub", s, top))
    return g.op("Div", e, g.op("Add", g.reduce("ReduceSum", e), g.op("Exp", g.op("Sub", sink, top))))


MATCH["sink/softmax plus one"] = in_place_of_softmax(_plus_one)
MATCH["sink/softmax plus one, maximum at least 0"] = in_place_of_softmax(_plus_one_clamped)
more_robust["sink/softmax plus one, without the maximum"] = in_place_of_softmax(_plus_one_plain)
MATCH["sink/in the sum"] = in_place_of_softmax(_plus_sink)


def _column(first: bool, shift: bool, cut: str, sink: list[int] | None, masked: bool = False) -> Builder:
    def build() -> onnx.ModelProto:
        g = Site()
        s = g.masked(g.keep(B, 1, SQ, SKV)) if masked else g.score()
        shape = g.const([B, H, SQ, 1], np.int64)
        column = g.op("Expand", g.input("sink", list(sink)) if sink is not None else g.const(0.0), shape)
        s = g.op("Concat", *((column, s) if first else (s, column)), axis=-1)
        if shift:
            s = g.op("Sub", s, g.reduce("ReduceMax", s))
        p = g.op("Softmax", s, axis=3)
        start, end = (1, 1 << 62) if first else (0, -1)
        if cut == "split":
            sizes = [1, SKV] if first else [SKV, 1]
            p = g.op("Split", p, g.const(sizes, np.int64), outs=2, axis=-1)
            p = f"{p}_1" if first else p
        else:
            p = g.op("Slice", p, *(g.const([x], np.int64) for x in (start, end, -1 if cut == "-1" else 3, 1)))
        return g.done(g.times_v(g.op("Dropout", p)))

    return build


for _first in (False, True):
    for _cut in ("-1", "3", "split"):
        _where = "first" if _first else "last"
        MATCH[f"sink/{_where} column, cut {_cut}"] = _column(_first, True, _cut, [1, H, 1, 1])
MATCH["sink/column of zeros"] = _column(False, False, "-1", None)
MATCH["sink/column and mask"] = _column(False, True, "-1", [H, 1, 1], masked=True)


def _gate(spelled: bool) -> Builder:
    def build() -> onnx.ModelProto:
        g = Site()
        s = g.score()
        lse = _spelled_lse(g, s) if spelled else g.reduce("ReduceLogSumExp", s, keep=False)
        gate = g.op("Sigmoid", g.op("Sub", lse, g.input("sink", [1, H, 1, 1])))
        return g.done(g.op("Mul", g.times_v(g.softmax(s)), gate))

    return build


MATCH["sink/gate on the output"] = _gate(False)
MATCH["sink/gate on the output, log-sum-exp spelled out"] = _gate(True)


# Guards


def _where_nan(g: Site, p: str, _: str) -> str:
    return g.op("Where", g.op("Not", g.op("IsNaN", p)), p, g.const(0.0))


def _nan_to_num(g: Site, p: str, _: str) -> str:
    tests = [g.op("IsNaN", p), g.op("Equal", p, g.const(-np.inf)), g.op("Equal", p, g.const(np.inf))]
    out = p
    for test, value in zip(tests, (0.0, -3.4e38, 3.4e38), strict=True):
        out = g.op("Where", test, g.const(value), out)
    return out


def _safe_softmax(g: Site, p: str, score: str) -> str:
    lost = g.op("Not", g.op("Equal", score, g.const(-np.inf)))
    some = g.op("Cast", g.reduce("ReduceMax", g.op("Cast", lost, to=T.INT32)), to=T.BOOL)
    return g.op("Where", g.op("Not", some), g.const(0.0), p)


def _all_lost(g: Site, p: str, score: str) -> str:
    lost = g.op("Cast", g.op("IsInf", score, detect_positive=0), to=T.INT32)
    return g.op("Where", g.op("Cast", g.reduce("ReduceMin", lost), to=T.BOOL), g.const(0.0), p)


def _by_maximum(g: Site, p: str, score: str) -> str:
    return g.op("Where", g.op("Equal", g.reduce("ReduceMax", score), g.const(-np.inf)), g.const(0.0), p)


def _by_infinite_maximum(g: Site, p: str, score: str) -> str:
    return g.op("Where", g.op("IsInf", g.reduce("ReduceMax", score), detect_positive=0), g.const(0.0), p)


def _by_mask_rows(g: Site, p: str, _: str) -> str:
    some = g.op("Cast", g.reduce("ReduceMax", g.op("Cast", "keep", to=T.INT32)), to=T.BOOL)
    return g.op("Where", some, p, g.const(0.0))


def _by_same_mask(g: Site, p: str, _: str) -> str:
    return g.op("Where", g.op("Not", "keep"), g.const(0.0), p)


def _equal_to_itself(g: Site, p: str, _: str) -> str:
    return g.op("Where", g.op("Equal", p, p), p, g.const(0.0))


for _name, _change in {
    "not nan": _where_nan,
    "equal to itself": _equal_to_itself,
    "nan to num": _nan_to_num,
    "safe softmax": _safe_softmax,
    "all -inf": _all_lost,
    "maximum is -inf": _by_maximum,
    "maximum is infinite": _by_infinite_maximum,
    "rows of the mask": _by_mask_rows,
    "the mask itself": _by_same_mask,
}.items():
    MATCH[f"guard/{_name}"] = on_probabilities(_change)
MATCH["guard/the mask itself, finite fill"] = on_probabilities(_by_same_mask, fill=-3.4028235e38)
MATCH["guard/rows of the mask, finite fill"] = on_probabilities(_by_mask_rows, fill=-3.4028235e38)


@match("guard/on the output")
def _() -> onnx.ModelProto:
    g = Site()
    out = g.times_v(g.softmax(g.masked(g.keep(B, 1, SQ, SKV))))
    return g.done(g.op("Where", g.op("IsNaN", out), g.const(0.0), out))


# Factors on the probabilities


def _times(shape: list[int]) -> Callable[[Site, str, str], str]:
    return lambda g, p, _: g.op("Mul", p, g.input("v_factor", shape))


for _shape in ([], [H, 1, 1], [B, H, SQ, 1], [SKV], [B, 1, 1, SKV], [B, H, 1, SKV]):
    MATCH[f"probability/times {_shape}"] = on_probabilities(_times(_shape))
MATCH["probability/divided per head"] = on_probabilities(
    lambda g, p, _: g.op("Div", p, g.op("Add", g.op("Abs", g.input("factor", [H, 1, 1])), g.const(1.0)))
)


def _renormalised(kind: str) -> Callable[[Site, str, str], str]:
    def change(g: Site, p: str, _: str) -> str:
        keep = g.input("visible", [B, 1, SQ, SKV], T.BOOL)
        if kind == "where":
            masked = g.op("Where", keep, p, g.const(0.0))
        elif kind == "one minus":
            drop = g.op("Cast", g.op("Not", keep), to=T.FLOAT)
            masked = g.op("Mul", p, g.op("Sub", g.const(1.0), drop))
        else:
            masked = g.op("Mul", g.op("Cast", keep, to=T.FLOAT), p)
        return g.op("Div", masked, g.reduce("ReduceSum", masked))

    return change


for _kind in ("where", "one minus", "cast"):
    more_robust[f"probability/masked and divided anew, {_kind}"] = on_probabilities(_renormalised(_kind), masked=False)


def _masked_exponentials(g: Site, s: str) -> str:
    e, _ = g.exp(s)
    masked = g.op("Mul", e, g.op("Cast", g.input("visible", [B, 1, 1, SKV], T.BOOL), to=T.FLOAT))
    return g.op("Div", masked, g.reduce("ReduceSum", masked))


more_robust["probability/exponentials masked, then divided"] = in_place_of_softmax(_masked_exponentials)


def _above(least: float) -> Callable[[Site, str], str]:
    """The maximum, kept above a number before it gets its axis back and is spread over the row: JAX's softmax, with -inf."""

    def change(g: Site, s: str) -> str:
        top = g.op("Max", g.const(least), g.reduce_away("ReduceMax", s))
        column = g.op("Reshape", top, g.const([B, H, SQ, 1], np.int64))
        spread = g.op("Identity", g.op("Expand", column, g.const([B, H, SQ, 1], np.int64)))
        e = g.op("Exp", g.op("Sub", s, spread))
        return g.op("Div", e, g.reduce("ReduceSum", e))

    return change


match("softmax/maximum above -inf, spread")(in_place_of_softmax(_above(-np.inf)))
refuse("maximum above a number, spread", "computed from the scores")(in_place_of_softmax(_above(0.5)))


def _with_nan(axis: int = 3, of: str = "") -> Callable[[Site, str], str]:
    """ndonnx's maximum: NaN for a row with one, whatever ReduceMax makes of it; over an axis of the scores with one more behind."""

    def change(g: Site, s: str) -> str:
        bad = g.op("Cast", g.op("IsNaN", of or s), to=T.INT32)
        some = g.op("Cast", g.reduce("ReduceMax", bad), to=T.BOOL)
        behind, over = (g.const([a], np.int64) for a in (4, axis))
        top = g.op("Squeeze", g.op("ReduceMax", g.op("Unsqueeze", s, behind), over), behind)
        e = g.op("Exp", g.op("Sub", s, g.op("Where", some, g.const(np.nan), top)))
        return g.op("Div", e, g.reduce("ReduceSum", e))

    return change


match("softmax/maximum with NaN")(in_place_of_softmax(_with_nan()))
refuse("maximum over queries, with NaN", "")(in_place_of_softmax(_with_nan(axis=2)))
refuse("maximum of a row, NaN where another tensor has it", "")(in_place_of_softmax(_with_nan(of="q")))


def _overall(keep: int) -> Callable[[Site, str], str]:
    def change(g: Site, s: str) -> str:
        e = g.op("Exp", g.op("Sub", s, g.op("ReduceMax", s, keepdims=keep)))
        return g.op("Div", e, g.reduce("ReduceSum", e))

    return change


for _keeps in (0, 1):
    more_robust[f"softmax/maximum of everything, keepdims={_keeps}"] = in_place_of_softmax(_overall(_keeps))


@match("probability/two values")
def _() -> onnx.ModelProto:
    g = Site()
    p = g.softmax(g.score())
    return g.done(g.op("Add", g.times_v(p), g.op("MatMul", p, g.input("w", [B, H, SKV, DV]))))


@match("probability/two values, division last")
def _() -> onnx.ModelProto:
    g = Site()
    e, _ = g.exp(g.score())
    total = g.reduce("ReduceSum", e)
    first = g.op("Div", g.times_v(e), total)
    return g.done(g.op("Sub", first, g.op("Div", g.op("MatMul", e, g.input("w", [B, H, SKV, DV])), total)))


# Score functions


def _elementwise(change: Callable[[Site, str], str]) -> Builder:
    return on_score(lambda g, s: change(g, s))


_FUNCTIONS: dict[str, Callable[[Site, str], str]] = {
    "softcap, factor inside": lambda g, s: g.op("Mul", g.op("Tanh", g.op("Mul", s, g.const(0.2))), g.const(7.0)),
    "softcap, negative": lambda g, s: g.op("Mul", g.op("Tanh", g.op("Div", s, g.const(-2.0))), g.const(-2.0)),
    "tanh": lambda g, s: g.op("Tanh", s),
    "leaky": lambda g, s: g.op("LeakyRelu", s, alpha=0.3),
    "relu": lambda g, s: g.op("Relu", s),
    "clip": lambda g, s: g.op("Clip", s, g.const(-1.0), g.const(1.5)),
    "clip below": lambda g, s: g.op("Clip", s, g.const(-1.0)),
    "minimum": lambda g, s: g.op("Min", s, g.const(0.5)),
    "maximum with a tensor": lambda g, s: g.op("Max", g.input("bias", [SQ, SKV]), s),
    "power": lambda g, s: g.op("Pow", g.op("Abs", s), g.const(1.5)),
    "swish": lambda g, s: g.op("Mul", s, g.op("Sigmoid", s)),
    "gelu": lambda g, s: g.op(
        "Mul", g.op("Mul", s, g.const(0.5)), g.op("Add", g.op("Erf", g.op("Div", s, g.const(1.4142135))), g.const(1.0))
    ),
    "where on the score": lambda g, s: g.op("Where", g.op("Greater", s, g.const(0.0)), s, g.op("Mul", s, g.const(0.1))),
    "where, score below": lambda g, s: g.op("Where", g.op("Less", s, g.const(-0.5)), g.const(-np.inf), s),
    "moderate fill": lambda g, s: g.op("Where", g.input("keep", [SQ, SKV], T.BOOL), s, g.const(-5.0)),
    "where of two functions": lambda g, s: g.op(
        "Where", g.input("keep", [B, 1, SQ, SKV], T.BOOL), g.op("Tanh", s), g.op("Mul", s, s)
    ),
    "softplus minus": lambda g, s: g.op("Sub", g.const(1.0), g.op("Softplus", s)),
    "elu": lambda g, s: g.op("Elu", s),
    "celu": lambda g, s: g.op("Celu", s, alpha=2.0),
    "softsign": lambda g, s: g.op("Softsign", s),
    "hard swish": lambda g, s: g.op("HardSwish", s),
    "shrink": lambda g, s: g.op("Shrink", s, lambd=0.25, bias=0.125),
    "hard sigmoid": lambda g, s: g.op("HardSigmoid", s),
    "sum": lambda g, s: g.op("Sum", s, g.input("bias", [SQ, SKV]), g.const(0.5)),
    "tensor minus score": lambda g, s: g.op("Sub", g.input("bias", [SQ, SKV]), s),
}
for _name, _function in _FUNCTIONS.items():
    MATCH[f"function/{_name}"] = _elementwise(_function)


more_robust["function/rounded"] = _elementwise(
    lambda g, s: g.op(
        "DequantizeLinear",
        g.op("QuantizeLinear", s, g.const(0.05), g.const(3, np.int8)),
        g.const(0.05),
        g.const(3, np.int8),
    )
)


@match("function/softcap after the mask")
def _() -> onnx.ModelProto:
    g = Site()
    s = g.op("Add", g.score(), g.input("bias", [SQ, SKV]))
    return g.done(g.times_v(g.softmax(g.op("Mul", g.op("Tanh", g.op("Div", s, g.const(3.0))), g.const(3.0)))))


# Differences of softmaxes


def difference(change: Callable[[Site, str, str], str]) -> Builder:
    """What `change` makes of two softmaxes over the same keys, times V."""

    def build() -> onnx.ModelProto:
        g = Site()
        other = g.softmax(g.op("MatMul", g.input("q2", [B, H, SQ, 4]), g.input("k2", [B, H, 4, SKV])))
        return g.done(g.times_v(change(g, g.softmax(g.score()), other)))

    return build


for _name, _change in {
    "plain": lambda g, a, b: g.op("Sub", a, b),
    "runtime factor": lambda g, a, b: g.op("Sub", a, g.op("Mul", g.input("factor", []), b)),
    "factor per head": lambda g, a, b: g.op("Sub", a, g.op("Mul", b, g.input("factor", [H, 1, 1]))),
    "factor per row": lambda g, a, b: g.op("Sub", a, g.op("Mul", b, g.input("factor", [B, H, SQ, 1]))),
    "added with a negative factor": lambda g, a, b: g.op("Add", a, g.op("Mul", b, g.const(-0.3))),
    "factors on both and on the difference": lambda g, a, b: g.op(
        "Mul", g.op("Sub", g.op("Mul", a, g.const(0.7)), g.op("Div", b, g.const(2.0))), g.const(1.5)
    ),
    "mean": lambda g, a, b: g.op("Div", g.op("Add", a, b), g.const(2.0)),
    "reshaped before the product": lambda g, a, b: g.op(
        "Reshape",
        g.op("Reshape", g.op("Sub", a, b), g.const([B * H, SQ, SKV], np.int64)),
        g.const(FULL, np.int64),
    ),
    "through Dropout and Identity": lambda g, a, b: g.op("Dropout", g.op("Identity", g.op("Sub", a, b))),
}.items():
    match(f"difference/{_name}", sites=2)(difference(_change))


@match("difference/of three", sites=3)
def _() -> onnx.ModelProto:
    g = Site()
    s = g.score()
    third = g.softmax(g.op("Add", s, g.input("bias", [SQ, SKV])))
    other = g.softmax(g.op("MatMul", g.input("q2", [B, H, SQ, 4]), g.input("k2", [B, H, 4, SKV])))
    p = g.op("Sub", g.softmax(g.score()), g.op("Mul", g.const(0.5), other))
    return g.done(g.times_v(g.op("Add", p, third)))


def two_in_one(part: Callable[[Site, str, int], str], shape: list[int]) -> Builder:
    """One softmax over twice the heads that V has; `part` takes the probabilities of one half, seen in `shape`."""

    def build() -> onnx.ModelProto:
        g = Graph(18)
        q, k = g.input("q", [B, 2 * H, SQ, D]), g.input("k", [B, 2 * H, SKV, D])
        v = g.input("v", [B, H, SKV, DV])
        s = g.op("MatMul", g.op("Mul", q, g.const(D**-0.5)), g.op("Transpose", k, perm=[0, 1, 3, 2]))
        p = g.op("Reshape", g.op("Softmax", s, axis=-1), g.const(shape, np.int64))
        one, other = part(g, p, 0), part(g, p, 1)  # type: ignore[arg-type]
        p = g.op("Sub", one, g.op("Mul", g.input("factor", [H, 1, 1]), other))
        g.nodes.append(h.make_node("Identity", [g.op("MatMul", p, v)], ["o"]))
        return g.model({"o": ([B, H, SQ, DV], T.FLOAT)})

    return build


match("difference/heads in pairs")(
    two_in_one(lambda g, p, i: g.op("Gather", p, g.const(np.asarray(i), np.int64), axis=2), [B, H, 2, SQ, SKV])
)
match("difference/heads in halves")(
    two_in_one(
        lambda g, p, i: g.op("Slice", p, *(g.const([x], np.int64) for x in (i * H, i * H + H, 1))), [B, 2 * H, SQ, SKV]
    )
)


@match("difference/masked", sites=2)
def _() -> onnx.ModelProto:
    g = Site()
    keep = g.keep(B, 1, SQ, SKV)
    other = g.op("MatMul", g.input("q2", [B, H, SQ, 4]), g.input("k2", [B, H, 4, SKV]))
    p1 = g.softmax(g.masked(keep))
    p2 = g.softmax(g.op("Where", keep, other, g.const(float("-inf"))))
    return g.done(g.times_v(g.op("Sub", p1, g.op("Mul", p2, g.input("factor", [H, 1, 1])))))


@refuse("difference of a softmax and a table", "feeds Sub")
def _() -> onnx.ModelProto:
    g = Site()
    return g.done(g.times_v(g.op("Sub", g.softmax(g.score()), g.input("table", FULL))))


@refuse("difference of softmaxes read elsewhere", "differential attention")
def _() -> onnx.ModelProto:
    g = Site()
    other = g.softmax(g.op("MatMul", g.input("q2", [B, H, SQ, 4]), g.input("k2", [B, H, 4, SKV])))
    p = g.op("Sub", g.softmax(g.score()), other)
    g.nodes.append(h.make_node("Identity", [g.times_v(p)], ["o"]))
    return g.model({"o": ([B, H, SQ, DV], T.FLOAT), p: (FULL, T.FLOAT)})


@refuse("difference of which one is no attention", "differential attention")
def _() -> onnx.ModelProto:
    g = Site()
    p = g.op("Sub", g.softmax(g.score()), g.softmax(g.input("logits", FULL)))
    return g.done(g.times_v(p))


# Further matmuls in the score


@match("terms/what another attention made", sites=2)
def _() -> onnx.ModelProto:
    g = Site()
    p = g.softmax(g.op("MatMul", g.input("q2", [B, H, SQ, 4]), g.input("k2", [B, H, 4, 9])))
    bias = g.op("MatMul", p, g.input("values", [B, H, 9, SKV]))
    return g.done(g.times_v(g.softmax(g.op("Add", bias, g.score()))))


@match("terms/one product for two softmaxes", sites=2)
def _() -> onnx.ModelProto:
    g = Site()
    s = g.score()
    other = g.softmax(g.op("Add", s, g.input("bias", [SQ, SKV])))
    return g.done(g.op("Add", g.times_v(g.softmax(s)), g.op("MatMul", other, g.input("w", [B, H, SKV, DV]))))


@match("terms/rope part by itself")
def _() -> onnx.ModelProto:
    g = Site()
    q2, k2 = g.input("q2", [B, H, SQ, 4]), g.input("k2", [B, 1, 4, SKV])
    plain = g.op("MatMul", g.q, g.op("Transpose", g.k, perm=[0, 1, 3, 2]))
    score = g.op("Mul", g.op("Add", plain, g.op("MatMul", q2, k2)), g.const(0.3))
    return g.done(g.times_v(g.softmax(score)))


@match("terms/rope part first")
def _() -> onnx.ModelProto:
    g = Site()
    q2, k2 = g.input("q2", [B, H, SQ, 4]), g.input("k2", [B, 1, 4, SKV])
    plain = g.op("MatMul", g.q, g.op("Transpose", g.k, perm=[0, 1, 3, 2]))
    score = g.op("Add", g.op("MatMul", q2, k2), plain)
    return g.done(g.times_v(g.softmax(score)))


@match("terms/gathered relative positions")
def _() -> onnx.ModelProto:
    g = Site()
    table = g.input("table", [H, D, 9])
    at = np.clip(np.arange(SQ)[:, None] - np.arange(SKV)[None, :] + 4, 0, 8)
    index = g.const(np.broadcast_to(at, FULL), np.int64)
    content = g.op("GatherElements", g.op("MatMul", g.q, table), index, axis=-1)
    return g.done(g.times_v(g.softmax(g.op("Add", g.op("Div", g.score(), g.const(1.7)), content))))


@match("terms/relative shift")
def _() -> onnx.ModelProto:
    g = Site()
    far = g.op("MatMul", g.q, g.input("table", [B, H, D, SKV]))
    padded = g.op("Concat", g.const(np.zeros((B, H, SQ, 1))), far, axis=-1)
    turned = g.op("Reshape", padded, g.const([B, H, SKV + 1, SQ], np.int64))
    cut = g.op("Slice", turned, *(g.const([x], np.int64) for x in (1, 1 << 62, 2, 1)))
    return g.done(g.times_v(g.softmax(g.op("Add", g.score(), g.op("Reshape", cut, g.const(FULL, np.int64))))))


@match("terms/one matmul broadcasts to the batch of the other")
def _() -> onnx.ModelProto:
    g = Graph(18)
    q, k, v = g.input("q", [1, H, SQ, D]), g.input("k", [1, H, D, SKV]), g.input("v", [B, H, SKV, DV])
    score = g.op("Add", g.op("MatMul", q, k), g.op("MatMul", g.input("q2", [B, H, SQ, 4]), g.const(np.ones((4, SKV)))))
    g.nodes.append(h.make_node("MatMul", [g.op("Softmax", score, axis=-1), v], ["o"]))
    return g.model({"o": ([B, H, SQ, DV], T.FLOAT)})


# What is refused


def _no_axis(axis: int) -> Builder:
    def build() -> onnx.ModelProto:
        g = Graph(18)
        q, k, v = (g.input(n, [B, H, 8, 8]) for n in "qkv")
        p = g.op("Softmax", g.op("MatMul", q, k), axis=axis)
        g.nodes.append(h.make_node("MatMul", [p, v], ["o"]))
        return g.model({"o": ([B, H, 8, 8], T.FLOAT)})

    return build


for _axis in (0, 1, 2, -2):
    refuse(f"softmax over axis {_axis}", "another axis than the keys")(_no_axis(_axis))


@refuse("softmax of opset 11 over two axes", "over keys and over another axis too")
def _() -> onnx.ModelProto:
    g = Site(11)
    return g.done(g.times_v(g.op("Softmax", g.score(), axis=2)))


@refuse("clip by what is no number", "Clip")
def _() -> onnx.ModelProto:
    g = Site()
    return g.done(g.times_v(g.softmax(g.op("Clip", g.score(), g.const(-1.0), g.const(float("nan"))))))


@refuse("sum over another axis", "computed from the scores")
def _() -> onnx.ModelProto:
    g = Site()
    e, _ = g.exp(g.score())
    return g.done(g.times_v(g.op("Div", e, g.reduce("ReduceSum", e, axis=-2))))


@refuse("sum over another axis of the same size", "")
def _() -> onnx.ModelProto:
    g = Graph(18)
    q, k, v = (g.input(n, [B, H, 8, 8]) for n in "qkv")
    score = g.op("MatMul", q, k)
    e = g.op("Exp", g.op("Sub", score, g.op("ReduceMax", score, g.const([-1], np.int64), keepdims=1)))
    total = g.op("ReduceSum", e, g.const([-1], np.int64), keepdims=0)
    total = g.op("Unsqueeze", total, g.const([2], np.int64))  # the row sums of queries, spread over keys
    g.nodes.append(h.make_node("MatMul", [g.op("Div", e, total), v], ["o"]))
    return g.model({"o": ([B, H, 8, 8], T.FLOAT)})


@refuse("maximum over queries", "")
def _() -> onnx.ModelProto:
    g = Site()
    s = g.score()
    e = g.op("Exp", g.op("Sub", s, g.reduce("ReduceMax", s, axis=-2)))
    return g.done(g.times_v(g.op("Div", e, g.reduce("ReduceSum", e))))


@refuse("sum of other exponentials", "")
def _() -> onnx.ModelProto:
    g = Site()
    e, _ = g.exp(g.score())
    other = g.op("Exp", g.input("bias", FULL))
    return g.done(g.times_v(g.op("Div", e, g.reduce("ReduceSum", other))))


@refuse("masked exponentials divided by their sum and more", "something else than their sum")
def _() -> onnx.ModelProto:
    g = Site()
    e, _ = g.exp(g.score())
    masked = g.op("Mul", e, g.op("Cast", g.input("visible", [B, 1, 1, SKV], T.BOOL), to=T.FLOAT))
    total = g.op("Add", g.reduce("ReduceSum", masked), g.const(1e-6))
    return g.done(g.times_v(g.op("Div", masked, total)))


@refuse("sum plus a large number", "")
def _() -> onnx.ModelProto:
    g = Site()
    e, _ = g.exp(g.score())
    return g.done(g.times_v(g.op("Div", e, g.op("Add", g.reduce("ReduceSum", e), g.const(0.5)))))


def _cut(first: bool, start: int, end: int) -> Builder:
    def build() -> onnx.ModelProto:
        g = Site()
        column = g.op("Expand", g.input("sink", [1, H, 1, 1]), g.const([B, H, SQ, 1], np.int64))
        s = g.score()
        p = g.softmax(g.op("Concat", *((column, s) if first else (s, column)), axis=-1))
        p = g.op("Slice", p, *(g.const([x], np.int64) for x in (start, end, 3)))
        return g.done(g.times_v(p))

    return build


refuse("sink cut off the wrong side", "does not cut off just the sink")(_cut(False, 1, 1 << 62))
refuse("sink first, last column cut off", "does not cut off just the sink")(_cut(True, 0, -1))


@refuse("sink not cut off", "not cut off")
def _() -> onnx.ModelProto:
    g = Graph(18)
    q, k, v = g.input("q", [B, H, SQ, D]), g.input("k", [B, H, D, SKV - 1]), g.input("v", [B, H, SKV, DV])
    score = g.op("Concat", g.op("MatMul", q, k), g.input("sink", [B, H, SQ, 1]), axis=-1)
    g.nodes.append(h.make_node("MatMul", [g.op("Softmax", score, axis=-1), v], ["o"]))
    return g.model({"o": ([B, H, SQ, DV], T.FLOAT)})


refuse("guard by a mask of its own", "does not have as its only mask")(
    on_probabilities(lambda g, p, _: g.op("Where", g.input("visible", [SQ, SKV], T.BOOL), p, g.const(0.0)))
)
match("guard/by the mask, moderate fill")(on_probabilities(_by_same_mask, fill=-1e4))
refuse("guard with another number", "several nodes")(
    on_probabilities(lambda g, p, _: g.op("Where", g.op("IsNaN", p), g.const(0.1), p))
)
refuse("guard the wrong way round", "several nodes")(
    on_probabilities(lambda g, p, _: g.op("Where", g.op("IsNaN", p), p, g.const(0.0)))
)
refuse("mask from the probabilities", "several nodes")(
    on_probabilities(lambda g, p, _: g.op("Where", g.op("Greater", p, g.const(0.1)), p, g.const(0.0)), masked=False)
)
refuse("mask from the scores behind the softmax", "condition on the scores")(
    on_probabilities(lambda g, p, s: g.op("Where", g.op("Greater", s, g.const(0.1)), p, g.const(0.0)), masked=False)
)
match("probability/times a tensor of weights")(on_probabilities(_times([SQ, SKV])))
refuse("weights divided by the old sum", "several nodes")(
    on_probabilities(lambda g, p, _: g.op("Div", g.op("Mul", p, g.input("w", [SQ, SKV])), g.reduce("ReduceSum", p)))
)


def _renormalised_badly(g: Site, p: str, _: str) -> str:
    masked = g.op("Mul", p, g.op("Cast", g.input("visible", [SQ, SKV], T.BOOL), to=T.FLOAT))
    return g.op("Div", masked, g.op("Add", g.reduce("ReduceSum", masked), g.const(1e-3)))


def _renormalised_half_guarded(g: Site, p: str, _: str) -> str:
    """A row of NaN stays NaN, where one whose sum is zero is zero."""
    masked = g.op("Mul", p, g.op("Cast", g.input("visible", [SQ, SKV], T.BOOL), to=T.FLOAT))
    total = g.reduce("ReduceSum", masked)
    some = g.op("Greater", total, g.const(0.0))
    return g.op("Div", masked, g.op("Where", some, total, g.const(1.0)))


refuse("masked, divided by the sum or one", "rows of NaN stay NaN")(on_probabilities(_renormalised_half_guarded))


def _renormalised_above(g: Site, p: str, _: str) -> str:
    """Rows of which less than a tenth is left become zero."""
    masked = g.op("Mul", p, g.op("Cast", g.input("visible", [SQ, SKV], T.BOOL), to=T.FLOAT))
    total = g.reduce("ReduceSum", masked)
    some = g.op("Greater", total, g.const(0.1))
    return g.op("Where", some, g.op("Div", masked, g.op("Where", some, total, g.const(1.0))), g.const(0.0))


refuse("masked, divided by a sum above a threshold", "something else than their sum")(
    on_probabilities(_renormalised_above)
)
refuse("masked, divided by the sum and more", "something else than their sum")(on_probabilities(_renormalised_badly))


def _weighted_anew(g: Site, p: str, _: str) -> str:
    weighted = g.op("Mul", p, g.input("w", [SQ, SKV]))
    return g.op("Div", weighted, g.reduce("ReduceSum", weighted))


refuse("weighted by any numbers, divided anew", "not provably 0 or 1")(on_probabilities(_weighted_anew))


def _guarded_too_early(g: Site, p: str, s: str) -> str:
    """A row whose last keys only the second mask drops is 0 / 0, of which the scores know nothing."""
    return _by_maximum(g, _renormalised("where")(g, p, s), s)


refuse("masked anew, guarded by the scores before", "before they were masked anew")(
    on_probabilities(_guarded_too_early)
)


@match("probability/an output too")
def _() -> onnx.ModelProto:
    g = Site()
    p = g.softmax(g.score())
    g.nodes.append(h.make_node("Identity", [g.times_v(p)], ["o"]))
    return g.model({"o": ([B, H, SQ, DV], T.FLOAT), p: (FULL, T.FLOAT)})


@refuse("probabilities are also summed", "several nodes")
def _() -> onnx.ModelProto:
    g = Site()
    p = g.softmax(g.score())
    return g.done(g.op("Add", g.times_v(p), g.reduce("ReduceMax", p)))


@refuse("probabilities rounded to half and widened again", "widened again")
def _() -> onnx.ModelProto:
    g = Site()
    p = g.op("Cast", g.op("Cast", g.softmax(g.score()), to=T.FLOAT16), to=T.FLOAT)
    return g.done(g.times_v(p))


@refuse("top k of the scores", "top-k threshold")
def _() -> onnx.ModelProto:
    g = Site()
    s = g.score()
    least = g.op("ReduceMin", g.op("TopK", s, g.const([3], np.int64), outs=2), g.const([-1], np.int64))
    return g.done(g.times_v(g.softmax(g.op("Where", g.op("Less", s, least), g.const(-np.inf), s))))


refuse("linear attention", "linear attention")(in_place_of_softmax(lambda g, s: s))


@refuse("talking heads behind the softmax", "talking heads")
def _() -> onnx.ModelProto:
    g = Site()
    p = g.op("Transpose", g.softmax(g.score()), perm=[0, 2, 3, 1])
    p = g.op("Transpose", g.op("MatMul", p, g.const(np.eye(H) + 0.1)), perm=[0, 3, 1, 2])
    return g.done(g.times_v(p))


@refuse("talking heads before the softmax", "talking heads")
def _() -> onnx.ModelProto:
    g = Site()
    s = g.op("Transpose", g.score(), perm=[0, 2, 3, 1])
    s = g.op("Transpose", g.op("MatMul", s, g.const(np.eye(H) + 0.1)), perm=[0, 3, 1, 2])
    return g.done(g.times_v(g.softmax(s)))


@refuse("a convolution over heads behind the softmax", "mixed by a convolution")
def _() -> onnx.ModelProto:
    g = Site()
    weight = (np.eye(H) + 0.1).reshape(H, H, 1, 1)
    return g.done(g.times_v(g.op("Conv", g.softmax(g.score()), g.const(weight))))


@refuse("the mean distance of bins, as detectors have it", "feeds Conv, not a matmul with V")
def _() -> onnx.ModelProto:
    g = Graph(18)
    p = g.op("Softmax", g.op("MatMul", g.input("q", [1, 6, 4, 8]), g.const(np.ones((8, 5)))), axis=1)
    g.nodes.append(h.make_node("Conv", [p, g.const(np.arange(6.0).reshape(1, 6, 1, 1))], ["o"]))
    return g.model({"o": ([1, 1, 4, 5], T.FLOAT)})


@refuse("router of experts", "TopK")
def _() -> onnx.ModelProto:
    g = Graph(18)
    p = g.op("Softmax", g.op("MatMul", g.input("q", [4, 8]), g.const(np.ones((8, 6)))), axis=-1)
    g.nodes.append(h.make_node("TopK", [p, g.const([2], np.int64)], ["o", "i"]))
    return g.model({"o": ([4, 2], T.FLOAT), "i": ([4, 2], T.INT64)})


@match("scores are an output")
def _() -> onnx.ModelProto:
    g = Site()
    s = g.score()
    g.nodes.append(h.make_node("Identity", [g.times_v(g.softmax(s))], ["o"]))
    return g.model({"o": ([B, H, SQ, DV], T.FLOAT), s: (FULL, T.FLOAT)})


@refuse("scores are also summed", "computed twice")
def _() -> onnx.ModelProto:
    g = Site()
    s = g.score()
    g.nodes.append(h.make_node("ReduceMax", [s], ["most"]))
    g.nodes.append(h.make_node("Identity", [g.times_v(g.softmax(s))], ["o"]))
    return g.model({"o": ([B, H, SQ, DV], T.FLOAT), "most": ([1, 1, 1, 1], T.FLOAT)})


NOTHING_HERE: dict[str, Builder] = {}
"""Graphs in which nothing is to be found and nothing to be reported."""


def silent(name: str) -> Callable[[Builder], Builder]:
    def register(build: Builder) -> Builder:
        NOTHING_HERE[name] = build
        return build

    return register


def _mlp(kind: str) -> Builder:
    def build() -> onnx.ModelProto:
        g = Graph(20)
        x = g.op("MatMul", g.input("q", [B, SQ, D]), g.const(np.ones((D, 16))))
        x = g.op("MatMul", g.op(kind, x), g.op("Transpose", g.const(np.ones((D, 16))), perm=[1, 0]))
        g.nodes.append(h.make_node("Identity", [x], ["o"]))
        return g.model({"o": ([B, SQ, D], T.FLOAT)})

    return build


for _kind in ("Relu", "Gelu", "Sigmoid", "Tanh"):
    NOTHING_HERE[f"mlp with {_kind}"] = _mlp(_kind)


@silent("gated mlp")
def _() -> onnx.ModelProto:
    g = Graph(18)
    x = g.input("q", [B, SQ, D])
    gate = g.op("Sigmoid", g.op("MatMul", x, g.const(np.ones((D, 16)))))
    up = g.op("Mul", gate, g.op("MatMul", x, g.const(np.ones((D, 16)))))
    g.nodes.append(h.make_node("MatMul", [up, g.const(np.ones((16, D)))], ["o"]))
    return g.model({"o": ([B, SQ, D], T.FLOAT)})


@silent("exponentials that belong to no softmax")
def _() -> onnx.ModelProto:
    g = Graph(18)
    x = g.input("q", [B, SQ, D])
    e = g.op("Exp", g.op("Sub", x, g.op("ReduceMax", x, g.const([-1], np.int64), keepdims=1)))
    g.nodes.append(h.make_node("Log", [g.op("ReduceSum", e, g.const([-1], np.int64), keepdims=1)], ["o"]))
    return g.model({"o": ([B, SQ, 1], T.FLOAT)})
