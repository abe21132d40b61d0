"""Libraries that write attention out to be read: labml's annotated papers, torchscale, and curated-transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch

from corpus.case import Case
from corpus.feeds import Run
from corpus.torch_export import BOTH, Call, Module, cases_of

WIDTH, HEADS = 48, 4
X = {"x": (7, 2, WIDTH)}
"""labml has the length first."""
IDS = {"ids": (2, 7)}
MASKED = {"ids": (2, 7), "mask": (2, 7)}
RUNS = (Run("inputs"), Run("one", batch=1, length=1), Run("longer", batch=3, length=11))
Net = tuple[str, Callable[[], Any], Callable[..., Any], Mapping[str, tuple[int, ...]]]


def labml(module: str, name: str, *options: Any, **named: Any) -> Any:
    """A class of labml's. What its attention tells of the probabilities, no file has."""
    import_module("labml.tracker").debug = lambda *told: None
    return getattr(import_module(f"labml_nn.{module}"), name)(*options, **named)


def itself(module: Any, x: torch.Tensor) -> Any:
    return module(query=x, key=x, value=x)


def causal(module: Any, x: torch.Tensor) -> Any:
    mask = torch.ones(x.shape[0], x.shape[0]).tril()[:, :, None].bool()
    return module(query=x, key=x, value=x, mask=mask)


def applied(module: Any, *tensors: torch.Tensor) -> Any:
    return module(*tensors)


def scaled(module: Any, x: torch.Tensor) -> Any:
    return module(src_tokens=None, token_embeddings=x)["encoder_out"]


def torchscale(options: dict[str, Any]) -> Any:
    from torchscale.architecture.config import EncoderConfig
    from torchscale.architecture.encoder import Encoder

    sizes = {"encoder_embed_dim": WIDTH, "encoder_attention_heads": HEADS, "encoder_ffn_embed_dim": 64}
    return Encoder(EncoderConfig(**sizes, encoder_layers=2, **options))


def curated(module: str, name: str, config: str, options: dict[str, Any]) -> Any:
    """Its configurations have options of their own names; what they have in common is small."""
    package = import_module(f"curated_transformers.models.{module}")
    kinds = import_module(f"curated_transformers.models.{module}.config")
    sizes = {"n_pieces": 96, "n_hidden_layers": 2}
    return getattr(package, name)(getattr(kinds, config)(**sizes, hidden_width=WIDTH, **options))


def last(module: Any, ids: torch.Tensor, mask: torch.Tensor) -> Any:
    from curated_transformers.layers import AttentionMask

    return module(ids, AttentionMask(mask)).last_hidden_layer_state


BERT = {"n_attention_heads": HEADS, "intermediate_width": 64, "embedding_width": WIDTH}
GROUPED = {"n_query_heads": HEADS, "intermediate_width": 64, "rotary_embedding_fraction": 1.0}
NETS: tuple[Net, ...] = (
    ("labml-mha", partial(labml, "transformers.mha", "MultiHeadAttention", HEADS, WIDTH), itself, X),
    ("labml-mha-causal", partial(labml, "transformers.mha", "MultiHeadAttention", HEADS, WIDTH), causal, X),
    (
        "labml-relative",
        partial(labml, "transformers.xl.relative_mha", "RelativeMultiHeadAttention", HEADS, WIDTH),
        itself,
        X,
    ),
    ("labml-alibi", partial(labml, "transformers.alibi", "AlibiMultiHeadAttention", HEADS, WIDTH), causal, X),
    ("labml-rope", partial(labml, "transformers.rope", "RotaryPEMultiHeadAttention", HEADS, WIDTH), causal, X),
    (
        "labml-rope-values",
        partial(labml, "transformers.rope.value_pe", "RotaryValuePEMultiHeadAttention", HEADS, WIDTH),
        causal,
        X,
    ),
    ("labml-primer", partial(labml, "transformers.primer_ez", "MultiDConvHeadAttention", HEADS, WIDTH), causal, X),
    ("labml-free", partial(labml, "transformers.aft", "AFTLocal", WIDTH, 7, 3), causal, X),
    (
        "labml-unet-attention",
        partial(labml, "diffusion.stable_diffusion.model.unet_attention", "SpatialTransformer", 32, 4, 1, 24),
        applied,
        {"x": (2, 32, 8, 8), "condition": (2, 5, 24)},
    ),
    (
        "labml-graph",
        partial(labml, "graphs.gatv2", "GraphAttentionV2Layer", WIDTH, 32, 4),
        lambda m, x: m(x, torch.eye(9)[:, :, None].bool() | (torch.arange(9)[:, None, None] < 4)),
        {"x": (9, WIDTH)},
    ),
    (
        "labml-retro",
        partial(labml, "transformers.retro.model", "ChunkedCrossAttention", WIDTH, HEADS, 12, 4),
        applied,
        {"x": (2, 16, WIDTH), "neighbours": (2, 4, 3, 5, WIDTH)},
    ),
    (
        "labml-feedback",
        partial(labml, "transformers.feedback", "FeedbackAttention", HEADS, WIDTH),
        lambda m, x: m(query=x[0], key=x, value=x),
        X,
    ),
    ("torchscale", partial(torchscale, {}), scaled, {"x": (2, 7, WIDTH)}),
    (
        "torchscale-relative",
        partial(torchscale, {"rel_pos_buckets": 8, "max_rel_pos": 16}),
        scaled,
        {"x": (2, 7, WIDTH)},
    ),
    ("torchscale-xpos", partial(torchscale, {"xpos_rel_pos": True, "subln": True}), scaled, {"x": (2, 7, WIDTH)}),
    ("torchscale-multiway", partial(torchscale, {"multiway": True}), scaled, {"x": (2, 7, WIDTH)}),
    ("curated-bert", partial(curated, "bert", "BERTEncoder", "BERTConfig", BERT), last, MASKED),
    (
        "curated-albert",
        partial(curated, "albert", "ALBERTEncoder", "ALBERTConfig", BERT | {"n_hidden_groups": 1}),
        last,
        MASKED,
    ),
    (
        "curated-llama",
        partial(curated, "llama", "LlamaDecoder", "LlamaConfig", GROUPED | {"n_key_value_heads": 2}),
        last,
        MASKED,
    ),
    (
        "curated-neox",
        partial(
            curated,
            "gpt_neox",
            "GPTNeoXDecoder",
            "GPTNeoXConfig",
            {"n_attention_heads": HEADS, "intermediate_width": 64, "rotary_embedding_fraction": 0.5},
        ),
        last,
        MASKED,
    ),
    (
        "curated-falcon",
        partial(
            curated,
            "falcon",
            "FalconDecoder",
            "FalconConfig",
            {"n_query_heads": HEADS, "n_key_value_heads": 1, "use_bias": False, "rotary_embedding_fraction": 1.0}
            | {"use_alibi": False, "new_decoder_architecture": False, "use_parallel_attention": True},
        ),
        last,
        MASKED,
    ),
    (
        "curated-falcon-alibi",
        partial(
            curated,
            "falcon",
            "FalconDecoder",
            "FalconConfig",
            {"n_query_heads": HEADS, "n_key_value_heads": HEADS, "use_bias": True}
            | {"use_alibi": True, "new_decoder_architecture": False, "use_parallel_attention": False},
        ),
        last,
        MASKED,
    ),
    (
        "curated-mpt",
        partial(
            curated, "mpt", "MPTDecoder", "MPTConfig", {"n_attention_heads": HEADS, "intermediate_width_multiplier": 2}
        ),
        last,
        MASKED,
    ),
)


def cases() -> Iterator[Case]:
    def module(net: Net) -> Module:
        name, make, call, inputs = net
        first, second = ("length", "batch") if inputs is X else ("batch", "length")
        fixed = name in ("labml-free", "labml-graph", "labml-retro", "labml-unet-attention")
        free = {0: first, 1: second}
        if name == "labml-graph":
            free = {}
        elif fixed and inputs is not X:
            free = {0: "batch"}
        axes = {key: dict(free) for key in inputs}
        types = {"ids": torch.int64, "mask": torch.bool}
        given = {key: kind for key, kind in types.items() if key in inputs}
        return Module(name, lambda: Call(make(), call), inputs, None, "", given, axes, BOTH, RUNS)

    return cases_of([module(net) for net in NETS])
