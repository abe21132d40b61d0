"""jax2onnx: attention as jnp spells it, as jax.nn.dot_product_attention, and as the modules of flax and equinox."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import equinox
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax2onnx import to_onnx

from corpus.case import Case, Feeds, Made
from corpus.feeds import Run, runs_of

Shape = tuple[int | str, ...]
B, S, T, H, D = 2, 9, 11, 4, 8
HEADS: Shape = (B, S, H, D)
KEYS: Shape = (B, T, H, D)
TOKENS: Shape = (B, S, H * D)
SIZES = {"B": 3, "S": 9, "T": 11}


@dataclass(frozen=True)
class Program:
    """A function of arrays, made by `make` when it is needed. A mask (bool) has the type np.bool_."""

    name: str
    make: Callable[[], Callable[..., Any]]
    shapes: tuple[Shape, ...]
    attentions: int = 1
    why: str = ""
    types: tuple[Any, ...] = ()
    opset: int = 23
    options: Mapping[str, Any] = field(default_factory=dict)


def raw(
    *,
    causal: bool = False,
    mask: bool = False,
    bias: bool = False,
    fill: float = -jnp.inf,
    softmax: str = "nn",
    order: str = "bqhd,bkhd->bhqk",
    window: int = 0,
    softcap: float = 0.0,
    where: bool = False,
) -> Callable[..., Any]:
    """Attention by hand on (batch, length, heads, head dim)."""

    def attend(q: Any, k: Any, v: Any, more: Any = None) -> Any:
        scores = jnp.einsum(order, q, k) / math.sqrt(q.shape[-1])
        if softcap:
            scores = softcap * jnp.tanh(scores / softcap)
        if bias:
            scores = scores + more
        keep = more if mask else None
        if causal or window:
            rows, columns = jnp.arange(q.shape[1])[:, None], jnp.arange(k.shape[1])[None, :]
            keep = columns <= rows
            keep = keep & (rows - columns < window) if window else keep
        if keep is not None and not where:
            scores = jnp.where(keep, scores, fill)
        return jnp.einsum("bhqk,bkhd->bqhd", probabilities(scores, softmax, keep if where else None), v)

    return attend


def probabilities(scores: Any, softmax: str, where: Any) -> Any:
    """A softmax over the last axis, in one of its spellings."""
    if softmax == "nn":
        return jax.nn.softmax(scores, axis=-1, where=where)
    if softmax == "log":
        return jnp.exp(jax.nn.log_softmax(scores, axis=-1))
    if softmax == "logsumexp":
        return jnp.exp(scores - jax.nn.logsumexp(scores, axis=-1, keepdims=True))
    if softmax == "f32":
        return jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(scores.dtype)
    exponentials = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def heads_first(q: Any, k: Any, v: Any) -> Any:
    """On (batch, heads, length, head dim), by matmul."""
    return jax.nn.softmax(q @ k.swapaxes(-1, -2) * 0.25, axis=-1) @ v


def keys_first(q: Any, k: Any, v: Any) -> Any:
    """Scores transposed, the softmax over their second-last axis."""
    return jnp.einsum("bhkq,bhkd->bhqd", jax.nn.softmax(jnp.einsum("bhkd,bhqd->bhkq", k, q), axis=-2), v)


def grouped(q: Any, k: Any, v: Any) -> Any:
    """Query heads in groups of two, on (batch, length, heads, head dim)."""
    batch, length, heads, size = q.shape
    split = q.reshape(batch, length, heads // 2, 2, size)
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", split, k) / math.sqrt(size)
    return jnp.einsum("bhgqk,bkhd->bqhgd", jax.nn.softmax(scores, axis=-1), v).reshape(q.shape)


def repeated(q: Any, k: Any, v: Any) -> Any:
    """Key heads repeated by jnp.repeat."""
    return raw()(q, jnp.repeat(k, 2, axis=2), jnp.repeat(v, 2, axis=2))


def two_axes(q: Any, k: Any, v: Any) -> Any:
    """An image's rows and columns as keys, in a softmax over both axes: (batch, rows, columns, dim)."""
    scores = jnp.einsum("bijd,bkld->bijkl", q, k) / math.sqrt(q.shape[-1])
    weights = jnp.exp(scores - jax.nn.logsumexp(scores, axis=(-2, -1), keepdims=True))
    return jnp.einsum("bijkl,bkld->bijd", weights, v)


def scanned(x: Any, weights: Any) -> Any:
    """Self attention of one head in each step of a scan over layers."""

    def layer(x: Any, weight: Any) -> tuple[Any, None]:
        scores = x @ weight @ x.swapaxes(-1, -2) / math.sqrt(x.shape[-1])
        return x + jax.nn.softmax(scores, axis=-1) @ x, None

    return jax.lax.scan(layer, x, weights)[0]


def looped(x: Any, weight: Any) -> Any:
    """The same in a fori_loop."""
    return jax.lax.fori_loop(0, 3, lambda _, x: x + jax.nn.softmax(x @ weight @ x.swapaxes(-1, -2), axis=-1) @ x, x)


def stepped(q: Any, k: Any, v: Any, cache_k: Any, cache_v: Any) -> Any:
    """A step of decoding: the cache and what is new, concatenated."""
    keys, values = jnp.concatenate([cache_k, k], axis=1), jnp.concatenate([cache_v, v], axis=1)
    return jax.nn.dot_product_attention(q, keys, values), keys, values


def library(**options: Any) -> Callable[..., Any]:
    """jax.nn.dot_product_attention. A fourth operand is the mask, or the bias where `bias` is given."""
    has_bias = options.pop("bias", False)

    def attend(q: Any, k: Any, v: Any, more: Any = None) -> Any:
        given = {"bias" if has_bias else "mask": more} if more is not None else {}
        return jax.nn.dot_product_attention(q, k, v, **given, **options)

    return attend


def lengths(q: Any, k: Any, v: Any, count: Any) -> Any:
    """Keys up to a length of each sequence."""
    return jax.nn.dot_product_attention(q, k, v, key_value_seq_lengths=count)


def of_nnx(causal: bool = False, cross: bool = False, masked: bool = False, **options: Any) -> Callable[..., Any]:
    """flax.nnx's MultiHeadAttention."""
    module = nnx.MultiHeadAttention(
        num_heads=H, in_features=H * D, qkv_features=H * D, decode=False, rngs=nnx.Rngs(0), **options
    )

    def attend(x: Any, y: Any = None) -> Any:
        if masked:
            return module(x, mask=y)
        mask = nnx.make_causal_mask(jnp.ones((x.shape[0], x.shape[1]))) if causal else None
        return module(x, y, y, mask=mask) if cross else module(x, mask=mask)

    return attend


def of_linen(causal: bool = False, masked: bool = False) -> Callable[..., Any]:
    """flax.linen's MultiHeadDotProductAttention."""
    module = flax.linen.MultiHeadDotProductAttention(num_heads=H, deterministic=True)
    variables = module.init(jax.random.PRNGKey(0), jnp.zeros((B, S, H * D)), jnp.zeros((B, S, H * D)))

    def attend(x: Any, mask: Any = None) -> Any:
        if causal:
            mask = flax.linen.make_causal_mask(jnp.ones((x.shape[0], x.shape[1])))
        return module.apply(variables, x, x, mask=mask)

    return attend


def of_equinox(masked: bool = False, causal: bool = False, **options: Any) -> Callable[..., Any]:
    """equinox's MultiheadAttention, which knows no batch, under vmap."""
    module = equinox.nn.MultiheadAttention(H, H * D, key=jax.random.PRNGKey(0), **options)

    def attend(x: Any, mask: Any = None) -> Any:
        if causal:
            mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        if masked:
            return jax.vmap(lambda row, keep: module(row, row, row, mask=keep))(x, mask)
        return jax.vmap(lambda row: module(row, row, row, mask=mask))(x)

    return attend


def block_of_nnx(layers: int) -> Callable[..., Any]:
    """A transformer of pre-norm blocks with causal attention."""
    rngs = nnx.Rngs(0)
    size = H * D
    parts = [
        (
            nnx.LayerNorm(size, rngs=rngs),
            nnx.MultiHeadAttention(H, size, size, decode=False, rngs=rngs),
            nnx.LayerNorm(size, rngs=rngs),
            nnx.Linear(size, 2 * size, rngs=rngs),
            nnx.Linear(2 * size, size, rngs=rngs),
        )
        for _ in range(layers)
    ]

    def run(x: Any) -> Any:
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        for norm, attention, second, up, down in parts:
            x = x + attention(norm(x), mask=mask)
            x = x + down(nnx.gelu(up(second(x))))
        return x

    return run


def linear(q: Any, k: Any, v: Any) -> Any:
    """Linear attention: no softmax over keys of scores, so none is to be found."""
    return (jax.nn.elu(q) + 1) @ ((jax.nn.elu(k) + 1).swapaxes(-1, -2) @ v)


def pooled(x: Any) -> Any:
    """A classifier's softmax."""
    return jax.nn.softmax(x.mean(axis=1), axis=-1)


QKV = (HEADS, KEYS, KEYS)
SQUARE = (HEADS, HEADS, HEADS)
FIRST = ((B, H, S, D), (B, H, T, D), (B, H, T, D))
NAMED: tuple[Shape, ...] = (("B", S, H, D), ("B", T, H, D), ("B", T, H, D))
ALL_NAMED: tuple[Shape, ...] = (("B", "S", H, D), ("B", "T", H, D), ("B", "T", H, D))
FLOAT, BOOL, HALF, BFLOAT = np.float32, np.bool_, np.float16, jnp.bfloat16
MASK_TYPES = (FLOAT, FLOAT, FLOAT, BOOL)
FEW = (HEADS, (B, T, 2, D), (B, T, 2, D))
RAW: tuple[Program, ...] = (
    Program("jnp", raw, QKV),
    Program("jnp-causal", partial(raw, causal=True), SQUARE),
    Program("jnp-causal-low", partial(raw, causal=True, fill=-1e9), SQUARE),
    Program("jnp-window", partial(raw, window=3), SQUARE),
    Program("jnp-mask", partial(raw, mask=True), (*QKV, (B, 1, S, T)), types=MASK_TYPES),
    Program("jnp-mask-low", partial(raw, mask=True, fill=-1e30), (*QKV, (B, 1, 1, T)), types=MASK_TYPES),
    Program("jnp-where", partial(raw, mask=True, where=True), (*QKV, (B, 1, S, T)), types=MASK_TYPES),
    Program("jnp-bias", partial(raw, bias=True), (*QKV, (1, H, S, T))),
    Program("jnp-softcap", partial(raw, softcap=20.0), QKV),
    Program("jnp-by-hand", partial(raw, softmax="hand"), QKV),
    Program("jnp-by-hand-causal", partial(raw, softmax="hand", causal=True), SQUARE),
    Program("jnp-log-softmax", partial(raw, softmax="log"), QKV),
    Program("jnp-logsumexp", partial(raw, softmax="logsumexp"), QKV),
    Program("jnp-half", raw, QKV, types=(HALF,) * 3),
    Program("jnp-half-f32", partial(raw, softmax="f32"), QKV, types=(HALF,) * 3),
    Program("jnp-bfloat16", raw, QKV, types=(BFLOAT,) * 3),
    Program("jnp-order", partial(raw, order="bthd,bshd->bhts"), QKV),
    Program("jnp-heads-first", lambda: heads_first, FIRST),
    Program("jnp-keys-first", lambda: keys_first, FIRST),
    Program("jnp-grouped", lambda: grouped, FEW),
    Program("jnp-repeated", lambda: repeated, FEW),
    Program("jnp-two-axes", lambda: two_axes, ((B, 3, 4, D),) * 3),
    Program("jnp-vmap", lambda: jax.vmap(raw()), tuple((3, *shape) for shape in QKV)),
    Program("jnp-jit", lambda: jax.jit(raw()), QKV),
    Program("jnp-batch", raw, NAMED),
    Program("jnp-batch-causal", partial(raw, causal=True), (("B", S, H, D),) * 3),
    Program("jnp-symbols", raw, ALL_NAMED),
    Program("jnp-symbols-hand", partial(raw, softmax="hand"), ALL_NAMED),
    Program("jnp-symbols-heads-first", lambda: heads_first, (("B", H, "S", D), ("B", H, "T", D), ("B", H, "T", D))),
    Program("scan", lambda: scanned, ((B, S, D), (3, D, D)), 1, "one in the body of a loop"),
    Program("fori-loop", lambda: looped, ((B, S, D), (D, D)), 1, "one in the body of a loop"),
    Program("linear", lambda: linear, FIRST, 0, "linear attention has no softmax over keys"),
    Program("classifier", lambda: pooled, (TOKENS,), 0, "a softmax over classes"),
)
LIBRARY: tuple[Program, ...] = (
    Program("dpa", library, QKV),
    Program("dpa-causal", partial(library, is_causal=True), SQUARE),
    Program("dpa-mask", library, (*QKV, (B, 1, S, T)), types=MASK_TYPES),
    Program("dpa-mask-heads", library, (*QKV, (B, H, S, T)), types=MASK_TYPES),
    Program("dpa-bias", partial(library, bias=True), (*QKV, (B, H, S, T))),
    Program("dpa-scale", partial(library, scale=0.3), QKV),
    Program("dpa-window", partial(library, local_window_size=(3, 0)), SQUARE),
    Program("dpa-lengths", lambda: lengths, (*QKV, (B,)), types=(FLOAT, FLOAT, FLOAT, np.int32)),
    Program("dpa-grouped", library, FEW),
    Program("dpa-grouped-causal", partial(library, is_causal=True), (HEADS, (B, S, 2, D), (B, S, 2, D))),
    Program("dpa-half", library, QKV, types=(HALF,) * 3),
    Program("dpa-bfloat16", library, QKV, types=(BFLOAT,) * 3),
    Program("dpa-batch", library, NAMED),
    Program("dpa-batch-causal", partial(library, is_causal=True), (("B", S, H, D),) * 3),
    Program("dpa-symbols", library, ALL_NAMED),
    Program("dpa-opset21", library, QKV, opset=21),
    Program("dpa-causal-opset21", partial(library, is_causal=True), SQUARE, opset=21),
    Program("dpa-mask-opset21", library, (*QKV, (B, 1, S, T)), types=MASK_TYPES, opset=21),
    Program("dpa-step", lambda: stepped, (*((B, 1, H, D),) * 3, KEYS, KEYS)),
)
MODULES: tuple[Program, ...] = (
    Program("nnx-mha", of_nnx, (TOKENS,)),
    Program("nnx-mha-batch", of_nnx, (("B", S, H * D),)),
    Program("nnx-mha-causal", partial(of_nnx, causal=True), (TOKENS,)),
    Program("nnx-mha-causal-batch", partial(of_nnx, causal=True), (("B", S, H * D),)),
    Program("nnx-mha-cross", partial(of_nnx, cross=True), (TOKENS, (B, T, H * D))),
    Program("nnx-mha-mask", partial(of_nnx, masked=True), (TOKENS, (B, 1, S, S)), types=(FLOAT, BOOL)),
    Program("nnx-mha-qk-norm", partial(of_nnx, normalize_qk=True), (TOKENS,)),
    Program("nnx-blocks", partial(block_of_nnx, 2), (TOKENS,), 2, "2 layers"),
    Program("nnx-blocks-batch", partial(block_of_nnx, 2), (("B", S, H * D),), 2, "2 layers"),
    Program("nnx-blocks-opset21", partial(block_of_nnx, 2), (TOKENS,), 2, "2 layers", opset=21),
    Program("linen-mha", of_linen, (TOKENS,)),
    Program("linen-mha-batch", of_linen, (("B", S, H * D),)),
    Program("linen-mha-causal", partial(of_linen, causal=True), (TOKENS,)),
    Program("linen-mha-mask", of_linen, (TOKENS, (B, 1, S, S)), types=(FLOAT, BOOL)),
    Program("equinox-mha", of_equinox, (TOKENS,)),
    Program("equinox-mha-batch", of_equinox, (("B", S, H * D),)),
    Program("equinox-mha-causal", partial(of_equinox, causal=True), (TOKENS,)),
    Program("equinox-mha-mask", partial(of_equinox, masked=True), (TOKENS, (B, S, S)), types=(FLOAT, BOOL)),
    Program("equinox-mha-bias", partial(of_equinox, use_query_bias=True, use_output_bias=True), (TOKENS,)),
    Program("equinox-mha-opset21", of_equinox, (TOKENS,), opset=21),
)


def cases() -> Iterator[Case]:
    for program in (*RAW, *LIBRARY, *MODULES):
        yield Case(program.name, partial(export, program))


def export(program: Program, folder: Path) -> Iterable[Made]:
    """One model. Inputs of 16 bits and of other types than f32 are described by jax.ShapeDtypeStruct."""
    types = program.types or (FLOAT,) * len(program.shapes)
    inputs: list[Any] = []
    for shape, kind in zip(program.shapes, types, strict=True):
        inputs.append(shape if kind is FLOAT else jax.ShapeDtypeStruct(shape, kind))
    model = to_onnx(program.make(), inputs, model_name=program.name, opset=program.opset)
    yield Made(program.name, model, program.attentions, program.why, runs(model, BFLOAT in types))


def runs(model: Any, bfloat16: bool) -> dict[str, Feeds]:
    """Inputs of two batches. A model of bfloat16 has none: NumPy's files know no such type."""
    if bfloat16:
        return {}
    return dict(
        runs_of(model, (Run("inputs", sizes=SIZES), Run("more", batch=4, sizes=SIZES | {"B": 4, "S": 7, "T": 5})))
    )
