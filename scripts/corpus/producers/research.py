"""Models as those published them who made them up: Segment Anything, ESM-2, MONAI's networks, local attention, Perceiver."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from corpus.case import Case
from corpus.torch_export import BOTH, Call, Exporter, Module, cases_of

WIDTH = 48
DYNAMO: tuple[Exporter, ...] = ("dynamo",)
TOKENS = 33
"""ESM's alphabet, which is smaller than that of the corpus."""


def image_encoder(windows: int) -> Any:
    """Segment Anything's: positions relative to each query along both axes, in windows of so many patches and in all of them."""
    from segment_anything.modeling.image_encoder import ImageEncoderViT

    return ImageEncoderViT(
        img_size=64,
        patch_size=8,
        embed_dim=WIDTH,
        depth=2,
        num_heads=4,
        out_chans=16,
        use_rel_pos=True,
        window_size=windows,
        global_attn_indexes=(1,),
    )


def mask_decoder() -> Any:
    """Segment Anything's: tokens attend to each other and to an image, and it to them."""
    from segment_anything.modeling.transformer import TwoWayTransformer

    return TwoWayTransformer(depth=2, embedding_dim=WIDTH, num_heads=4, mlp_dim=WIDTH)


def proteins() -> Any:
    """ESM-2: rotary positions, tokens that are padding."""
    from esm.model.esm2 import ESM2

    return Call(
        ESM2(num_layers=2, embed_dim=WIDTH, attention_heads=4),
        lambda model, ids: model(ids.remainder(TOKENS), repr_layers=[2])["representations"][2],
    )


def network(name: str, options: dict[str, Any]) -> Any:
    """One of MONAI."""
    import monai.networks.nets

    return getattr(monai.networks.nets, name)(**options)


def block(name: str, options: dict[str, Any]) -> Any:
    """A part of MONAI's."""
    import monai.networks.blocks

    return getattr(monai.networks.blocks, name)(hidden_size=WIDTH, num_heads=4, **options)


def local(options: dict[str, Any]) -> Any:
    from local_attention import LocalAttention

    return LocalAttention(dim=12, window_size=8, autopad=True, **options)


def perceiver() -> Any:
    from perceiver_pytorch import PerceiverIO

    model = PerceiverIO(
        depth=2,
        dim=WIDTH,
        queries_dim=WIDTH,
        logits_dim=10,
        num_latents=16,
        latent_dim=WIDTH,
        cross_heads=1,
        latent_heads=4,
        cross_dim_head=12,
        latent_dim_head=12,
    )
    return Call(model, lambda m, data, queries: m(data, queries=queries))


VIT = {"in_channels": 1, "img_size": (32, 32), "patch_size": 8, "hidden_size": WIDTH, "mlp_dim": 64, "num_layers": 2}
VIT |= {"num_heads": 4, "spatial_dims": 2}
SWIN = {"in_channels": 1, "out_channels": 2, "feature_size": 12, "spatial_dims": 2}
SWIN |= {"depths": (2, 2, 2, 2), "num_heads": (1, 2, 4, 4)}
UNETR = {"in_channels": 1, "out_channels": 2, "img_size": (32, 32), "feature_size": 4, "hidden_size": WIDTH}
UNETR |= {"mlp_dim": 64, "num_heads": 4, "spatial_dims": 2}
DIFFUSION = {"in_channels": 1, "out_channels": 1, "spatial_dims": 2, "channels": (32, 32), "num_res_blocks": 1}
DIFFUSION |= {"attention_levels": (False, True), "num_head_channels": 16, "with_conditioning": True}
DIFFUSION |= {"cross_attention_dim": 16}

VOLUME = {"img_size": (32, 32, 32), "spatial_dims": 3}
DIFFUSION_3D = {"in_channels": 1, "out_channels": 1, "spatial_dims": 3, "channels": (16, 16), "num_res_blocks": 1}
DIFFUSION_3D |= {"attention_levels": (False, True), "num_head_channels": 8, "norm_num_groups": 4}
DIFFUSED = {"image": (1, 1, 8, 8, 8), "timesteps": (1,)}
STEPS = {"timesteps": torch.int64}
MEDNEXT = {"in_channels": 1, "out_channels": 2, "spatial_dims": 3, "init_filters": 4, "blocks_down": (1, 1)}
MEDNEXT |= {"blocks_bottleneck": 1, "blocks_up": (1, 1), "encoder_expansion_ratio": 2, "decoder_expansion_ratio": 2}
MEDNEXT |= {"bottleneck_expansion_ratio": 2}


def cases() -> Iterator[Case]:
    x, image = {"x": (2, 16, WIDTH)}, {"image": (2, 1, 32, 32)}
    volume = {"image": (1, 1, 32, 32, 32)}
    heads = {name: (2, 4, 40, 12) for name in ("q", "k", "v")}
    modules = [
        Module("sam-image", partial(image_encoder, 3), {"image": (2, 3, 64, 64)}),
        Module("sam-image-no-windows", partial(image_encoder, 0), {"image": (2, 3, 64, 64)}),
        Module(
            "sam-masks",
            mask_decoder,
            {"image": (2, WIDTH, 6, 6), "places": (2, WIDTH, 6, 6), "points": (2, 5, WIDTH)},
            exporters=BOTH,
        ),
        Module("esm2", proteins, {"ids": (2, 17)}, types={"ids": torch.int64}),
        Module("monai-vit", partial(network, "ViT", VIT), image),
        Module("monai-swin-unetr", partial(network, "SwinUNETR", SWIN), {"image": (1, 1, 64, 64)}),
        Module("monai-unetr", partial(network, "UNETR", UNETR), image),
        Module(
            "monai-diffusion",
            partial(network, "DiffusionModelUNet", DIFFUSION),
            {"image": (2, 1, 16, 16), "timesteps": (2,), "context": (2, 5, 16)},
            types={"timesteps": torch.int64},
        ),
        Module("monai-unetr-3d", partial(network, "UNETR", UNETR | VOLUME), volume),
        Module("monai-diffusion-3d", partial(network, "DiffusionModelUNet", DIFFUSION_3D), DIFFUSED, types=STEPS),
        Module("monai-mednext", partial(network, "MedNeXt", MEDNEXT), volume, 0, "convolutions alone"),
        Module("monai-causal", partial(block, "SABlock", {"causal": True, "sequence_length": 16}), x, exporters=BOTH),
        Module(
            "monai-relative",
            partial(block, "SABlock", {"rel_pos_embedding": "decomposed", "input_size": (4, 4)}),
            x,
            exporters=BOTH,
        ),
        Module(
            "monai-cross", partial(block, "CrossAttentionBlock", {}), x | {"context": (2, 9, WIDTH)}, exporters=BOTH
        ),
        Module("local-causal", partial(local, {"causal": True}), heads, exporters=DYNAMO),
        Module(
            "local-ahead",
            partial(local, {"causal": False, "look_forward": 1, "exact_windowsize": True}),
            heads,
            exporters=DYNAMO,
        ),
        Module("perceiver-io", perceiver, {"data": (2, 24, WIDTH), "queries": (7, WIDTH)}, axes={"data": {0: "batch"}}),
    ]
    return cases_of(modules)
