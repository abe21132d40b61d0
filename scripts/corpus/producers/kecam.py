"""keras_cv_attention_models, whose networks of attention for images are built on its own layers of PyTorch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

from corpus.case import Case
from corpus.torch_export import BOTH, Module, cases_of

MODELS: tuple[tuple[str, str, str, dict[str, Any], int], ...] = (
    ("halonet", "halonet", "HaloNetH0", {}, 64),
    ("botnet", "botnet", "BotNet26T", {}, 64),
    ("coatnet", "coatnet", "CoAtNet", {"num_blocks": [1, 1, 1, 1], "out_channels": [16, 32, 32, 64]}, 64),
    ("cmt", "cmt", "CMTTiny", {}, 64),
    ("coat", "coat", "CoaT", {"serial_depths": [1, 1, 1, 1], "embed_dims": [32, 32, 32, 32]}, 64),
    ("davit", "davit", "DaViT", {"num_blocks": [1, 1, 1, 1], "out_channels": [24, 24, 48, 48]}, 64),
    ("edgenext", "edgenext", "EdgeNeXt_XX_Small", {}, 64),
    ("gcvit", "gcvit", "GCViT_XXTiny", {}, 64),
    ("iformer", "iformer", "InceptionTransformer", {"num_blocks": [1, 1, 1, 1]}, 64),
    ("levit", "levit", "LeViT128S", {}, 64),
    ("nat", "nat", "NAT", {"num_blocks": [1, 1, 1, 1], "out_channels": [16, 32, 32, 64]}, 64),
    ("pvt", "pvt", "PVT_V2B0", {}, 64),
    ("swin2", "swin_transformer_v2", "SwinTransformerV2", {"num_blocks": [1, 1, 1, 1], "embed_dim": 24}, 64),
    ("tinyvit", "tinyvit", "TinyViT_5M", {}, 64),
    ("efficientvit-m", "efficientvit", "EfficientViT_M0", {}, 64),
    ("efficientvit-b", "efficientvit", "EfficientViT_B0", {}, 64),
    ("mobilevit", "mobilevit", "MobileViT_XXS", {}, 64),
    ("mobilevit2", "mobilevit", "MobileViT_V2_050", {}, 64),
    ("gpvit", "gpvit", "GPViT_L1", {}, 64),
    ("beit2", "beit", "Beit", {"depth": 2, "embed_dim": 48, "num_heads": 4}, 64),
    ("eva2", "beit", "EVA02TinyPatch14", {}, 56),
    ("meta", "beit", "MetaTransformer", {"depth": 2, "embed_dim": 48, "num_heads": 4}, 64),
    ("dinov2", "beit", "DINOv2", {"depth": 2, "embed_dim": 48, "num_heads": 4}, 56),
)
"""A name, the module and the function of it, its options, and the side of the image."""
ATTENTIONS = {
    "coat": (0, "a softmax of K along the tokens, and no scores"),
    "mobilevit2": (0, "a softmax of one number for each token, by which the tokens are summed"),
}
"""Where it is another number than that of softmaxes of three axes, and why."""


def make(module: str, name: str, options: dict[str, Any], side: int) -> Any:
    os.environ["KECAM_BACKEND"] = "torch"
    build = getattr(import_module(f"keras_cv_attention_models.{module}"), name)
    return build(input_shape=(3, side, side), num_classes=10, pretrained=None, **options)


def cases() -> Iterator[Case]:
    return cases_of(
        Module(
            name,
            partial(make, module, kind, options, side),
            {"image": (2, 3, side, side)},
            *ATTENTIONS.get(name, (None, "")),
            exporters=BOTH if name in ("halonet", "nat") else ("torchscript",),
        )
        for name, module, kind, options, side in MODELS
    )
