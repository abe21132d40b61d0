"""vit-pytorch: vision transformers as papers have them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from corpus.case import Case
from corpus.torch_export import Module, cases_of

VIT: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "num_classes": 10,
    "dim": 48,
    "depth": 2,
    "heads": 4,
    "mlp_dim": 64,
}
HEAD = {"dim_head": 12}
LARGE = ("mobile_vit", "crossformer", "cvt", "max_vit", "levit", "regionvit", "scalable_vit", "twins_svt")
MIXED = "every layer mixes the heads of its probabilities before it multiplies them by V"
MODELS: tuple[tuple[str, str, dict[str, Any], int | None, str], ...] = (
    ("vit", "ViT", VIT | HEAD, None, ""),
    ("simple_vit", "SimpleViT", VIT | HEAD, None, ""),
    ("simple_vit_with_register_tokens", "SimpleViT", VIT | HEAD, None, ""),
    ("simple_vit_with_qk_norm", "SimpleViT", VIT | HEAD, None, ""),
    ("simple_vit_with_fft", "SimpleViT", VIT | HEAD | {"freq_patch_size": 8}, None, ""),
    ("simple_vit_with_patch_dropout", "SimpleViT", VIT | HEAD, None, ""),
    ("vit_with_patch_dropout", "ViT", VIT | HEAD, None, ""),
    ("parallel_vit", "ViT", VIT | HEAD, None, ""),
    ("vit_for_small_dataset", "ViT", VIT | HEAD, None, ""),
    ("deepvit", "DeepViT", VIT | HEAD, 0, MIXED),
    ("cait", "CaiT", VIT | HEAD | {"cls_depth": 1}, 0, MIXED),
    ("pit", "PiT", VIT | HEAD | {"depth": (1, 1)}, None, ""),
    ("learnable_memory_vit", "ViT", VIT | HEAD, None, ""),
    ("rvt", "RvT", VIT | HEAD, None, ""),
    ("local_vit", "LocalViT", VIT | HEAD, None, ""),
    ("ats_vit", "ViT", VIT | HEAD | {"max_tokens_per_depth": (17, 9)}, None, ""),
    (
        "crossformer",
        "CrossFormer",
        {"num_classes": 10, "dim": (16, 16, 32, 32), "depth": (1, 1, 1, 1)}
        | {"global_window_size": (4, 2, 2, 1), "local_window_size": 2},
        None,
        "",
    ),
    (
        "cvt",
        "CvT",
        {"num_classes": 10, "s1_emb_dim": 16, "s2_emb_dim": 24, "s3_emb_dim": 32, "s3_depth": 1, "s2_depth": 1},
        None,
        "",
    ),
    (
        "nest",
        "NesT",
        {"image_size": 32, "patch_size": 4, "dim": 24, "heads": 2, "num_hierarchies": 2}
        | {"block_repeats": (1, 1), "num_classes": 10},
        None,
        "",
    ),
    (
        "max_vit",
        "MaxViT",
        {"num_classes": 10, "dim_conv_stem": 16, "dim": 32, "dim_head": 16, "depth": (1, 1), "window_size": 4},
        None,
        "",
    ),
    ("normalized_vit", "nViT", VIT | HEAD, None, ""),
    ("vit_with_patch_merger", "ViT", VIT | HEAD | {"patch_merge_num_tokens": 4}, None, ""),
    ("xcit", "XCiT", VIT | HEAD | {"cls_depth": 1}, None, ""),
    (
        "cross_vit",
        "CrossViT",
        {"image_size": 32, "num_classes": 10, "sm_dim": 24, "lg_dim": 48, "sm_patch_size": 8, "lg_patch_size": 16}
        | {"sm_enc_heads": 2, "sm_enc_dim_head": 12, "sm_enc_mlp_dim": 32, "lg_enc_depth": 1, "lg_enc_heads": 4}
        | {"lg_enc_dim_head": 12, "lg_enc_mlp_dim": 48, "cross_attn_depth": 1, "cross_attn_heads": 2}
        | {"cross_attn_dim_head": 12, "depth": 2},
        None,
        "",
    ),
    (
        "levit",
        "LeViT",
        {"image_size": 64, "num_classes": 10, "stages": 2, "dim": (32, 48), "depth": 2, "heads": (2, 4)}
        | {"mlp_mult": 2, "dim_key": 12, "dim_value": 16},
        None,
        "",
    ),
    (
        "regionvit",
        "RegionViT",
        {"dim": (16, 32, 48, 64), "depth": (1, 1, 1, 1), "window_size": 2, "num_classes": 10, "use_peg": True},
        None,
        "",
    ),
    (
        "scalable_vit",
        "ScalableViT",
        {"num_classes": 10, "dim": 16, "depth": (1, 1), "heads": (2, 4), "reduction_factor": (4, 2)}
        | {"window_size": (4, None), "iwsa_dim_key": 8, "iwsa_dim_value": 8, "ssa_dim_key": 8, "ssa_dim_value": 8},
        None,
        "",
    ),
    (
        "twins_svt",
        "TwinsSVT",
        {"num_classes": 10, "s1_emb_dim": 16, "s2_emb_dim": 24, "s3_emb_dim": 32, "s4_emb_dim": 40, "s3_depth": 1}
        | {"s4_depth": 1}
        | {
            f"s{n}_{of}": size
            for n, size in ((1, 4), (2, 4), (3, 2), (4, 2))
            for of in ("local_patch_size", "global_k")
        },
        None,
        "",
    ),
    (
        "mobile_vit",
        "MobileViT",
        {"image_size": (64, 64), "dims": [24, 32, 40], "num_classes": 10}
        | {"channels": [8, 8, 16, 16, 24, 24, 32, 32, 40, 40, 48]},
        None,
        "",
    ),
)
"""A module of the package, its class, its options, its attentions where they are not what is counted, and why."""


def make(module: str, name: str, options: dict[str, Any]) -> Callable[[], Any]:
    return partial(getattr(importlib.import_module(f"vit_pytorch.{module}"), name), **options)


def cases() -> Iterator[Case]:
    modules = []
    for module, name, options, attentions, why in MODELS:
        side = 64 if module in LARGE else 32
        built = partial(lambda *given: make(*given)(), module, name, options)
        modules.append(Module(module, built, {"image": (2, 3, side, side)}, attentions, why))
    return cases_of(modules)
