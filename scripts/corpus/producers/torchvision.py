"""torchvision's vision transformers, a detector of its that finds nothing, and the attention modules of torch.nn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from corpus.case import Case
from corpus.feeds import Run
from corpus.torch_export import BOTH, Call, Module, cases_of

SWIN: dict[str, Any] = {
    "patch_size": [4, 4],
    "embed_dim": 24,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": [4, 4],
}
SWIN |= {"num_classes": 10}
TOKENS = {0: "batch", 1: "length"}
KEYS = {0: "batch", 1: "keys"}
RUNS = (Run("inputs"), Run("longer", batch=3, length=11))


def vision(name: str, options: dict[str, Any]) -> Any:
    """A model of torchvision, which torch_export has to be imported before."""
    from torchvision import models

    return getattr(models, name)(**options)


def swin_v2() -> Any:
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2

    return vision("SwinTransformer", SWIN | {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2})


def video() -> Any:
    options: dict[str, Any] = SWIN | {"patch_size": [2, 4, 4], "window_size": [2, 4, 4]}
    from torchvision.models.video.swin_transformer import SwinTransformer3d

    return SwinTransformer3d(**options)


def detector() -> Any:
    """RetinaNet on a backbone of two convolutions. Without training no score passes its threshold: there are no boxes."""
    from torchvision.models.detection import RetinaNet
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    backbone: Any = nn.Sequential(nn.Conv2d(3, 8, 3, 4, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1))
    backbone.out_channels = 8
    anchors = AnchorGenerator(((16, 32),), ((1.0,),))
    made = RetinaNet(backbone, 3, min_size=64, max_size=64, anchor_generator=anchors)
    return Call(made, lambda m, image: m([image[0]])[0])


def alone(m: Any, x: torch.Tensor) -> Any:
    """Of a sequence with itself, without its probabilities."""
    return m(x, x, x, need_weights=False)[0]


def attention(call: Callable[..., Any], **options: Any) -> Any:
    return Call(nn.MultiheadAttention(48, 4, batch_first=True, **options), call)


def encoder(call: Callable[..., Any]) -> Any:
    layer = nn.TransformerEncoderLayer(48, 4, 64, batch_first=True)
    return Call(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), call)


def decoder(call: Callable[..., Any]) -> Any:
    return Call(nn.TransformerDecoder(nn.TransformerDecoderLayer(48, 4, 64, batch_first=True), 2), call)


def causal(x: torch.Tensor) -> torch.Tensor:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)


X: dict[str, tuple[int, ...]] = {"x": (2, 7, 48)}
PAIR: dict[str, tuple[int, ...]] = {"x": (2, 7, 48), "y": (2, 9, 48)}
DROP: dict[str, tuple[int, ...]] = {"x": (2, 7, 48), "drop": (2, 7)}
FREE = {"x": TOKENS}
FREE_PAIR = {"x": TOKENS, "y": KEYS}
FREE_DROP = {"x": TOKENS, "drop": TOKENS}
BOOL = {"drop": torch.bool}
VIT: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "num_layers": 2,
    "num_heads": 4,
    "hidden_dim": 48,
    "mlp_dim": 64,
}
MAXVIT: dict[str, Any] = {"input_size": (64, 64), "stem_channels": 16, "partition_size": 4, "block_channels": [16, 32]}
MAXVIT |= {"block_layers": [1, 1], "head_dim": 16, "stochastic_depth_prob": 0.0, "num_classes": 10}
IMAGE: dict[str, tuple[int, ...]] = {"image": (2, 3, 32, 32)}
MODULES: tuple[Module, ...] = (
    Module("vit", partial(vision, "VisionTransformer", VIT), IMAGE, exporters=BOTH),
    Module("swin", partial(vision, "SwinTransformer", SWIN), IMAGE, exporters=BOTH),
    Module("swin-v2", swin_v2, IMAGE),
    Module("maxvit", partial(vision, "MaxVit", MAXVIT), {"image": (2, 3, 64, 64)}),
    Module("swin-3d", video, {"video": (2, 3, 4, 32, 32)}, exporters=BOTH),
    Module(
        "retinanet",
        detector,
        {"image": (1, 3, 64, 64)},
        0,
        "its scores are of convolutions",
        axes={"image": {}},
        runs=(Run("inputs"),),
    ),
    Module("nn-mha", partial(attention, alone), X, axes=FREE, exporters=BOTH, runs=RUNS),
    Module("nn-mha-weights", partial(attention, lambda m, x: m(x, x, x)), X, axes=FREE, runs=RUNS),
    Module(
        "nn-mha-cross",
        partial(attention, lambda m, x, y: m(x, y, y, need_weights=False)[0]),
        PAIR,
        axes=FREE_PAIR,
        runs=RUNS,
    ),
    Module(
        "nn-mha-causal",
        partial(attention, lambda m, x: m(x, x, x, attn_mask=causal(x), need_weights=False)[0]),
        X,
        axes=FREE,
        runs=RUNS,
    ),
    Module(
        "nn-mha-padded",
        partial(attention, lambda m, x, drop: m(x, x, x, drop, need_weights=False)[0]),
        DROP,
        None,
        "",
        BOOL,
        FREE_DROP,
    ),
    Module("nn-mha-bias-kv", partial(attention, alone, add_bias_kv=True), X, axes=FREE, runs=RUNS),
    Module("nn-mha-zero-attn", partial(attention, alone, add_zero_attn=True), X, axes=FREE, runs=RUNS),
    Module("nn-encoder", partial(encoder, lambda m, x: m(x)), X, 2, "2 layers", axes=FREE, runs=RUNS),
    Module("nn-encoder-causal", partial(encoder, lambda m, x: m(x, causal(x))), X, 2, "2 layers", axes=FREE, runs=RUNS),
    Module(
        "nn-decoder",
        partial(decoder, lambda m, x, y: m(x, y)),
        PAIR,
        4,
        "2 layers of self and cross attention",
        axes=FREE_PAIR,
        runs=RUNS,
    ),
    Module(
        "nn-decoder-causal",
        partial(decoder, lambda m, x, y: m(x, y, causal(x))),
        PAIR,
        4,
        "2 layers of self and cross attention",
        axes=FREE_PAIR,
        runs=RUNS,
    ),
)


def cases() -> Iterator[Case]:
    return cases_of(MODULES)
