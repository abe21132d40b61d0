"""kornia: matchers of image features (LightGlue, LoFTR), and its own Segment Anything, SigLIP 2, TinyViT and ViT."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from corpus.case import Case
from corpus.feeds import Run
from corpus.torch_export import BOTH, Call, Exporter, Module, cases_of

WIDTH, HEADS = 48, 4
DYNAMO: tuple[Exporter, ...] = ("dynamo",)
"""What the other exporter does not know: an axis taken apart, counted from the last."""


class Matcher(torch.nn.Module):
    """Two layers of LightGlue and the scores of its matches; points may be padding."""

    def __init__(self) -> None:
        from kornia.feature.lightglue import LearnableFourierPositionalEncoding, MatchAssignment, TransformerLayer

        super().__init__()
        self.places = LearnableFourierPositionalEncoding(2, WIDTH // HEADS, WIDTH // HEADS)
        self.layers = torch.nn.ModuleList(TransformerLayer(WIDTH, HEADS) for _ in range(2))
        self.scores = MatchAssignment(WIDTH)

    def forward(self, a: torch.Tensor, b: torch.Tensor, at: torch.Tensor, bt: torch.Tensor, *kept: torch.Tensor) -> Any:
        places = self.places(at), self.places(bt)
        kept = tuple(mask[:, None, :, None] for mask in kept)
        for layer in self.layers:
            a, b = layer(a, b, *places, *kept)
        return self.scores(a, b)


def loftr(attention: str) -> Any:
    """LoFTR's transformer: its attention is linear or "full", of whose scores the heads are the last axis."""
    from kornia.feature.loftr.loftr_module.transformer import LocalFeatureTransformer

    options = {"d_model": WIDTH, "nhead": HEADS, "layer_names": ["self", "cross"], "attention": attention}
    return LocalFeatureTransformer(options)


def sam_encoder() -> Any:
    from kornia.models.sam.architecture.image_encoder import ImageEncoderViT

    return ImageEncoderViT(
        img_size=64,
        patch_size=8,
        embed_dim=WIDTH,
        depth=2,
        num_heads=HEADS,
        out_chans=16,
        use_rel_pos=True,
        window_size=3,
        global_attn_indexes=(1,),
    )


def sam_transformer() -> Any:
    from kornia.models.sam.architecture.transformer import TwoWayTransformer

    return TwoWayTransformer(depth=2, embedding_dim=WIDTH, num_heads=HEADS, mlp_dim=WIDTH)


def siglip() -> Any:
    from kornia.models.siglip2.config import SigLip2VisionConfig
    from kornia.models.siglip2.vision_encoder import SigLip2VisionModel

    config = SigLip2VisionConfig(
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        image_size=32,
        patch_size=8,
    )
    return SigLip2VisionModel(config)


def tiny_vit() -> Any:
    from kornia.models.tiny_vit import TinyViT

    return TinyViT(
        img_size=64, num_classes=10, embed_dims=(16, 32, 32, 48), depths=(1, 1, 2, 1), num_heads=(1, 2, 2, 4)
    )


def vit() -> Any:
    from kornia.models.vit import VisionTransformer

    return VisionTransformer(image_size=32, patch_size=8, embed_dim=WIDTH, depth=2, num_heads=HEADS)


def dino() -> Any:
    """The attention of DeDoDe's DINOv2."""
    from kornia.feature.dedode.transformer.layers.attention import Attention

    return Attention(WIDTH, num_heads=HEADS)


def cases() -> Iterator[Case]:
    features = {"a": (2, 9, WIDTH), "b": (2, 7, WIDTH)}
    axes = {name: {0: "batch", 1: f"points_{name[0]}"} for name in ("a", "b", "at", "bt", "a_mask", "b_mask")}
    sizes = {"points_a": 9, "points_b": 7}
    runs = (Run("points", sizes=sizes), Run("as many", batch=1, sizes={"points_a": 6, "points_b": 6}))
    places = {"at": (2, 9, 2), "bt": (2, 7, 2)}
    kept = {"a_mask": (2, 9), "b_mask": (2, 7)}

    def matched(name: str, make: Any, inputs: dict[str, tuple[int, ...]], *why: Any, **more: Any) -> Module:
        used = {key: axes[key] for key in inputs}
        return Module(name, make, inputs, *why, axes=used, runs=runs, **({"exporters": BOTH} | more))

    image = {"image": (2, 3, 32, 32)}
    modules = [
        matched(
            "lightglue",
            Matcher,
            features | places,
            8,
            "two layers of two attentions for either image",
            exporters=DYNAMO,
        ),
        matched(
            "lightglue-masks",
            Matcher,
            features | places | kept,
            8,
            "two layers of two attentions for either image",
            exporters=DYNAMO,
            types=dict.fromkeys(kept, torch.bool),
        ),
        matched("loftr", partial(loftr, "full"), features),
        matched("loftr-linear", partial(loftr, "linear"), features, 0, "its attention is linear"),
        matched(
            "loftr-masks",
            partial(loftr, "full"),
            features | kept,
            types=dict.fromkeys(kept, torch.bool),
        ),
        Module("sam-image", sam_encoder, {"image": (2, 3, 64, 64)}),
        Module(
            "sam-masks",
            sam_transformer,
            {"image": (2, WIDTH, 6, 6), "places": (2, WIDTH, 6, 6), "points": (2, 5, WIDTH)},
        ),
        Module("siglip2", lambda: Call(siglip(), lambda model, x: model(x)[0]), image, exporters=BOTH),
        Module("tiny-vit", tiny_vit, {"image": (2, 3, 64, 64)}, exporters=BOTH),
        Module("vit", vit, image),
        Module("dino", dino, {"x": (2, 16, WIDTH)}, exporters=BOTH),
    ]
    return cases_of(modules)
