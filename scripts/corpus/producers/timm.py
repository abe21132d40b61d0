"""timm: vision transformers of many kinds, made small by their own options."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from corpus.case import Case
from corpus.torch_export import Module, cases_of

VIT: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4, "num_classes": 10}
STAGES: dict[str, Any] = {"num_classes": 10, "depths": (1, 1, 1, 1), "embed_dims": (16, 32, 32, 48)}
SWIN: dict[str, Any] = {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 24, "depths": (2, 2)}
SWIN |= {"num_heads": (2, 4), "num_classes": 10}
MODELS: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("vit_tiny_patch16_224", VIT, 32),
    ("deit_tiny_distilled_patch16_224", VIT, 32),
    ("deit3_small_patch16_224", VIT, 32),
    ("vit_small_patch14_reg4_dinov2", VIT, 32),
    ("vit_base_patch16_siglip_224", VIT, 32),
    ("vit_base_patch16_clip_224", VIT, 32),
    ("vit_relpos_small_patch16_224", VIT, 32),
    ("vit_srelpos_small_patch16_224", VIT, 32),
    ("vit_medium_patch16_gap_240", VIT, 32),
    ("vit_base_patch16_rope_reg1_gap_256", VIT, 32),
    ("flexivit_small", VIT, 32),
    ("beit_base_patch16_224", VIT, 32),
    ("beitv2_base_patch16_224", VIT, 32),
    ("eva02_tiny_patch14_224", VIT, 32),
    ("samvit_base_patch16", VIT | {"global_attn_indexes": (1,), "window_size": 2}, 32),
    ("cait_xxs24_224", VIT | {"depth_token_only": 1}, 32),
    (
        "naflexvit_base_patch16_gap",
        {"patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4, "num_classes": 10},
        32,
    ),
    ("aimv2_large_patch14_224", VIT, 32),
    ("visformer_tiny", {"img_size": 64, "embed_dim": 48, "depth": (1, 1, 1), "num_heads": 4, "num_classes": 10}, 64),
    ("convit_tiny", VIT | {"local_up_to_layer": 1}, 32),
    ("tnt_s_legacy_patch16_224", {"img_size": 32, "embed_dim": 48, "depth": 2, "num_classes": 10}, 32),
    ("swin_tiny_patch4_window7_224", SWIN, 32),
    ("swinv2_tiny_window8_256", SWIN, 32),
    ("swin_s3_tiny_224", SWIN, 32),
    ("pvt_v2_b0", STAGES, 64),
    ("twins_svt_small", STAGES | {"img_size": 64}, 64),
    ("levit_128s", {"num_classes": 10, "img_size": 64, "embed_dim": (32, 48, 64), "depth": (1, 1, 1)}, 64),
    (
        "davit_tiny",
        {"num_classes": 10, "depths": (1, 1, 1, 1), "embed_dims": (24, 24, 48, 48), "num_heads": (2, 2, 4, 4)},
        64,
    ),
    ("mobilevit_xxs", {"num_classes": 10}, 64),
    ("coatnet_nano_rw_224", {"num_classes": 10, "img_size": 64}, 64),
    ("gcvit_xxtiny", {"num_classes": 10, "img_size": 64, "depths": (1, 1, 1, 1), "window_size": (4, 4, 2, 2)}, 64),
    ("hiera_tiny_224", {"num_classes": 10, "img_size": 64, "embed_dim": 24, "stages": (1, 1, 2, 1)}, 64),
    ("mvitv2_tiny", {"num_classes": 10, "img_size": 64, "depths": (1, 1, 1, 1), "embed_dim": 24, "num_heads": 1}, 64),
    (
        "nest_tiny_jx",
        {"num_classes": 10, "img_size": 64, "embed_dims": (24, 24, 48), "depths": (1, 1, 1), "num_heads": (2, 2, 4)},
        64,
    ),
    ("efficientformer_l1", {"num_classes": 10, "img_size": 64}, 64),
    ("efficientvit_m0", {"num_classes": 10, "img_size": 64}, 64),
    (
        "crossvit_tiny_240",
        {"num_classes": 10, "img_size": 48, "img_scale": (1.0, 1.0), "embed_dim": (24, 48), "num_heads": (2, 2)},
        48,
    ),
)
"""A name, its options, and the side of the image."""
MIXED = {
    "cait_xxs24_224": (1, "the blocks before the class token's mix the heads of their probabilities"),
    "convit_tiny": (1, "the first block combines the probabilities of two softmaxes before it multiplies them by V"),
}
"""How many attentions models have of whose softmaxes some are none (docs/guide/refusals.md), and why."""
BOTH = ("vit_tiny_patch16_224", "beit_base_patch16_224", "swin_tiny_patch4_window7_224", "eva02_tiny_patch14_224")


def make(name: str, options: dict[str, Any]) -> Any:
    """The model with random weights. timm imports torchvision, which torch_export has to be imported before."""
    import timm

    return timm.create_model(name, pretrained=False, **options)


def cases() -> Iterator[Case]:
    modules = [
        Module(
            name,
            partial(make, name, options),
            {"image": (2, 3, side, side)},
            *MIXED.get(name, (None, "")),
            exporters=("torchscript", "dynamo") if name in BOTH else ("torchscript",),
        )
        for name, options, side in MODELS
    ]
    return cases_of(modules)
