"""transformers' models with attentions of a rare kind: blocks that see global tokens, streams of words and places, several encoders
that share their keys, compressed keys, resamplers, routed experts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from corpus.case import Case
from corpus.hf_models import BASE, LLAMA, SEQ2SEQ, T5, VIT
from corpus.transformers_classes import Model, cases_of

KEPT = "attention_mask"
TEXT: dict[str, tuple[int, ...]] = {"ids": (2, 12), KEPT: (2, 12)}
TEXT_AXES = {key: {0: "batch", 1: "length"} for key in TEXT}
PAIR, PAIR_AXES = TEXT | {"target_ids": (2, 5)}, TEXT_AXES | {"target_ids": {0: "batch", 1: "target_length"}}
IMAGE, IMAGE_AXES = {"pixel_values": (2, 3, 32, 32)}, {"pixel_values": {0: "batch"}}
ONE_EXPORTER = ("-dynamo",)
BLOCKS = SEQ2SEQ | {"num_global_tokens": 4, "block_size": 4}
SPARSE = BASE | {
    "attention_type": "block_sparse",
    "block_size": 4,
    "num_random_blocks": 1,
    "max_position_embeddings": 256,
}
PLACES = BASE | {"channel_shrink_ratio": 2, "max_2d_position_embeddings": 128}
LATENT = LLAMA | {"num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 8}
LATENT |= {"qk_rope_head_dim": 4, "v_head_dim": 12}
CROSS = {"vocab_size": 96, "d_model": 48, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 64}
CROSS |= {"cross_attention_hidden_size": 40, "max_position_embeddings": 64}
RESAMPLER = {"hidden_size": 48, "resampler_n_latents": 5, "resampler_depth": 2, "resampler_n_heads": 4}
RESAMPLER |= {"resampler_head_dim": 12, "num_key_value_heads": 2}
PROMPTED = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": [64, 32],
    "patch_size": 8,
}
PROMPTED |= {"mlp_dim": 64, "merge_index": 0, "intermediate_hidden_state_indices": [0, 1], "pretrain_image_size": 32}
WINDOWED = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 4}
WINDOWED |= {"pretrain_image_size": 16, "window_block_indices": [0], "window_size": 3}
WINDOWED |= {"use_relative_position_embeddings": True}
READER = {
    "image_size": [32, 64],
    "patch_size": 8,
    "max_token_length": 7,
    "num_character_labels": 10,
    "num_bpe_labels": 20,
}
READER |= {"num_wordpiece_labels": 20, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
BY_REGION = {
    "projection_dim": 24,
    "text_config": BASE,
    "vision_config": VIT,
    "extract_layers": [0, 1],
    "reduce_dim": 16,
}
BY_REGION |= {"decoder_num_attention_heads": 4, "decoder_intermediate_size": 32}
QUERIES = BASE | {"encoder_hidden_size": 40}


def read(model: Any, ids: Any, kept: Any) -> Any:
    return model(input_ids=ids, attention_mask=kept.long())[0]


def written(model: Any, ids: Any, kept: Any) -> Any:
    return model(input_ids=ids, attention_mask=kept.long(), use_cache=False)[0]


def translated(model: Any, ids: Any, kept: Any, target: Any) -> Any:
    return model(input_ids=ids, attention_mask=kept.long(), decoder_input_ids=target, use_cache=False)[0]


def placed(model: Any, ids: Any, kept: Any) -> Any:
    boxes = torch.tensor([1, 2, 5, 6]).expand(ids.shape[0], ids.shape[1], 4)
    return model(input_ids=ids, bbox=boxes, attention_mask=kept.long())[0]


def entities(model: Any, ids: Any, kept: Any, entity_ids: Any) -> Any:
    """Of words and of the entities that they name, each at two words."""
    places = torch.arange(2).expand(*entity_ids.shape, 2)
    return model(input_ids=ids, attention_mask=kept.long(), entity_ids=entity_ids % 20, entity_position_ids=places)[0]


def seen(model: Any, image: Any) -> Any:
    return model(image)[0]


def spelled(model: Any, image: Any) -> Any:
    return model(image).logits


def by_example(model: Any, image: Any, prompt: Any, shown: Any) -> Any:
    return model(pixel_values=image, prompt_pixel_values=prompt, prompt_masks=shown)[0]


def by_text(model: Any, ids: Any, kept: Any, image: Any) -> Any:
    return model(input_ids=ids, attention_mask=kept.long(), pixel_values=image).logits


def captioned(model: Any, ids: Any, states: Any) -> Any:
    return model(input_ids=ids, encoder_hidden_states=states, use_cache=False)[0]


def asked(model: Any, queries: Any, states: Any) -> Any:
    return model(query_embeds=queries, encoder_hidden_states=states)[0]


def resampled(model: Any, states: Any, kept: Any) -> Any:
    return model(context=states, attention_mask=kept.long())


def models() -> Iterator[Model]:
    yield Model(
        "pegasus_x",
        "pegasus_x",
        "PegasusXModel",
        "PegasusXConfig",
        BLOCKS,
        translated,
        PAIR,
        PAIR_AXES,
        7,
        "2 and 1 in 2 layers of the encoder, as nothing reads the last one's global tokens, and 2 in each of 2 of the decoder",
        lacking=ONE_EXPORTER,
    )
    yield Model(
        "lilt",
        "lilt",
        "LiltModel",
        "LiltConfig",
        PLACES,
        placed,
        TEXT,
        TEXT_AXES,
        3,
        "of words and of places in each of 2 layers; nothing reads the last one's places",
        lacking=ONE_EXPORTER,
    )
    for name, module, prefix, options, call in (
        ("minicpm3", "minicpm3", "MiniCPM3", LATENT, written),
        ("doge", "doge", "Doge", LLAMA | {"head_dim": 12}, written),
        ("xglm", "xglm", "XGLM", CROSS | {"num_layers": 2, "attention_heads": 4, "ffn_dim": 64}, written),
        ("jina_v3", "jina_embeddings_v3", "JinaEmbeddingsV3", BASE, read),
        ("gte", "gte", "Gte", BASE, read),
    ):
        yield Model(
            name, module, f"{prefix}Model", f"{prefix}Config", options, call, TEXT, TEXT_AXES, lacking=ONE_EXPORTER
        )
    yield Model(
        "bigbird",
        "big_bird",
        "BigBirdModel",
        "BigBirdConfig",
        SPARSE,
        read,
        {"ids": (2, 64), KEPT: (2, 64)},
        {key: {0: "batch"} for key in TEXT},
        10,
        "of the first two blocks, the last two, and those between them, in each of 2 layers",
        lacking=(*ONE_EXPORTER, "-eager"),
    )
    yield Model(
        "luke",
        "luke",
        "LukeModel",
        "LukeConfig",
        BASE | {"entity_vocab_size": 20, "entity_emb_size": 16},
        entities,
        TEXT | {"entity_ids": (2, 3)},
        {key: {0: "batch"} for key in (*TEXT, "entity_ids")},
        lacking=ONE_EXPORTER,
    )
    yield Model(
        "switch",
        "switch_transformers",
        "SwitchTransformersModel",
        "SwitchTransformersConfig",
        T5 | {"num_experts": 4},
        translated,
        PAIR,
        PAIR_AXES,
        lacking=ONE_EXPORTER,
    )
    yield Model(
        "mgp_str",
        "mgp_str",
        "MgpstrForSceneTextRecognition",
        "MgpstrConfig",
        READER,
        spelled,
        {"pixel_values": (2, 3, 32, 64)},
        IMAGE_AXES,
        lacking=ONE_EXPORTER,
    )
    yield Model(
        "vitdet", "vitdet", "VitDetModel", "VitDetConfig", WINDOWED, seen, IMAGE, IMAGE_AXES, lacking=ONE_EXPORTER
    )
    images = IMAGE | {"prompt": (2, 3, 32, 32), "shown": (2, 3, 32, 32)}
    yield Model(
        "seggpt",
        "seggpt",
        "SegGptModel",
        "SegGptConfig",
        PROMPTED,
        by_example,
        images,
        {key: {0: "batch"} for key in images},
        lacking=ONE_EXPORTER,
    )
    yield Model(
        "clipseg",
        "clipseg",
        "CLIPSegForImageSegmentation",
        "CLIPSegConfig",
        BY_REGION,
        by_text,
        TEXT | IMAGE,
        {key: {0: "batch"} for key in (*TEXT, *IMAGE)},
        lacking=ONE_EXPORTER,
    )
    states = {"states": (2, 7, 40)}
    free = {"states": {0: "batch", 1: "frames"}}
    yield Model(
        "trocr",
        "trocr",
        "TrOCRForCausalLM",
        "TrOCRConfig",
        CROSS,
        captioned,
        {"ids": (2, 5)} | states,
        {"ids": {0: "batch", 1: "length"}} | free,
        lacking=ONE_EXPORTER,
    )
    yield Model(
        "qformer",
        "blip_2",
        "Blip2QFormerModel",
        "Blip2QFormerConfig",
        QUERIES,
        asked,
        {"queries": (2, 6, 48)} | states,
        {"queries": {0: "batch"}} | free,
        lacking=ONE_EXPORTER,
    )
    yield Model(
        "resampler",
        "idefics2",
        "Idefics2PerceiverResampler",
        "Idefics2PerceiverConfig",
        RESAMPLER,
        resampled,
        {"states": (2, 9, 48), KEPT: (2, 9)},
        {key: {0: "batch", 1: "frames"} for key in ("states", KEPT)},
        lacking=ONE_EXPORTER,
    )


def cases() -> Iterator[Case]:
    return cases_of(models())
