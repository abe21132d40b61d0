"""Attention written by hand with the tools there are for that: onnx.parser's text, onnxscript, spox and ndonnx."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ndonnx
import numpy as np
import onnx
import onnxscript
import spox
import spox.opset.ai.onnx.v21 as op21
from onnxscript import opset18 as op

from corpus.case import Case, Made
from corpus.feeds import Run, runs_of

SIZES = {"B": 2, "S": 7, "T": 9, "H": 4, "G": 2, "P": 5}
RUNS = (Run("inputs", sizes=SIZES), Run("more", sizes=SIZES | {"B": 3, "S": 4, "T": 6}))
QKV = "float[B,4,S,8] q, float[B,4,T,8] k, float[B,4,T,8] v"
TEXTS: dict[str, tuple[str, str]] = {
    "plain": (
        QKV,
        """
        kt = Transpose <perm = [0, 1, 3, 2]> (k)
        s = MatMul(q, kt)
        c = Constant <value_float = 0.35> ()
        t = Mul(s, c)
        p = Softmax <axis = -1> (t)
        y = MatMul(p, v)
        """,
    ),
    "einsum": (
        QKV,
        """
        s = Einsum <equation = "bhqd,bhkd->bhqk"> (q, k)
        c = Constant <value_float = 2.8284271> ()
        t = Div(s, c)
        p = Softmax <axis = 3> (t)
        y = Einsum <equation = "bhqk,bhkd->bhqd"> (p, v)
        """,
    ),
    "added-mask": (
        f"{QKV}, float[B,1,1,T] mask",
        """
        kt = Transpose <perm = [0, 1, 3, 2]> (k)
        s = MatMul(q, kt)
        t = Add(s, mask)
        p = Softmax (t)
        y = MatMul(p, v)
        """,
    ),
    "where": (
        f"{QKV}, bool[B,1,S,T] keep_mask",
        """
        kt = Transpose <perm = [0, 1, 3, 2]> (k)
        s = MatMul(q, kt)
        low = Constant <value_float = -3.4e38> ()
        t = Where(keep_mask, s, low)
        p = Softmax (t)
        y = MatMul(p, v)
        """,
    ),
    "spelled-out": (
        QKV,
        """
        kt = Transpose <perm = [0, 1, 3, 2]> (k)
        s = MatMul(q, kt)
        axis = Constant <value_ints = [-1]> ()
        m = ReduceMax (s, axis)
        d = Sub(s, m)
        e = Exp(d)
        z = ReduceSum (e, axis)
        p = Div(e, z)
        y = MatMul(p, v)
        """,
    ),
    "divided-late": (
        QKV,
        """
        kt = Transpose <perm = [0, 1, 3, 2]> (k)
        s = MatMul(q, kt)
        axis = Constant <value_ints = [-1]> ()
        m = ReduceMax (s, axis)
        d = Sub(s, m)
        e = Exp(d)
        z = ReduceSum (e, axis)
        w = MatMul(e, v)
        y = Div(w, z)
        """,
    ),
    "log-softmax": (
        QKV,
        """
        s = Einsum <equation = "bhqd,bhkd->bhqk"> (q, k)
        l = LogSoftmax (s)
        p = Exp(l)
        y = MatMul(p, v)
        """,
    ),
    "keys-first": (
        QKV,
        """
        qt = Transpose <perm = [0, 1, 3, 2]> (q)
        s = MatMul(k, qt)
        p = Softmax <axis = 2> (s)
        pt = Transpose <perm = [0, 1, 3, 2]> (p)
        y = MatMul(pt, v)
        """,
    ),
    "one-head": (
        "float[S,16] q, float[T,16] k, float[T,16] v",
        """
        kt = Transpose <perm = [1, 0]> (k)
        s = MatMul(q, kt)
        p = Softmax <axis = 1> (s)
        y = MatMul(p, v)
        """,
    ),
    "op": (QKV, "y = Attention (q, k, v)"),
    "op-causal": ("float[B,4,S,8] q, float[B,4,S,8] k, float[B,4,S,8] v", "y = Attention <is_causal = 1> (q, k, v)"),
    "op-grouped": ("float[B,4,S,8] q, float[B,2,T,8] k, float[B,2,T,8] v", "y = Attention (q, k, v)"),
    "op-3d": (
        "float[B,S,32] q, float[B,T,32] k, float[B,T,32] v",
        "y = Attention <q_num_heads = 4, kv_num_heads = 4> (q, k, v)",
    ),
}
"""Inputs and nodes of a graph whose result is y; Softmax without an axis is over the last one."""


def cases() -> Iterator[Case]:
    for name in TEXTS:
        yield Case(f"parser-{name}", partial(parsed, name))
    made: tuple[tuple[str, Callable[[], onnx.ModelProto]], ...] = (
        ("onnxscript-multi-head", onnxscript_multi_head),
        ("onnxscript-causal", onnxscript_causal),
        ("onnxscript-grouped", onnxscript_grouped),
        ("onnxscript-cache", onnxscript_cache),
        ("onnxscript-function", onnxscript_function),
        ("spox-plain", partial(spox_model, False, False)),
        ("spox-mask", partial(spox_model, True, False)),
        ("spox-spelled-out", partial(spox_model, False, True)),
        ("ndonnx-plain", partial(ndonnx_model, False)),
        ("ndonnx-causal", partial(ndonnx_model, True)),
    )
    for name, build in made:
        yield Case(name, partial(finished, name, build))


def parsed(name: str, folder: Path) -> Iterable[Made]:
    """A model from onnx.parser's text."""
    inputs, nodes = TEXTS[name]
    shape = "B,S,32" if name.endswith("3d") else "B,4,S,8"
    if name == "one-head":
        shape = "S,16"
    text = f'<ir_version: 10, opset_import: ["" : 23]> g ({inputs}) => (float[{shape}] y) {{{nodes}}}'
    model = onnx.parser.parse_model(text)
    yield Made(f"parser-{name}", model, 1, "one by hand", runs_of(model, RUNS))


def finished(name: str, build: Callable[[], onnx.ModelProto], folder: Path) -> Iterable[Made]:
    model = build()
    yield Made(name, model, 1, "one by hand", runs_of(model, RUNS))


B, S, T, P = "B", "S", "T", "P"
"""Symbols of onnxscript's annotations."""


@onnxscript.script()
def multi_head(x: onnxscript.FLOAT[B, S, 32], w: onnxscript.FLOAT[32, 96]) -> onnxscript.FLOAT[B, S, 32]:
    q, k, v = op.Split(op.MatMul(x, w), num_outputs=3, axis=-1)
    heads = op.Constant(value_ints=[0, 0, 4, 8])
    qh = op.Transpose(op.Reshape(q, heads), perm=[0, 2, 1, 3])
    kt = op.Transpose(op.Reshape(k, heads), perm=[0, 2, 3, 1])
    vh = op.Transpose(op.Reshape(v, heads), perm=[0, 2, 1, 3])
    p = op.Softmax(op.Div(op.MatMul(qh, kt), 2.8284271), axis=-1)
    merged = op.Transpose(op.MatMul(p, vh), perm=[0, 2, 1, 3])
    return op.Reshape(merged, op.Constant(value_ints=[0, 0, 32]))


@onnxscript.script()
def causal(
    q: onnxscript.FLOAT[B, 4, S, 8],
    k: onnxscript.FLOAT[B, 4, S, 8],
    v: onnxscript.FLOAT[B, 4, S, 8],
) -> onnxscript.FLOAT[B, 4, S, 8]:
    s = op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2]))
    length = op.Squeeze(op.Shape(q, start=2, end=3))
    places = op.Range(0, length, 1)
    keep = op.LessOrEqual(op.Unsqueeze(places, [0]), op.Unsqueeze(places, [1]))
    return op.MatMul(op.Softmax(op.Where(keep, s, -10000.0), axis=-1), v)


@onnxscript.script()
def grouped(
    q: onnxscript.FLOAT[B, 4, S, 8],
    k: onnxscript.FLOAT[B, 2, T, 8],
    v: onnxscript.FLOAT[B, 2, T, 8],
) -> onnxscript.FLOAT[B, 4, S, 8]:
    split = op.Constant(value_ints=[0, 2, 2, -1, 8])
    qg = op.Reshape(q, split)
    s = op.Mul(op.MatMul(qg, op.Transpose(op.Unsqueeze(k, [2]), perm=[0, 1, 2, 4, 3])), 0.35355338)
    y = op.MatMul(op.Softmax(s, axis=-1), op.Unsqueeze(v, [2]))
    return op.Reshape(y, op.Constant(value_ints=[0, 4, -1, 8]))


@onnxscript.script()
def cache(
    q: onnxscript.FLOAT[B, 4, 1, 8],
    k: onnxscript.FLOAT[B, 4, 1, 8],
    v: onnxscript.FLOAT[B, 4, 1, 8],
    past_k: onnxscript.FLOAT[B, 4, P, 8],
    past_v: onnxscript.FLOAT[B, 4, P, 8],
):
    keys = op.Concat(past_k, k, axis=2)
    values = op.Concat(past_v, v, axis=2)
    s = op.MatMul(q, op.Transpose(keys, perm=[0, 1, 3, 2]))
    y = op.MatMul(op.Softmax(op.Mul(s, 0.35), axis=-1), values)
    return y, keys, values


@onnxscript.script(onnxscript.values.Opset("corpus", 1), default_opset=op)
def attend(q, k, v):
    s = op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2]))
    return op.MatMul(op.Softmax(op.Mul(s, 0.35), axis=-1), v)


@onnxscript.script()
def caller(
    q: onnxscript.FLOAT[B, 4, S, 8],
    k: onnxscript.FLOAT[B, 4, T, 8],
    v: onnxscript.FLOAT[B, 4, T, 8],
) -> onnxscript.FLOAT[B, 4, S, 8]:
    return attend(q, k, v)


def onnxscript_multi_head() -> onnx.ModelProto:
    return multi_head.to_model_proto()


def onnxscript_causal() -> onnx.ModelProto:
    return causal.to_model_proto()


def onnxscript_grouped() -> onnx.ModelProto:
    return grouped.to_model_proto()


def onnxscript_cache() -> onnx.ModelProto:
    return cache.to_model_proto()


def onnxscript_function() -> onnx.ModelProto:
    return caller.to_model_proto()


def spox_model(mask: bool, spelled_out: bool) -> onnx.ModelProto:
    """Attention by spox's operators."""
    shapes = {"q": ("B", 4, "S", 8), "k": ("B", 4, "T", 8), "v": ("B", 4, "T", 8)}
    given = {name: spox.argument(spox.Tensor(np.float32, shape)) for name, shape in shapes.items()}
    scores = op21.matmul(given["q"], op21.transpose(given["k"], perm=(0, 1, 3, 2)))
    scores = op21.mul(scores, op21.const(np.float32(0.35)))
    if mask:
        given["mask"] = spox.argument(spox.Tensor(np.float32, ("B", 1, "S", "T")))
        scores = op21.add(scores, given["mask"])
    if spelled_out:
        axes = op21.const(np.array([-1], np.int64))
        exponentials = op21.exp(op21.sub(scores, op21.reduce_max(scores, axes)))
        probabilities = op21.div(exponentials, op21.reduce_sum(exponentials, axes))
    else:
        probabilities = op21.softmax(scores, axis=-1)
    return spox.build(given, {"y": op21.matmul(probabilities, given["v"])})


def ndonnx_model(is_causal: bool) -> onnx.ModelProto:
    """Attention by ndonnx's array functions, which have no softmax."""
    shapes: dict[str, Any] = {"q": ("B", 4, "S", 8), "k": ("B", 4, "T", 8), "v": ("B", 4, "T", 8)}
    if is_causal:
        shapes = {name: (2, 4, 7, 8) for name in shapes}
    given = {name: ndonnx.argument(shape=shape, dtype=ndonnx.float32) for name, shape in shapes.items()}
    scores = ndonnx.matmul(given["q"], ndonnx.matrix_transpose(given["k"])) * 0.35
    if is_causal:
        places = ndonnx.arange(7)
        scores = ndonnx.where(places[:, None] >= places[None, :], scores, ndonnx.asarray(-1e9, dtype=ndonnx.float32))
    exponentials = ndonnx.exp(scores - ndonnx.max(scores, axis=-1, keepdims=True))
    probabilities = exponentials / ndonnx.sum(exponentials, axis=-1, keepdims=True)
    return ndonnx.build(given, {"y": ndonnx.matmul(probabilities, given["v"])})
