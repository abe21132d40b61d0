"""lucidrains' packages of one paper each; vit-pytorch and x-transformers are producers of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch

from corpus.case import Case
from corpus.torch_export import Call, Module, cases_of

IMAGE = {"image": (2, 3, 32, 32)}
MAP = {"x": (2, 24, 8, 8)}
ROWS = {"x": (2, 16, 32)}
IDS = {"ids": (2, 16)}
POINTS = {"x": (2, 9, 16), "places": (2, 9, 3)}
LENGTH = {"x": {0: "batch", 1: "length"}}
WORDS = {"ids": {0: "batch", 1: "length"}}
LANGUAGE: dict[str, Any] = {"num_tokens": 96, "dim": 32, "depth": 2, "max_seq_len": 16, "heads": 4}


def network(package: str, name: str, options: dict[str, Any], call: Callable[..., Any]) -> Any:
    return Call(getattr(import_module(package), name)(**options).requires_grad_(False), call)


def first(module: Any, *tensors: torch.Tensor) -> Any:
    """Its result, or the first of them."""
    made = module(*tensors)
    return made[0] if isinstance(made, tuple) else made


def denoise(module: Any, image: torch.Tensor, time: torch.Tensor) -> Any:
    return module(image, time.abs())


def points(module: Any, x: torch.Tensor, places: torch.Tensor) -> Any:
    return module(x, places)


def quantised(module: Any, x: torch.Tensor) -> Any:
    return module(x)[:2]


def tables(module: Any, categories: torch.Tensor, numbers: torch.Tensor) -> Any:
    return module(categories.remainder(3), numbers)


Row = tuple[
    str, str, str, dict[str, Any], Callable[..., Any], Mapping[str, tuple[int, ...]], Mapping[str, dict[int, str]]
]
BATCH = {name: {0: "batch"} for name in ("x", "image", "ids", "places", "time", "numbers")}
NETWORKS: tuple[Row, ...] = (
    (
        "bottleneck",
        "bottleneck_transformer_pytorch",
        "BottleStack",
        {"dim": 24, "fmap_size": 8, "dim_out": 32, "num_layers": 2, "heads": 2, "dim_head": 12},
        first,
        MAP,
        {},
    ),
    (
        "bottleneck-relative",
        "bottleneck_transformer_pytorch",
        "BottleStack",
        {"dim": 24, "fmap_size": 8, "dim_out": 32, "num_layers": 2, "heads": 2, "dim_head": 12, "rel_pos_emb": True},
        first,
        MAP,
        {},
    ),
    (
        "diffusion-unet",
        "denoising_diffusion_pytorch",
        "Unet",
        {"dim": 16, "dim_mults": (1, 2), "attn_heads": 2, "attn_dim_head": 8, "full_attn": (False, True)},
        denoise,
        {"image": (2, 3, 16, 16), "time": (2,)},
        {},
    ),
    (
        "diffusion-unet-1d",
        "denoising_diffusion_pytorch",
        "Unet1D",
        {"dim": 16, "dim_mults": (1, 2), "channels": 3, "attn_heads": 2, "attn_dim_head": 8},
        denoise,
        {"x": (2, 3, 32), "time": (2,)},
        {},
    ),
    (
        "karras-unet",
        "denoising_diffusion_pytorch",
        "KarrasUnet",
        {
            "image_size": 16,
            "dim": 16,
            "dim_max": 32,
            "num_downsamples": 1,
            "num_blocks_per_stage": 1,
            "attn_res": (8,),
            "attn_dim_head": 8,
            "fourier_dim": 8,
        },
        denoise,
        {"image": (2, 4, 16, 16), "time": (2,)},
        {},
    ),
    (
        "egnn",
        "egnn_pytorch",
        "EGNN_Network",
        {
            "depth": 2,
            "dim": 16,
            "num_nearest_neighbors": 4,
            "global_linear_attn_every": 1,
            "global_linear_attn_heads": 2,
            "global_linear_attn_dim_head": 8,
        },
        lambda m, x, p: m(x, p),
        POINTS,
        {},
    ),
    (
        "gmlp",
        "g_mlp_pytorch",
        "gMLP",
        {"num_tokens": 96, "dim": 32, "depth": 2, "seq_len": 16, "causal": True, "attn_dim": 12},
        first,
        IDS,
        {},
    ),
    (
        "halonet",
        "halonet_pytorch",
        "HaloAttention",
        {"dim": 24, "block_size": 4, "halo_size": 2, "dim_head": 12, "heads": 2},
        first,
        MAP,
        {},
    ),
    (
        "memory-efficient",
        "memory_efficient_attention_pytorch",
        "Attention",
        {
            "dim": 32,
            "heads": 2,
            "dim_head": 12,
            "causal": True,
            "memory_efficient": True,
            "q_bucket_size": 8,
            "k_bucket_size": 8,
        },
        first,
        ROWS,
        {},
    ),
    (
        "flash",
        "memory_efficient_attention_pytorch",
        "FlashAttention",
        {"dim": 32, "heads": 2, "dim_head": 12, "q_bucket_size": 8, "k_bucket_size": 8},
        first,
        ROWS,
        {},
    ),
    ("performer", "performer_pytorch", "PerformerLM", LANGUAGE | {"dim_head": 8, "nb_features": 12}, first, IDS, {}),
    (
        "point",
        "point_transformer_pytorch",
        "PointTransformerLayer",
        {"dim": 16, "pos_mlp_hidden_dim": 12},
        points,
        POINTS,
        {},
    ),
    (
        "point-neighbours",
        "point_transformer_pytorch",
        "PointTransformerLayer",
        {"dim": 16, "pos_mlp_hidden_dim": 12, "num_neighbors": 4},
        points,
        POINTS,
        {},
    ),
    (
        "point-heads",
        "point_transformer_pytorch",
        "MultiheadPointTransformerLayer",
        {"dim": 16, "heads": 2, "dim_head": 8, "pos_mlp_hidden_dim": 12},
        points,
        POINTS,
        {},
    ),
    ("soft-moe", "soft_moe_pytorch", "SoftMoE", {"dim": 32, "seq_len": 16, "num_experts": 4}, first, ROWS, {}),
    (
        "ft",
        "tab_transformer_pytorch",
        "FTTransformer",
        {"categories": (3, 3, 3), "num_continuous": 5, "dim": 16, "dim_out": 1, "depth": 2, "heads": 2, "dim_head": 8},
        tables,
        {"ids": (2, 3), "numbers": (2, 5)},
        {},
    ),
    ("vq", "vector_quantize_pytorch", "VectorQuantize", {"dim": 32, "codebook_size": 16}, quantised, ROWS, LENGTH),
    (
        "vq-cosine",
        "vector_quantize_pytorch",
        "VectorQuantize",
        {
            "dim": 32,
            "codebook_size": 16,
            "use_cosine_sim": True,
            "heads": 2,
            "codebook_dim": 8,
            "separate_codebook_per_head": True,
        },
        quantised,
        ROWS,
        LENGTH,
    ),
    (
        "residual-vq",
        "vector_quantize_pytorch",
        "ResidualVQ",
        {"dim": 32, "num_quantizers": 3, "codebook_size": 16},
        quantised,
        ROWS,
        LENGTH,
    ),
    ("fsq", "vector_quantize_pytorch", "FSQ", {"levels": [8, 5, 5], "dim": 32}, quantised, ROWS, LENGTH),
    ("lfq", "vector_quantize_pytorch", "LFQ", {"dim": 32, "codebook_size": 16}, quantised, ROWS, LENGTH),
    (
        "h-transformer",
        "h_transformer_1d",
        "HTransformer1D",
        LANGUAGE | {"dim_head": 8, "block_size": 4},
        first,
        IDS,
        {},
    ),
    (
        "h-transformer-causal",
        "h_transformer_1d",
        "HTransformer1D",
        LANGUAGE | {"dim_head": 8, "block_size": 4, "causal": True},
        first,
        IDS,
        {},
    ),
    (
        "itransformer",
        "iTransformer",
        "iTransformer",
        {
            "num_variates": 5,
            "lookback_len": 16,
            "dim": 32,
            "depth": 2,
            "heads": 2,
            "dim_head": 12,
            "pred_length": (4, 8),
            "num_tokens_per_variate": 1,
        },
        lambda m, x: list(m(x).values()),
        {"x": (2, 16, 5)},
        {},
    ),
    (
        "itransformer-2d",
        "iTransformer",
        "iTransformer2D",
        {
            "num_variates": 5,
            "num_time_tokens": 4,
            "lookback_len": 16,
            "dim": 32,
            "depth": 1,
            "heads": 2,
            "dim_head": 12,
            "pred_length": (4,),
        },
        lambda m, x: list(m(x).values()),
        {"x": (2, 16, 5)},
        {},
    ),
    (
        "linear",
        "linear_attention_transformer",
        "LinearAttentionTransformerLM",
        LANGUAGE | {"dim_head": 8},
        first,
        IDS,
        {},
    ),
    ("sinkhorn", "sinkhorn_transformer", "SinkhornTransformerLM", LANGUAGE | {"bucket_size": 4}, first, IDS, {}),
    ("routing", "routing_transformer", "RoutingTransformerLM", LANGUAGE | {"window_size": 8}, first, IDS, {}),
)


ATTENTIONS = {
    "diffusion-unet": (3, "the others have a softmax of Q and one of K, and no scores"),
    "diffusion-unet-1d": (1, "the others have a softmax of Q and one of K, and no scores"),
    "point": (0, "weights of vectors, each number of which has its own"),
    "point-neighbours": (0, "weights of vectors, each number of which has its own"),
    "point-heads": (0, "weights of vectors, each number of which has its own"),
    "soft-moe": (1, "slots over tokens; the other softmax gives tokens the slots, by the same scores"),
    "linear": (0, "a softmax of Q and one of K, and no scores"),
    "memory-efficient": (1, "in blocks, each of which is a spelling of its own"),
    "flash": (1, "in blocks, by hand"),
    "sinkhorn": (2, "the others sort blocks"),
}
"""Where it is another number than that of softmaxes of three axes, and why."""


def cases() -> Iterator[Case]:
    def module(row: Row) -> Module:
        name, package, kind, options, call, inputs, axes = row
        count, why = ATTENTIONS.get(name, (None, ""))
        named = {key: dict(axes.get(key, BATCH[key])) for key in inputs}
        types = {"ids": torch.int64} if "ids" in inputs else {}
        return Module(name, partial(network, package, kind, options, call), inputs, count, why, types, named)

    return cases_of([module(row) for row in NETWORKS])
