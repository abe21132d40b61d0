"""PaddlePaddle's layers and attention functions, converted by paddle2onnx: with Polygraphy folding constants, as it does by itself,
or with onnxoptimizer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

os.environ["POLYGRAPHY_AUTOINSTALL_DEPS"] = (
    "0"  # read when Polygraphy is imported: paddle2onnx asks it to install packages
)

import onnx
import paddle
import polygraphy.config  # noqa: F401
from paddle import nn
from paddle.nn import functional
from paddle.static import InputSpec

from corpus.case import Case, Made
from corpus.feeds import Run, runs_of

WIDTH, HEADS, HEAD = 48, 4, 12
OPSETS = (11, 13, 17)
Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class Model:
    """A layer, made when it is needed, its inputs (None: a free size) with their types, and its true attentions."""

    name: str
    make: Callable[[], Any]
    inputs: Mapping[str, Shape]
    attentions: int
    why: str = ""
    types: Mapping[str, str] = field(default_factory=dict)
    opsets: tuple[int, ...] = (17,)
    tools: tuple[str, ...] = ("polygraphy",)


class Attention(nn.Layer):
    """A layer of Paddle's own: of one sequence, with a mask or without, or of two."""

    def __init__(self, key_width: int | None = None, mask: bool = False) -> None:
        super().__init__()
        self.layer = nn.MultiHeadAttention(WIDTH, HEADS, kdim=key_width, vdim=key_width)
        self.crossed, self.masked = key_width is not None, mask

    def forward(self, x: Any, more: Any = None) -> Any:
        keys = more if self.crossed else x
        return self.layer(x, keys, keys, more if self.masked else None)


class Cached(nn.Layer):
    """The same with a cache of what came before, which grows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiHeadAttention(WIDTH, HEADS)

    def forward(self, x: Any, past_k: Any, past_v: Any) -> Any:
        out, cache = self.layer(x, x, x, None, nn.MultiHeadAttention.Cache(past_k, past_v))
        return out, cache.k, cache.v


class Encoder(nn.Layer):
    def __init__(self, first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 64, dropout=0.0, activation="gelu", normalize_before=first)
        self.layer = nn.TransformerEncoder(layer, 2)

    def forward(self, x: Any, mask: Any) -> Any:
        return self.layer(x, mask)


class Whole(nn.Layer):
    """An encoder and a causal decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Transformer(WIDTH, HEADS, 2, 2, 64, dropout=0.0)

    def forward(self, source: Any, target: Any) -> Any:
        return self.layer(source, target, tgt_mask=self.layer.generate_square_subsequent_mask(target.shape[1]))


class Product(nn.Layer):
    """Paddle's function, whose operands have their heads behind the sequence."""

    def __init__(self, causal: bool = False) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, mask, is_causal=self.causal, training=False)


class Written(nn.Layer):
    """A model's own lines, as PaddleOCR and PaddleNLP write them: one product for Q, K and V, a softmax in f32, a mask of -1e4."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.qkv, self.out, self.way = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), way

    def forward(self, x: Any, mask: Any = None) -> Any:
        way = self.way
        parts = self.qkv(x).reshape([0, -1, 3, HEADS, HEAD]).transpose([2, 0, 3, 1, 4])
        q, k, v = parts[0] * HEAD**-0.5, parts[1], parts[2]
        score = q.matmul(k.transpose([0, 1, 3, 2])) if way != "einsum" else paddle.einsum("bhqd,bhkd->bhqk", q, k)
        if way == "mask":
            score = score + (1.0 - mask.unsqueeze([1, 2])) * -1e4
        if way == "tril":
            length = score.shape[-1]
            kept = paddle.tril(paddle.ones([length, length], dtype="bool"))
            score = paddle.where(kept, score, paddle.full_like(score, -1e9))
        if way == "where":
            score = paddle.where(mask.unsqueeze([1, 2]), score, paddle.full_like(score, float("-inf")))
        weight = functional.softmax(score, axis=-1)
        mixed = weight.matmul(v) if way != "einsum" else paddle.einsum("bhqk,bhkd->bhqd", weight, v)
        return self.out(mixed.transpose([0, 2, 1, 3]).reshape([0, -1, WIDTH]))


def convert(model: Model, opset: int, tool: str, folder: Path) -> Iterable[Made]:
    """One file."""
    import paddle2onnx

    paddle.seed(0)
    layer = model.make()
    layer.eval()
    specs = [
        InputSpec([-1 if size is None else size for size in shape], model.types.get(name, "float32"), name)
        for name, shape in model.inputs.items()
    ]
    paddle.jit.save(layer, os.fspath(folder / "saved"), specs)
    weights = folder / "saved.pdiparams"
    paddle2onnx.export(
        os.fspath(folder / "saved.json"),
        os.fspath(weights) if weights.exists() else "",
        os.fspath(folder / "model.onnx"),
        opset_version=opset,
        optimize_tool=tool,
    )
    made = onnx.load(folder / "model.onnx")
    yield Made(f"{name_of(model, opset, tool)}", made, model.attentions, model.why, runs_of(made, RUNS))


RUNS = (Run("inputs"), Run("one", batch=1, length=9))


def name_of(model: Model, opset: int, tool: str) -> str:
    name = model.name if opset == 17 else f"{model.name}-opset{opset}"
    return name if tool == "polygraphy" else f"{name}-{tool.lower()}"


def cases() -> Iterator[Case]:
    x: dict[str, Shape] = {"x": (None, None, WIDTH)}
    fixed: dict[str, Shape] = {"x": (None, 16, WIDTH)}
    heads: dict[str, Shape] = {name: (None, 16, HEADS, HEAD) for name in "qkv"}
    past: dict[str, Shape] = {f"past_{part}": (None, HEADS, None, HEAD) for part in "kv"}
    every: dict[str, Any] = {"opsets": OPSETS, "tools": ("polygraphy", "onnxoptimizer", "None")}
    models = [
        Model("mha", Attention, x, 1, **every),
        Model("mha-cross", partial(Attention, 24), x | {"y": (None, 10, 24)}, 1),
        Model("mha-mask", partial(Attention, None, True), fixed | {"mask": (None, 1, 1, 16)}, 1),
        Model(
            "mha-bool-mask",
            partial(Attention, None, True),
            fixed | {"mask": (None, 1, 16, 16)},
            1,
            types={"mask": "bool"},
        ),
        Model("mha-cache", Cached, x | past, 1),
        Model("encoder", partial(Encoder, False), fixed | {"mask": (None, 1, 1, 16)}, 2),
        Model("encoder-norm-first", partial(Encoder, True), fixed | {"mask": (None, 1, 1, 16)}, 2),
        Model("transformer", Whole, {"source": (None, 10, WIDTH), "target": (None, 7, WIDTH)}, 6),
        Model("sdpa", Product, heads, 1),
        Model("sdpa-causal", partial(Product, True), heads, 1, **every),
        Model("sdpa-mask", Product, heads | {"mask": (None, 1, 16, 16)}, 1),
        Model("written", partial(Written, ""), x, 1),
        Model("written-mask", partial(Written, "mask"), fixed | {"mask": (None, 16)}, 1, **every),
        Model("written-tril", partial(Written, "tril"), fixed, 1, opsets=OPSETS),
        Model("written-where", partial(Written, "where"), fixed | {"mask": (None, 16)}, 1, types={"mask": "bool"}),
        Model("written-einsum", partial(Written, "einsum"), fixed, 1, opsets=OPSETS),
    ]
    for model in models:
        for opset in model.opsets:
            for tool in model.tools:
                yield Case(name_of(model, opset, tool), partial(convert, model, opset, tool))
