"""Model families of transformers that the other producers leave out: segmentation, detection, matching, time series, plans."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

import corpus.torch_setup  # noqa: F401
from corpus.case import Case
from corpus.hf_models import BASE, VIT
from corpus.torch_export import BOTH, Call, Module, cases_of

TRACED = ("rt_detr_v2", "d_fine", "pvt_v2", "informer", "timesfm")
"""What the other exporter does not take; of patches of a series TorchScript writes shapes that contradict each other."""
WIDTH, SIDE = 48, 64
LAYERS = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
STACKS = LAYERS | {"d_model": WIDTH, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 12, 16, 24], "depths": [1, 1, 1, 1]}
RESNET |= {"layer_type": "basic", "out_features": ["stage2", "stage3", "stage4"]}
IMAGE = {"pixel_values": (2, 3, SIDE, SIDE)}


def family(auto: str, model_type: str, options: dict[str, Any], call: Any, attention: str | None) -> Any:
    """A model with random weights, and how it is called."""
    import transformers

    inner = {key: value for key, value in options.items() if not key.endswith("_config")}
    for key, value in options.items():
        if key.endswith("_config"):
            kind = {k: v for k, v in value.items() if k != "model_type"}
            inner[key] = transformers.AutoConfig.for_model(value["model_type"], **kind)
    config = transformers.AutoConfig.for_model(model_type, **inner)
    how = {} if attention is None else {"attn_implementation": attention}
    made = getattr(transformers, auto)
    model = made.from_config(config, **how) if auto.startswith("Auto") else made._from_config(config, **how)
    return Call(model.float(), call)


def first(model: Any, *given: torch.Tensor) -> Any:
    """The first tensor of the result."""
    return model(*given)[0]


def by_name(*names: str) -> Any:
    return lambda model, *given: model(**dict(zip(names, given, strict=True)))[0]


def plan(model: Any, states: Any, actions: Any, returns: Any, times: Any) -> Any:
    """Of a decision transformer: the action that follows."""
    rewards = torch.zeros_like(returns)
    kept = torch.ones(states.shape[:2], dtype=torch.int64)
    given = {"states": states, "actions": actions, "rewards": rewards, "returns_to_go": returns}
    return model(**given, timesteps=times, attention_mask=kept).action_preds


def past_of(model: Any, past: Any, times: Any, ahead: Any) -> Any:
    """Of a time series: the last hidden states, of values that are all observed."""
    given = {"past_values": past, "past_time_features": times, "past_observed_mask": torch.ones_like(past)}
    return model(**given, future_time_features=ahead, future_values=torch.zeros_like(ahead[..., 0]))[0]


def on_page(model: Any, words: Any, boxes: Any) -> Any:
    """Words and the places where they stand."""
    corners = torch.stack([boxes, boxes, boxes + 2, boxes + 3], -1)
    return model(input_ids=words, bbox=corners)[0]


def forecast(model: Any, past: Any) -> Any:
    """Of a series without padding, of the first of three frequencies."""
    padding, rate = torch.zeros_like(past).long(), torch.zeros_like(past[:, :1]).long()
    return model(past_values=past, past_values_padding=padding, freq=rate)[0]


SERIES: dict[str, Any] = STACKS | {
    "prediction_length": 4,
    "context_length": 12,
    "lags_sequence": [1, 2],
    "num_time_features": 1,
}
PATCHED: dict[str, Any] = {"num_input_channels": 3, "context_length": 24, "patch_length": 6, "patch_stride": 6}
PATCHED |= {"prediction_length": 4, "d_model": WIDTH, "num_attention_heads": 4, "num_hidden_layers": 2, "ffn_dim": 64}
DETECTOR: dict[str, Any] = {"backbone_config": RESNET, "encoder_in_channels": [12, 16, 24], "encoder_hidden_dim": WIDTH}
DETECTOR |= {
    "d_model": WIDTH,
    "num_queries": 10,
    "decoder_in_channels": [WIDTH] * 3,
    "decoder_layers": 2,
    "num_labels": 4,
}
DETECTOR |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
DETECTOR |= {"num_denoising": 0, "anchor_image_size": None, "decoder_n_points": 2, "feat_strides": [8, 16, 32]}
ONE_SCALE = {
    "backbone_config": RESNET | {"out_features": ["stage4"]},
    "use_timm_backbone": False,
    "num_queries": 10,
} | STACKS


def cases() -> Iterator[Case]:
    kinds = {"times": torch.int64, "ids": torch.int64, "words": torch.int64, "boxes": torch.int64}
    points = "2 of the decoder's queries and {} of the encoder; other softmaxes weigh sampled points"
    listed: list[tuple[str, str, str, dict[str, Any], Any, dict[str, tuple[int, ...]], int | None, str]] = [
        ("rt_detr", "AutoModelForObjectDetection", "rt_detr", DETECTOR, first, IMAGE, 3, points.format(1)),
        ("rt_detr_v2", "AutoModelForObjectDetection", "rt_detr_v2", DETECTOR, first, IMAGE, 3, points.format(1)),
        ("d_fine", "AutoModelForObjectDetection", "d_fine", DETECTOR, first, IMAGE, 3, points.format(1)),
        ("conditional_detr", "AutoModelForObjectDetection", "conditional_detr", ONE_SCALE, first, IMAGE, None, ""),
        ("detr", "AutoModelForObjectDetection", "detr", ONE_SCALE, first, IMAGE, None, ""),
        ("dpt", "AutoModelForDepthEstimation", "dpt", VIT | DPT, first, {"pixel_values": (2, 3, 32, 32)}, None, ""),
        ("swin2sr", "Swin2SRForImageSuperResolution", "swin2sr", SR, first, {"pixel_values": (2, 3, 16, 16)}, None, ""),
        (
            "dinov3",
            "AutoModel",
            "dinov3_vit",
            VIT | {"image_size": 32},
            first,
            {"pixel_values": (2, 3, 32, 32)},
            None,
            "",
        ),
        ("hiera", "AutoModel", "hiera", HIERA_OPTIONS, first, IMAGE, None, ""),
        ("pvt_v2", "AutoModel", "pvt_v2", PVT, first, IMAGE, None, ""),
        ("mobilevit", "AutoModel", "mobilevit", MOBILEVIT, first, IMAGE, None, ""),
        (
            "timesformer",
            "AutoModel",
            "timesformer",
            VIT | {"num_frames": 3},
            first,
            {"pixel_values": (2, 3, 3, 32, 32)},
            None,
            "",
        ),
        ("vivit", "AutoModel", "vivit", VIT | VIVIT, first, {"pixel_values": (2, 4, 3, 32, 32)}, None, ""),
        ("patchtst", "PatchTSTForPrediction", "patchtst", PATCHED, first, {"past": (2, 24, 3)}, None, ""),
        ("patchtst-cls", "PatchTSTForPrediction", "patchtst", PATCHED | CLS, first, {"past": (2, 24, 3)}, None, ""),
        (
            "patchtst-channels",
            "PatchTSTForPrediction",
            "patchtst",
            PATCHED | CHANNELS,
            first,
            {"past": (2, 24, 3)},
            None,
            "",
        ),
        ("patchtsmixer", "PatchTSMixerForPrediction", "patchtsmixer", MIXER, first, {"past": (2, 24, 3)}, None, ""),
        ("time_series", "TimeSeriesTransformerModel", "time_series_transformer", SERIES, past_of, PAST, None, ""),
        ("informer", "InformerModel", "informer", SERIES | {"attention_type": "full"}, past_of, PAST, None, ""),
        ("xmod", "AutoModel", "xmod", BASE | ADAPTERS, first, {"ids": (2, 16)}, None, ""),
        ("perceiver", "AutoModel", "perceiver", LATENTS, first, {"x": (2, 9, 16)}, None, ""),
        ("layoutlmv3", "AutoModel", "layoutlmv3", BASE | PAGE, on_page, WORDS, None, ""),
        ("timesfm", "TimesFmModel", "timesfm", FORECAST, forecast, {"past": (2, 32)}, None, ""),
        ("dac", "DacModel", "dac", CODEC, lambda m, x: m(x).audio_values, {"sound": (2, 1, 160)}, 0, NO_ATTENTION),
        ("decision", "DecisionTransformerModel", "decision_transformer", PLAN, plan, PLANNED, None, ""),
    ]
    modules = [
        Module(
            f"{name}{'' if attention is None else f'-{attention}'}",
            partial(family, auto, model_type, options, call, attention),
            inputs,
            attentions,
            why,
            types=kinds,
            exporters=("torchscript",) if name in TRACED else ("dynamo",) if name.startswith("patchts") else BOTH,
        )
        for name, auto, model_type, options, call, inputs, attentions, why in listed
        for attention in (None, "eager")
        if attention is None or name in ("detr", "dpt", "decision", "patchtst", "hiera", "vivit")
    ]
    return cases_of(modules)


DPT = {"reassemble_factors": [4, 2, 1, 0.5], "neck_hidden_sizes": [8, 8, 8, 8], "fusion_hidden_size": 8}
DPT |= {"backbone_out_indices": [0, 1, 2, 3], "num_hidden_layers": 4, "image_size": 32, "patch_size": 8}
SR = {"image_size": 16, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 2], "window_size": 8, "upscale": 2}
HIERA_OPTIONS = {"image_size": [SIDE, SIDE], "embed_dim": 12, "depths": [1, 1, 2, 1], "num_heads": [1, 2, 4, 4]}
PVT = {"image_size": SIDE, "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1, 2, 4, 4], "depths": [1, 1, 1, 1]}
MOBILEVIT = {"image_size": SIDE, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 12, 16, 24, 32, 48]}
VIVIT = {"num_frames": 4, "tubelet_size": [2, 8, 8]}
CLS, CHANNELS = {"use_cls_token": True}, {"channel_attention": True}
MIXER = {"num_input_channels": 3, "context_length": 24, "patch_length": 6, "patch_stride": 6, "prediction_length": 4}
MIXER |= {"d_model": 12, "num_layers": 2, "self_attn": True, "self_attn_heads": 2, "gated_attn": False}
PAST = {"past": (2, 14), "times_past": (2, 14, 1), "ahead": (2, 4, 1)}
PLAN = {"state_dim": 5, "act_dim": 3, "hidden_size": WIDTH, "n_layer": 2, "n_head": 4, "max_ep_len": 64}
PLANNED = {"states": (2, 6, 5), "actions": (2, 6, 3), "returns": (2, 6, 1), "times": (2, 6)}
ADAPTERS = {"languages": ["en_XX", "de_DE"], "default_language": "en_XX", "pad_token_id": 1}
LATENTS = {"num_latents": 6, "d_latents": 24, "d_model": 16, "num_blocks": 1, "num_self_attends_per_block": 2}
LATENTS |= {"num_self_attention_heads": 4, "num_cross_attention_heads": 4}
PAGE = {"input_size": 32, "patch_size": 8, "coordinate_size": 8, "shape_size": 8, "max_2d_position_embeddings": 128}
PAGE |= {"has_relative_attention_bias": True, "has_spatial_attention_bias": True}
WORDS = {"words": (2, 16), "boxes": (2, 16)}
FORECAST = {"patch_length": 8, "context_length": 32, "horizon_length": 8, "freq_size": 3, "num_hidden_layers": 2}
FORECAST |= {"hidden_size": WIDTH, "intermediate_size": WIDTH, "head_dim": 12, "num_attention_heads": 4}
CODEC = {"encoder_hidden_size": 4, "downsampling_ratios": [2, 4], "decoder_hidden_size": 16, "n_codebooks": 2}
CODEC |= {"codebook_size": 16, "codebook_dim": 4, "upsampling_ratios": [4, 2], "hidden_size": 16}
NO_ATTENTION = "convolutions, and codes that are nearest"
