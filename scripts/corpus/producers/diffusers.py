"""diffusers: the networks of image generators: U-Nets, transformers, and the attention of a VAE."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from corpus.case import Case
from corpus.torch_export import Module, cases_of

LATENTS = (2, 4, 8, 8)
WORDS = (2, 7, 32)
UNET: dict[str, Any] = {
    "sample_size": 8,
    "block_out_channels": (16, 32),
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "layers_per_block": 1,
    "cross_attention_dim": 32,
    "attention_head_dim": 4,
    "norm_num_groups": 8,
}
VAE: dict[str, Any] = {
    "block_out_channels": (16, 32),
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "norm_num_groups": 8,
    "sample_size": 16,
}
HEADS: dict[str, Any] = {
    "num_attention_heads": 4,
    "attention_head_dim": 8,
    "num_layers": 2,
    "sample_size": 8,
    "patch_size": 2,
}
DIT = HEADS | {"in_channels": 4, "norm_num_groups": 8, "num_embeds_ada_norm": 96}
SD3 = HEADS | {"in_channels": 4, "out_channels": 4, "caption_projection_dim": 32, "joint_attention_dim": 32}
SD3 |= {"pooled_projection_dim": 16, "pos_embed_max_size": 8}
PIXART = HEADS | {
    "in_channels": 4,
    "out_channels": 8,
    "cross_attention_dim": 32,
    "caption_channels": 32,
    "norm_num_groups": 8,
}
AURA = {"sample_size": 8, "patch_size": 2, "in_channels": 4, "num_mmdit_layers": 1, "num_single_dit_layers": 1}
AURA |= {"attention_head_dim": 8, "num_attention_heads": 4, "joint_attention_dim": 32, "caption_projection_dim": 32}
AURA |= {"out_channels": 4, "pos_embed_max_size": 16}
PRIOR = {"num_attention_heads": 4, "attention_head_dim": 8, "num_layers": 2, "embedding_dim": 32, "num_embeddings": 5}
TEXT = {"sample": LATENTS, "timestep": (2,), "encoder_hidden_states": WORDS}
STEP = {"timestep": torch.int64}
MODELS: tuple[tuple[str, str, dict[str, Any], dict[str, tuple[int, ...]]], ...] = (
    ("unet-text", "UNet2DConditionModel", UNET, TEXT),
    ("unet-text-linear", "UNet2DConditionModel", UNET | {"use_linear_projection": True}, TEXT),
    ("unet-text-upcast", "UNet2DConditionModel", UNET | {"upcast_attention": True}, TEXT),
    ("unet-text-deep", "UNet2DConditionModel", UNET | {"transformer_layers_per_block": 2}, TEXT),
    (
        "unet",
        "UNet2DModel",
        {"sample_size": 8, "in_channels": 4, "out_channels": 4, "block_out_channels": (16, 32)}
        | {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
        | {"layers_per_block": 1, "norm_num_groups": 8, "attention_head_dim": 8},
        {"sample": LATENTS, "timestep": (2,)},
    ),
    ("vae", "AutoencoderKL", VAE, {"sample": (2, 3, 16, 16)}),
    ("dit", "DiTTransformer2DModel", DIT, {"hidden_states": LATENTS, "timestep": (2,), "class_labels": (2,)}),
    (
        "sd3",
        "SD3Transformer2DModel",
        SD3,
        {"hidden_states": LATENTS, "encoder_hidden_states": WORDS, "pooled_projections": (2, 16), "timestep": (2,)},
    ),
    (
        "pixart",
        "PixArtTransformer2DModel",
        PIXART,
        {"hidden_states": LATENTS, "encoder_hidden_states": WORDS, "timestep": (2,)},
    ),
    (
        "aura-flow",
        "AuraFlowTransformer2DModel",
        AURA,
        {"hidden_states": LATENTS, "encoder_hidden_states": WORDS, "timestep": (2,)},
    ),
    (
        "prior",
        "PriorTransformer",
        PRIOR,
        {"hidden_states": (2, 32), "timestep": (2,), "proj_embedding": (2, 32), "encoder_hidden_states": (2, 5, 32)},
    ),
)
"""A name, the class, its options, and the shapes of its inputs."""


def make(name: str, options: dict[str, Any]) -> Any:
    import diffusers

    return getattr(diffusers, name)(**options)


def cases() -> Iterator[Case]:
    types = STEP | {"class_labels": torch.int64}
    modules = [
        Module(title, partial(make, name, options), inputs, types=types) for title, name, options, inputs in MODELS
    ]
    return cases_of(modules, positional=False)
