"""Keras 3: its attention layers in small functional models, transformer blocks, and backbones of keras_hub. The same for each of
Keras's backends; the environment variable KERAS_BACKEND has to be set before this is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import keras
import onnx
from keras import layers, ops

from corpus.case import Case, Made
from corpus.feeds import Run, runs_of

S, T, SIZE, HEADS = 9, 11, 32, 4
RUNS = (Run("inputs", length=S), Run("one", batch=1, length=S))
FREE = (*RUNS, Run("short", batch=3, length=5))


@dataclass(frozen=True)
class Model:
    """A model, made when it is needed, and its attentions. `runs`: what it is run on."""

    name: str
    make: Callable[[], Any]
    attentions: int = 1
    why: str = ""
    runs: tuple[Run, ...] = RUNS


def _tokens(length: int | None = S, size: int = SIZE, name: str = "x") -> Any:
    return keras.Input((length, size), name=name)


def self_attention(length: int | None = S, causal: bool = False, dropout: float = 0.0, **options: Any) -> Any:
    """MultiHeadAttention of a sequence with itself."""
    x = _tokens(length)
    attend = layers.MultiHeadAttention(HEADS, SIZE // HEADS, dropout=dropout, **options)
    return keras.Model(x, attend(x, x, use_causal_mask=causal))


def cross_attention(length: int | None = T) -> Any:
    """MultiHeadAttention of one sequence with another."""
    x, y = _tokens(), _tokens(length, name="y")
    return keras.Model([x, y], layers.MultiHeadAttention(HEADS, 8)(x, y))


def masked_attention(dropout: float = 0.0, causal: bool = False) -> Any:
    """MultiHeadAttention with a mask that is an input."""
    x, mask = _tokens(), keras.Input((S, S), dtype="bool", name="mask")
    attend = layers.MultiHeadAttention(HEADS, 8, dropout=dropout)
    return keras.Model([x, mask], attend(x, x, attention_mask=mask, use_causal_mask=causal))


def padded_attention(length: int | None = S) -> Any:
    """MultiHeadAttention behind an embedding that masks the padding."""
    ids = keras.Input((length,), dtype="int32", name="ids")
    x = layers.Embedding(96, SIZE, mask_zero=True)(ids)
    return keras.Model(ids, layers.MultiHeadAttention(HEADS, 8)(x, x))


def scores_too() -> Any:
    """MultiHeadAttention that gives its probabilities as well."""
    x = _tokens()
    return keras.Model(x, layers.MultiHeadAttention(HEADS, 8)(x, x, return_attention_scores=True))


def two_axes() -> Any:
    """MultiHeadAttention over the rows and columns of an image."""
    x = keras.Input((3, 4, SIZE), name="x")
    return keras.Model(x, layers.MultiHeadAttention(HEADS, 8, attention_axes=(1, 2))(x, x))


def grouped(length: int | None = S, causal: bool = False, dropout: float = 0.0) -> Any:
    """GroupQueryAttention."""
    x = _tokens(length)
    attend = layers.GroupQueryAttention(8, HEADS, 2, dropout=dropout)
    return keras.Model(x, attend(x, x, use_causal_mask=causal))


def dot(causal: bool = False, length: int | None = S, **options: Any) -> Any:
    """The layer Attention, without heads."""
    x, y = _tokens(length), _tokens(length, name="y")
    return keras.Model([x, y], layers.Attention(**options)([x, y], use_causal_mask=causal))


def additive() -> Any:
    """Additive attention, whose scores are no product."""
    x, y = _tokens(), _tokens(name="y")
    return keras.Model([x, y], layers.AdditiveAttention()([x, y]))


def by_ops(where: bool = False, low: float = -1e9) -> Any:
    """Attention written with keras.ops."""
    q, k, v = (keras.Input((HEADS, S, 8), name=name) for name in "qkv")
    scores = ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) / 8**0.5
    if where:
        rows, columns = ops.arange(S)[:, None], ops.arange(S)[None, :]
        scores = ops.where(rows >= columns, scores, low)
    return keras.Model([q, k, v], ops.matmul(ops.softmax(scores), v))


def by_library(causal: bool = False) -> Any:
    """keras.ops.dot_product_attention on (batch, length, heads, head dim)."""
    q, k, v = (keras.Input((S, HEADS, 8), name=name) for name in "qkv")
    return keras.Model([q, k, v], ops.dot_product_attention(q, k, v, is_causal=causal))


def blocks(count: int = 2, causal: bool = False, length: int | None = S, dropout: float = 0.1) -> Any:
    """Pre-norm transformer blocks on token ids."""
    ids = keras.Input((length,), dtype="int32", name="ids")
    x = layers.Embedding(96, SIZE)(ids)
    for _ in range(count):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(HEADS, 8, dropout=dropout)(y, y, use_causal_mask=causal)
        y = layers.LayerNormalization()(x)
        x = x + layers.Dense(SIZE)(layers.Dense(64, activation="relu")(y))
    return keras.Model(ids, layers.Dense(96)(x))


def vision() -> Any:
    """A vision transformer: patches by a convolution, a classifier's softmax behind."""
    image = keras.Input((32, 32, 3), name="image")
    x = layers.Reshape((16, SIZE))(layers.Conv2D(SIZE, 8, 8)(image))
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(HEADS, 8, dropout=0.1)(y, y)
    return keras.Model(image, layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling1D()(x)))


def hub(name: str, **options: Any) -> Any:
    """A backbone of keras_hub with random weights, of any batch and length."""
    import keras_hub

    return getattr(keras_hub.models, name)(**options)


TEXT = {"vocabulary_size": 96, "num_layers": 2, "num_heads": 4, "hidden_dim": 32, "intermediate_dim": 48}
LONG = TEXT | {"max_sequence_length": 32}
LLAMA = {"vocabulary_size": 96, "num_layers": 2, "num_query_heads": 4, "num_key_value_heads": 2, "hidden_dim": 32}
LLAMA |= {"intermediate_dim": 48}
GEMMA = LLAMA | {"head_dim": 8}
T5 = {key: value for key, value in TEXT.items()} | {"key_value_dim": 8, "dropout": 0.0}
VIT = {"image_shape": (32, 32, 3), "patch_size": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 32, "mlp_dim": 48}
HUB: tuple[tuple[str, dict[str, Any], int, str], ...] = (
    ("BertBackbone", LONG, 2, ""),
    ("RobertaBackbone", LONG, 2, ""),
    ("DistilBertBackbone", LONG, 2, ""),
    ("AlbertBackbone", LONG | {"embedding_dim": 16}, 2, ""),
    ("DebertaV3Backbone", LONG | {"bucket_size": 8}, 2, ""),
    ("GPT2Backbone", LONG, 2, ""),
    ("OPTBackbone", LONG, 2, ""),
    ("GPTNeoXBackbone", LONG, 2, ""),
    ("BloomBackbone", TEXT, 2, ""),
    ("FalconBackbone", {"vocabulary_size": 96, "num_layers": 2, "num_attention_heads": 4, "hidden_dim": 32}
     | {"intermediate_dim": 48}, 2, ""),
    ("LlamaBackbone", LLAMA, 2, ""),
    ("MistralBackbone", LLAMA | {"sliding_window": 4}, 2, ""),
    ("QwenBackbone", LLAMA, 2, ""),
    ("GemmaBackbone", GEMMA, 2, ""),
    ("BartBackbone", LONG, 6, "2 layers in the encoder; 2 in the decoder, each with self and cross attention"),
    ("T5Backbone", T5, 6, "2 layers in the encoder; 2 in the decoder, each with self and cross attention"),
    ("ViTBackbone", VIT, 2, ""),
)  # fmt: skip
LAYERS: tuple[Model, ...] = (
    Model("mha", self_attention),
    Model("mha-free", partial(self_attention, None), runs=FREE),
    Model("mha-dropout", partial(self_attention, dropout=0.1)),
    Model("mha-dropout-free", partial(self_attention, None, dropout=0.1), runs=FREE),
    Model("mha-causal", partial(self_attention, causal=True)),
    Model("mha-causal-free", partial(self_attention, None, causal=True), runs=FREE),
    Model("mha-causal-dropout", partial(self_attention, causal=True, dropout=0.1)),
    Model("mha-no-bias", partial(self_attention, use_bias=False)),
    Model("mha-cross", cross_attention),
    Model("mha-cross-free", partial(cross_attention, None), runs=FREE),
    Model("mha-mask", masked_attention),
    Model("mha-mask-dropout", partial(masked_attention, 0.1)),
    Model("mha-mask-causal", partial(masked_attention, 0.0, True)),
    Model("mha-padded", padded_attention),
    Model("mha-padded-free", partial(padded_attention, None), runs=FREE),
    Model("mha-scores", scores_too),
    Model("mha-two-axes", two_axes),
    Model("gqa", grouped),
    Model("gqa-causal", partial(grouped, causal=True)),
    Model("gqa-dropout", partial(grouped, dropout=0.1)),
    Model("gqa-free", partial(grouped, None), runs=FREE),
    Model("attention", dot),
    Model("attention-scale", partial(dot, use_scale=True)),
    Model("attention-causal", partial(dot, True)),
    Model("attention-free", partial(dot, length=None), runs=FREE),
    Model("attention-concat", partial(dot, score_mode="concat"), 0, "scores of a tanh, no product"),
    Model("additive", additive, 0, "scores of a tanh, no product"),
    Model("ops", by_ops),
    Model("ops-where", partial(by_ops, True)),
    Model("ops-library", by_library),
    Model("ops-library-causal", partial(by_library, True)),
    Model("blocks", blocks, 2, "2 layers"),
    Model("blocks-causal", partial(blocks, causal=True), 2, "2 layers"),
    Model("blocks-free", partial(blocks, length=None), 2, "2 layers", FREE),
    Model("vision", vision, 2, "2 layers; the third softmax is over classes", (Run("inputs"), Run("one", batch=1))),
)


def fixed(value: Any) -> list[int]:
    """The value's dims, with a size for those that are free."""
    return [dim or (RUNS[0].length if axis else RUNS[0].batch) for axis, dim in enumerate(value.shape)]


def cases() -> Iterator[Case]:
    for model in LAYERS:
        yield Case(model.name, partial(export, model))
    for name, options, attentions, why in HUB:
        model = Model(name, partial(hub, name, **options), attentions, why, FREE)
        yield Case(f"hub-{name.removesuffix('Backbone').lower()}", partial(export, model))


def export(model: Model, folder: Path) -> Iterable[Made]:
    """The file that Model.export writes."""
    keras.utils.set_random_seed(0)
    path = folder / "model.onnx"
    made = model.make()
    made(keras.tree.map_structure(lambda x: ops.ones(fixed(x), x.dtype), made.input))  # export asks for a first call
    options: dict[str, Any] = {}
    backend = keras.backend.backend()
    if backend == "torch":
        made.trainable = False
        for weight in (
            made.parameters()
        ):  # the exporter refuses those that may be trained and are no parameters of what it traces
            weight.requires_grad_(False)
    if backend == "torch" or (backend == "jax" and model.name.endswith("Backbone")):  # their exports fail on free dims
        options["input_signature"] = [
            keras.tree.map_structure(lambda x: keras.InputSpec(shape=tuple(fixed(x)), dtype=x.dtype), made.input)
        ]
    made.export(str(path), format="onnx", verbose=False, **options)
    name = f"hub-{model.name.removesuffix('Backbone').lower()}" if model.name.endswith("Backbone") else model.name
    yield Made(name, path, model.attentions, model.why, runs_of(onnx.load(path), model.runs))
