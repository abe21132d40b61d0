"""transformers' models of images and video that the other producers leave out: promptable and universal segmentation, detection by
text, matching, poses, depth, towers of language models, video."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from corpus.case import Case
from corpus.hf_models import BASE, SWIN, VIT
from corpus.transformers_classes import Model, cases_of

SIDE = 64
IMAGE, IMAGE_AXES = {"pixel_values": (2, 3, SIDE, SIDE)}, {"pixel_values": {0: "batch"}}
SMALL = {"pixel_values": (2, 3, 32, 32)}
VIDEO = {"pixel_values": (2, 4, 3, 32, 32)}
KEPT = "attention_mask"
HIERA = {"hidden_size": 24, "num_attention_heads": 1, "image_size": [SIDE, SIDE], "blocks_per_stage": [1, 1, 2, 1]}
HIERA |= {"embed_dim_per_stage": [24, 48, 96, 192], "num_attention_heads_per_stage": [1, 2, 4, 8]}
HIERA |= {"window_size_per_stage": [4, 2, 4, 2], "global_attention_blocks": [3], "model_type": "sam2_hiera_det_model"}
HIERA |= {"window_positional_embedding_background_size": [4, 4]}
SAM2_TOWER = {"backbone_config": HIERA, "backbone_channel_list": [192, 96, 48, 24], "fpn_hidden_size": 32}
SAM2_TOWER |= {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]], "model_type": "sam2_vision_model"}
PROMPT = {"hidden_size": 32, "image_size": SIDE, "patch_size": 16, "mask_input_channels": 8}
MASKS = {"hidden_size": 32, "mlp_dim": 48, "num_attention_heads": 4, "iou_head_hidden_dim": 16, "iou_head_depth": 2}
SAM2 = {"vision_config": SAM2_TOWER, "prompt_encoder_config": PROMPT, "mask_decoder_config": MASKS}
SAM_TOWER = {"hidden_size": 48, "output_channels": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SAM_TOWER |= {"image_size": SIDE, "patch_size": 8, "window_size": 3, "global_attn_indexes": [1], "mlp_dim": 64}
SAM_TOWER |= {"num_pos_feats": 16}
SAM_HQ = {
    "vision_config": SAM_TOWER,
    "prompt_encoder_config": PROMPT | {"patch_size": 8, "image_embedding_size": 8},
    "mask_decoder_config": MASKS | {"vit_dim": 48},
}
SAM3_TOWER = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SAM3_TOWER |= {"image_size": SIDE, "patch_size": 8, "window_size": 4, "global_attn_indexes": [1]}
SAM3_TOWER |= {"pretrain_image_size": 32}
SWIN_STAGES = SWIN | {"image_size": SIDE, "depths": [1, 1, 1, 1], "num_heads": [1, 2, 4, 4], "embed_dim": 12}
SWIN_STAGES |= {"out_features": ["stage1", "stage2", "stage3", "stage4"], "model_type": "swin"}
UNIVERSAL: dict[str, Any] = {
    "backbone_config": SWIN_STAGES,
    "feature_size": 32,
    "mask_feature_size": 32,
    "hidden_dim": 32,
}
UNIVERSAL |= {"encoder_feedforward_dim": 48, "encoder_layers": 1, "decoder_layers": 3, "num_attention_heads": 4}
UNIVERSAL |= {"dim_feedforward": 48, "num_queries": 7}
ONE = UNIVERSAL | {"conv_dim": 32, "mask_dim": 32, "text_encoder_width": 32, "text_encoder_num_layers": 1}
ONE |= {"text_encoder_context_length": 9, "text_encoder_vocab_size": 96, "task_seq_len": 9, "query_dec_layers": 1}
ONE |= {"is_training": False, "encoder_feedforward_dim": 48}
LAYERS = {"encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
LAYERS |= {"d_model": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_queries": 7}
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 12, 16, 24], "depths": [1, 1, 1, 1]}
RESNET |= {"layer_type": "basic"}
LAST = RESNET | {"out_features": ["stage4"]}
SCALES = RESNET | {"out_features": ["stage2", "stage3", "stage4"]}
DEFORMABLE = LAYERS | {"backbone_config": SCALES, "num_feature_levels": 3, "encoder_n_points": 2, "decoder_n_points": 2}
DAB = LAYERS | {"backbone_config": LAST, "hidden_size": 64, "num_queries": 7, "use_timm_backbone": False}
DEFORMABLE |= {"use_timm_backbone": False}
DETR = LAYERS | {"backbone_config": LAST, "use_timm_backbone": False, "model_type": "detr"}
MASKFORMER = {"backbone_config": SWIN_STAGES, "decoder_config": DETR, "fpn_feature_size": 32, "mask_feature_size": 32}
DINOV2 = VIT | {
    "mlp_ratio": 2,
    "out_features": ["stage1", "stage2"],
    "model_type": "dinov2",
    "reshape_hidden_states": False,
}
DEPTH = {"backbone_config": DINOV2, "patch_size": 8, "reassemble_hidden_size": 48, "reassemble_factors": [2, 1]}
DEPTH |= {"neck_hidden_sizes": [16, 16], "fusion_hidden_size": 16, "head_hidden_size": 8}
POSE_TOWER = VIT | {"image_size": [32, 24], "patch_size": [8, 8], "mlp_ratio": 2, "model_type": "vitpose_backbone"}
POSE_TOWER |= {"out_features": ["stage2"]}
POSE = {"backbone_config": POSE_TOWER, "num_labels": 5, "use_simple_decoder": True}
GLUE = {
    "hidden_size": 48,
    "keypoint_encoder_sizes": [16],
    "num_attention_heads": 4,
    "gnn_layers_types": ["self", "cross"],
}
LIGHT = {"descriptor_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
LIGHT |= {"intermediate_size": 64, "hidden_size": 48}
LIGHT |= {"keypoint_detector_config": {"model_type": "superpoint", "descriptor_decoder_dim": 48}}
LOFTR = {"stage_num_blocks": [1, 1, 1, 1], "out_features": [8, 8, 16, 32], "hidden_size": 32, "num_attention_heads": 8}
LOFTR |= {"num_attention_layers": 1, "fine_fusion_dims": [32, 16, 8], "stage_stride": [2, 1, 2, 2]}
SIGLIP2 = VIT | {"num_patches": 16, "vision_use_head": True}
PIXTRAL = VIT | {"image_size": 64, "head_dim": 12}
QWEN2 = {"depth": 2, "embed_dim": 48, "hidden_size": 40, "num_heads": 4, "patch_size": 4, "mlp_ratio": 2}
QWEN25 = {"depth": 2, "hidden_size": 48, "intermediate_size": 64, "num_heads": 4, "patch_size": 4, "window_size": 16}
QWEN25 |= {"out_hidden_size": 40, "fullatt_block_indexes": [1]}
QWEN3 = {"depth": 2, "hidden_size": 48, "intermediate_size": 64, "num_heads": 4, "patch_size": 4, "out_hidden_size": 40}
QWEN3 |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0]}
PATCHES = {"patches": (48, 96)}
MAE = VIT | {"num_frames": 4, "tubelet_size": 2}
JEPA = VIT | {"crop_size": 32, "frames_per_clip": 4, "num_pooler_layers": 1, "pred_hidden_size": 24, "mlp_ratio": 2.0}
JEPA |= {"pred_num_attention_heads": 4, "pred_num_hidden_layers": 1, "pred_num_mask_tokens": 2}
MLLAMA = {"hidden_size": 48, "num_hidden_layers": 2, "num_global_layers": 1, "attention_heads": 4, "image_size": 32}
MLLAMA |= {"intermediate_size": 64, "vision_output_dim": 96, "patch_size": 8, "max_num_tiles": 4}
MLLAMA |= {"intermediate_layers_indices": [1], "num_attention_heads": 4}
OWL = {
    "text_config": BASE | {"max_position_embeddings": 16},
    "vision_config": VIT,
    "projection_dim": 48,
}
GROUP = VIT | {"depths": [1, 1, 1], "num_group_tokens": [6, 3, 0], "num_output_groups": [6, 3, 3]}
GROUP |= {"num_hidden_layers": 3}
INTERN = VIT | {"image_size": [32, 32], "patch_size": [8, 8], "use_qk_norm": True}

TRACED = ("-dynamo",)
TOWER = "one in each of 5 blocks, which compute another softmax that nothing reads"
GROUPS = "one in each of 3 layers, and one in front of each of 2 assignments, which are no attentions"


def first(model: Any, *given: Any) -> Any:
    return model(*given)[0]


def prompted(model: Any, image: Any, points: Any) -> Any:
    return model(pixel_values=image, input_points=points).pred_masks


def naflex(model: Any, patches: Any, kept: Any) -> Any:
    shapes = torch.tensor([[4, 4], [4, 3]])
    return model(pixel_values=patches, pixel_attention_mask=kept.long(), spatial_shapes=shapes)[0]


def sizes(model: Any, image: Any) -> Any:
    return model(image, image_sizes=torch.tensor([[64, 64], [40, 48]]))[0]


def grid(model: Any, patches: Any) -> Any:
    """Of two images, whose patches stand one behind the other."""
    return model(patches, grid_thw=torch.tensor([[1, 4, 6], [1, 6, 4]]))[0]


def by_task(model: Any, image: Any, ids: Any) -> Any:
    return model(pixel_values=image, task_inputs=ids)[0]


def tiles(model: Any, image: Any) -> Any:
    """Of four tiles, of which some images have fewer."""
    ids, kept = torch.tensor([[6], [2]]), torch.tensor([[[1, 1, 1, 1]], [[1, 1, 0, 0]]])
    return model(image, aspect_ratio_ids=ids, aspect_ratio_mask=kept)[0]


def objects(text: str) -> dict[str, Any]:
    return {"why": f"{text}; other softmaxes weigh sampled points"}


def models() -> Iterator[Model]:
    points = IMAGE | {"points": (2, 1, 3, 2)}
    for name, module, prefix, options, attentions, why in (
        ("sam2", "sam2", "Sam2", SAM2, 12, f"{TOWER}; 7 of the masks' decoder"),
        ("sam_hq", "sam_hq", "SamHQ", SAM_HQ, None, ""),
    ):
        yield Model(
            name,
            module,
            f"{prefix}Model",
            f"{prefix}Config",
            options,
            prompted,
            points,
            {key: {0: "batch"} for key in points},
            attentions,
            why,
        )
    yield Model("sam3-tower", "sam3", "Sam3ViTModel", "Sam3ViTConfig", SAM3_TOWER, first, IMAGE, IMAGE_AXES)
    yield Model(
        "sam2-tower",
        "sam2",
        "Sam2HieraDetModel",
        "Sam2HieraDetConfig",
        {k: v for k, v in HIERA.items() if k != "model_type"},
        first,
        IMAGE,
        IMAGE_AXES,
        5,
        TOWER,
    )
    yield Model(
        "mask2former",
        "mask2former",
        "Mask2FormerForUniversalSegmentation",
        "Mask2FormerConfig",
        UNIVERSAL,
        first,
        IMAGE,
        IMAGE_AXES,
        8,
        **objects("4 of Swin, 2 in each of 2 layers of the decoder"),
    )
    yield Model(
        "oneformer",
        "oneformer",
        "OneFormerForUniversalSegmentation",
        "OneFormerConfig",
        ONE,
        by_task,
        IMAGE | {"ids": (2, 9)},
        IMAGE_AXES | {"ids": {0: "batch"}},
        10,
        "5 of Swin and the decoder's; another softmax weighs sampled points",
        lacking=TRACED,
    )
    yield Model(
        "maskformer",
        "maskformer",
        "MaskFormerForInstanceSegmentation",
        "MaskFormerConfig",
        MASKFORMER,
        first,
        IMAGE,
        IMAGE_AXES,
        8,
        "4 of Swin, 2 in each of 2 layers of the decoder",
    )
    yield Model(
        "deformable_detr",
        "deformable_detr",
        "DeformableDetrForObjectDetection",
        "DeformableDetrConfig",
        DEFORMABLE,
        first,
        IMAGE,
        IMAGE_AXES,
        2,
        **objects("the queries' in each of 2 layers of the decoder"),
    )
    yield Model("dab_detr", "dab_detr", "DabDetrModel", "DabDetrConfig", DAB, first, IMAGE, IMAGE_AXES)
    yield Model(
        "depth_anything",
        "depth_anything",
        "DepthAnythingForDepthEstimation",
        "DepthAnythingConfig",
        DEPTH,
        first,
        SMALL,
        IMAGE_AXES,
    )
    yield Model(
        "vitpose",
        "vitpose",
        "VitPoseForPoseEstimation",
        "VitPoseConfig",
        POSE,
        first,
        {"pixel_values": (2, 3, 32, 24)},
        IMAGE_AXES,
    )
    yield Model(
        "lightglue",
        "lightglue",
        "LightGlueForKeypointMatching",
        "LightGlueConfig",
        LIGHT,
        matched_light,
        {"points": (1, 2, 9, 2), "descriptors": (1, 2, 9, 48), "mask": (1, 2, 9)},
        {"points": {2: "points"}, "descriptors": {2: "points"}, "mask": {2: "points"}},
        lacking=("", "-eager"),  # TorchScript reshapes the descriptors as if they were points
    )
    yield Model(
        "superglue",
        "superglue",
        "SuperGlueForKeypointMatching",
        "SuperGlueConfig",
        GLUE,
        glued_points,
        {"points": (2, 9, 2), "descriptors": (2, 9, 48), "mask": (2, 9)},
        {"points": {1: "points"}, "descriptors": {1: "points"}, "mask": {1: "points"}},
    )
    yield Model(
        "efficientloftr",
        "efficientloftr",
        "EfficientLoFTRModel",
        "EfficientLoFTRConfig",
        LOFTR,
        first,
        {"pixel_values": (1, 2, 3, SIDE, SIDE)},
        {},
    )
    yield Model(
        "siglip2",
        "siglip2",
        "Siglip2VisionModel",
        "Siglip2VisionConfig",
        SIGLIP2,
        naflex,
        {"patches": (2, 16, 192), KEPT: (2, 16)},
        {},
        2,
        "one in each of 2 layers; nothing of the head that pools is given out",
        lacking=("", "-eager"),
    )
    yield Model(
        "pixtral", "pixtral", "PixtralVisionModel", "PixtralVisionConfig", PIXTRAL, sizes, IMAGE, {}, lacking=TRACED
    )
    yield Model(
        "qwen2_vl",
        "qwen2_vl",
        "Qwen2VisionTransformerPretrainedModel",
        "Qwen2VLVisionConfig",
        QWEN2,
        grid,
        PATCHES,
        {},
        lacking=TRACED,
    )
    yield Model(
        "qwen2_5_vl",
        "qwen2_5_vl",
        "Qwen2_5_VisionTransformerPretrainedModel",
        "Qwen2_5_VLVisionConfig",
        QWEN25,
        grid,
        PATCHES,
        {},
        lacking=TRACED,
    )
    yield Model(
        "qwen3_vl", "qwen3_vl", "Qwen3VLVisionModel", "Qwen3VLVisionConfig", QWEN3, grid, PATCHES, {}, lacking=TRACED
    )
    yield Model("videomae", "videomae", "VideoMAEModel", "VideoMAEConfig", MAE, first, VIDEO, IMAGE_AXES)
    yield Model(
        "vjepa2",
        "vjepa2",
        "VJEPA2Model",
        "VJEPA2Config",
        JEPA,
        lambda m, x: m(x, skip_predictor=True)[0],
        VIDEO,
        IMAGE_AXES,
    )
    yield Model(
        "mllama",
        "mllama",
        "MllamaVisionModel",
        "MllamaVisionConfig",
        MLLAMA,
        tiles,
        {"pixel_values": (2, 1, 4, 3, 32, 32)},
        {},
    )
    yield Model(
        "owlvit",
        "owlvit",
        "OwlViTForObjectDetection",
        "OwlViTConfig",
        OWL,
        lambda m, ids, x, kept: m(ids, x, kept.long())[0],
        {"ids": (4, 7), "pixel_values": (2, 3, 32, 32), KEPT: (4, 7)},
        {},
    )
    yield Model(
        "groupvit",
        "groupvit",
        "GroupViTVisionModel",
        "GroupViTVisionConfig",
        GROUP,
        first,
        SMALL,
        IMAGE_AXES,
        5,
        GROUPS,
    )
    yield Model("internvl", "internvl", "InternVLVisionModel", "InternVLVisionConfig", INTERN, first, SMALL, IMAGE_AXES)


def matched_light(model: Any, points: Any, descriptors: Any, kept: Any) -> Any:
    """The layers of LightGlue, without the network that finds points."""
    b, _, n, _ = points.shape
    flat = descriptors.reshape(b * 2, n, -1)
    states = model.input_projection(flat)
    places = model.positional_encoder(points.reshape(b * 2, n, 2))[0]
    mask = (1.0 - kept.reshape(b * 2, 1, 1, n).float()) * torch.finfo(torch.float32).min
    for layer in model.transformer_layers:
        states = layer(states, places, attention_mask=mask)[0]
    return states


def glued_points(model: Any, points: Any, descriptors: Any, kept: Any) -> Any:
    """The layers of SuperGlue, without the network that finds points."""
    scores = torch.ones_like(points[..., 0])
    encoded = model.keypoint_encoder(points, scores)[0]
    states = descriptors + encoded
    mask = (1.0 - kept[:, None, None, :].float()) * torch.finfo(torch.float32).min
    return model.gnn(states, mask=mask)[0]


def cases() -> Iterator[Case]:
    return cases_of(models())
