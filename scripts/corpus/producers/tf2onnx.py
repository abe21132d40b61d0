"""tf2onnx on attention written by hand in TensorFlow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from corpus.case import Case, Made
from corpus.feeds import Run, runs_of

B, S, T, H, D = 2, 9, 11, 4, 8
Shape = tuple[int | None, ...]
FIRST: tuple[Shape, ...] = ((B, H, S, D), (B, H, T, D), (B, H, T, D))
FREE: tuple[Shape, ...] = ((None, H, None, D), (None, H, None, D), (None, H, None, D))
LAST: tuple[Shape, ...] = ((None, S, H, D), (None, T, H, D), (None, T, H, D))
SQUARE: tuple[Shape, ...] = ((None, H, S, D),) * 3
TOKENS: tuple[Shape, ...] = ((None, S, H * D),)
FREE_TOKENS: tuple[Shape, ...] = ((None, None, H * D),)
RUNS = (Run("inputs", length=S), Run("more", batch=3, length=5))


@dataclass(frozen=True)
class Program:
    """A function of tensors with their shapes, of which those of `types` are not f32."""

    name: str
    function: Callable[..., Any]
    shapes: tuple[Shape, ...]
    attentions: int = 1
    why: str = ""
    types: tuple[Any, ...] = ()
    opset: int = 18


def matmul(q: Any, k: Any, v: Any) -> Any:
    scores = tf.matmul(q, k, transpose_b=True) / math.sqrt(D)
    return tf.matmul(tf.nn.softmax(scores, axis=-1), v)


def scaled_first(q: Any, k: Any, v: Any) -> Any:
    size = tf.cast(tf.shape(k)[-1], tf.float32)
    return tf.matmul(tf.nn.softmax(tf.matmul(q * tf.math.rsqrt(size), k, transpose_b=True)), v)


def transposed(q: Any, k: Any, v: Any) -> Any:
    scores = tf.matmul(q, tf.transpose(k, [0, 1, 3, 2])) / tf.sqrt(float(D))
    return tf.matmul(tf.nn.softmax(scores), v)


def einsum(q: Any, k: Any, v: Any) -> Any:
    scores = tf.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(D)
    return tf.einsum("bhqk,bkhd->bqhd", tf.nn.softmax(scores), v)


def einsum_keys_first(q: Any, k: Any, v: Any) -> Any:
    scores = tf.einsum("bkhd,bqhd->bhqk", k, q * 0.25)
    return tf.einsum("bhqk,bkhd->bqhd", tf.nn.softmax(scores), v)


def tutorial(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """As TensorFlow's tutorial on transformers has it: a mask of ones that is added as -1e9."""
    scores = tf.matmul(q, k, transpose_b=True) / tf.math.sqrt(tf.cast(tf.shape(k)[-1], tf.float32))
    return tf.matmul(tf.nn.softmax(scores + mask * -1e9, axis=-1), v)


def where(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = tf.matmul(q, k, transpose_b=True) / math.sqrt(D)
    return tf.matmul(tf.nn.softmax(tf.where(mask, scores, -1e9)), v)


def where_infinite(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = tf.matmul(q, k, transpose_b=True) / math.sqrt(D)
    return tf.matmul(tf.nn.softmax(tf.where(mask, scores, tf.constant(-np.inf, tf.float32))), v)


def causal_band(q: Any, k: Any, v: Any) -> Any:
    scores = tf.matmul(q, k, transpose_b=True) / math.sqrt(D)
    keep = tf.linalg.band_part(tf.ones((tf.shape(q)[2], tf.shape(k)[2])), -1, 0)
    return tf.matmul(tf.nn.softmax(scores - 1e9 * (1.0 - keep)), v)


def causal_range(q: Any, k: Any, v: Any) -> Any:
    scores = tf.matmul(q, k, transpose_b=True) / math.sqrt(D)
    rows, columns = tf.range(tf.shape(q)[2])[:, None], tf.range(tf.shape(k)[2])[None, :]
    return tf.matmul(tf.nn.softmax(tf.where(rows >= columns, scores, -1e9)), v)


def by_hand(q: Any, k: Any, v: Any) -> Any:
    scores = tf.matmul(q, k, transpose_b=True) / math.sqrt(D)
    exponentials = tf.exp(scores - tf.reduce_max(scores, axis=-1, keepdims=True))
    return tf.matmul(exponentials / tf.reduce_sum(exponentials, axis=-1, keepdims=True), v)


def log_softmax(q: Any, k: Any, v: Any) -> Any:
    return tf.matmul(tf.exp(tf.nn.log_softmax(tf.matmul(q, k, transpose_b=True) * 0.3)), v)


def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return tf.matmul(tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * 0.3 + bias), v)


def softcapped(q: Any, k: Any, v: Any) -> Any:
    return tf.matmul(tf.nn.softmax(20.0 * tf.tanh(tf.matmul(q, k, transpose_b=True) / 20.0)), v)


def repeated(q: Any, k: Any, v: Any) -> Any:
    return matmul(q, tf.repeat(k, 2, axis=1), tf.repeat(v, 2, axis=1))


def stepped(q: Any, k: Any, v: Any, past_k: Any, past_v: Any) -> Any:
    keys, values = tf.concat([past_k, k], axis=2), tf.concat([past_v, v], axis=2)
    return matmul(q, keys, values), keys, values


def multi_head(x: Any) -> Any:
    """Projections, heads split and merged."""
    rng = np.random.default_rng(0)
    size = H * D
    weights = [tf.constant(rng.standard_normal((size, size)) / math.sqrt(size), tf.float32) for _ in range(4)]

    def split(y: Any) -> Any:
        return tf.transpose(tf.reshape(y, (tf.shape(x)[0], -1, H, D)), [0, 2, 1, 3])

    q, k, v = (split(tf.matmul(x, weight)) for weight in weights[:3])
    merged = tf.reshape(tf.transpose(matmul(q, k, v), [0, 2, 1, 3]), (tf.shape(x)[0], -1, size))
    return tf.matmul(merged, weights[3])


def multi_head_fused(x: Any) -> Any:
    """One projection for q, k and v."""
    rng = np.random.default_rng(0)
    size = H * D
    weight = tf.constant(rng.standard_normal((size, 3 * size)) / math.sqrt(size), tf.float32)
    parts = tf.split(tf.matmul(x, weight), 3, axis=-1)
    q, k, v = (tf.transpose(tf.reshape(y, (-1, tf.shape(x)[1], H, D)), [0, 2, 1, 3]) for y in parts)
    return tf.reshape(tf.transpose(matmul(q, k, v), [0, 2, 1, 3]), (-1, tf.shape(x)[1], size))


def linear(q: Any, k: Any, v: Any) -> Any:
    return tf.matmul(tf.nn.elu(q) + 1, tf.matmul(tf.nn.elu(k) + 1, v, transpose_a=True))


MASK: Shape = (None, 1, S, T)
TYPES = (tf.float32, tf.float32, tf.float32, tf.bool)
PROGRAMS: tuple[Program, ...] = (
    Program("matmul", matmul, FIRST),
    Program("matmul-free", matmul, FREE),
    Program("matmul-batch", matmul, ((None, H, S, D), (None, H, T, D), (None, H, T, D))),
    Program("matmul-opset13", matmul, FIRST, opset=13),
    Program("matmul-one-head", matmul, ((None, S, D), (None, T, D), (None, T, D))),
    Program("scaled-first", scaled_first, FIRST),
    Program("scaled-first-free", scaled_first, FREE),
    Program("transposed", transposed, FIRST),
    Program("einsum", einsum, LAST),
    Program("einsum-static", einsum, ((B, S, H, D), (B, T, H, D), (B, T, H, D))),
    Program("einsum-free", einsum, ((None, None, H, D),) * 3),
    Program("einsum-keys-first", einsum_keys_first, LAST),
    Program("tutorial", tutorial, (*FIRST, (B, 1, 1, T))),
    Program("tutorial-free", tutorial, (*FREE, (None, 1, 1, None))),
    Program("where", where, ((None, H, S, D), (None, H, T, D), (None, H, T, D), MASK), types=TYPES),
    Program("where-static", where, (*FIRST, (B, 1, S, T)), types=TYPES),
    Program("where-infinite", where_infinite, (*FIRST, (B, 1, S, T)), types=TYPES),
    Program("causal-band", causal_band, SQUARE),
    Program("causal-range", causal_range, SQUARE),
    Program("causal-range-free", causal_range, FREE),
    Program("by-hand", by_hand, FIRST),
    Program("by-hand-free", by_hand, FREE),
    Program("log-softmax", log_softmax, FIRST),
    Program("biased", biased, (*FIRST, (1, H, S, T))),
    Program("softcapped", softcapped, FIRST),
    Program("repeated", repeated, ((None, H, S, D), (None, 2, T, D), (None, 2, T, D))),
    Program("step", stepped, (*((None, H, 1, D),) * 3, (None, H, None, D), (None, H, None, D))),
    Program("multi-head", multi_head, TOKENS),
    Program("multi-head-free", multi_head, FREE_TOKENS),
    Program("multi-head-fused", multi_head_fused, TOKENS),
    Program("multi-head-fused-free", multi_head_fused, FREE_TOKENS),
    Program("linear", linear, FIRST, 0, "linear attention has no softmax over keys"),
)


def cases() -> Iterator[Case]:
    for program in PROGRAMS:
        yield Case(program.name, partial(export, program))


def export(program: Program, folder: Path) -> Iterable[Made]:
    """What tf2onnx.convert.from_function makes of a tf.function."""
    import tf2onnx
    from keras.src.export.tf2onnx_lib import patch_tf2onnx

    patch_tf2onnx()  # Keras's repair of what tf2onnx still takes from NumPy 1
    types = program.types or (tf.float32,) * len(program.shapes)
    specs = [tf.TensorSpec(s, t, name=f"in_{n}") for n, (s, t) in enumerate(zip(program.shapes, types, strict=True))]
    model, _ = tf2onnx.convert.from_function(tf.function(program.function), specs, opset=program.opset)
    yield Made(program.name, model, program.attentions, program.why, runs_of(model, RUNS))
